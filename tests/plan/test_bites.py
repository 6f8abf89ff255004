"""Offers that can be counted by hand."""

import pytest

from traincast import catalog
from traincast.plan._offers import Offer, Wanted, _sizes


@pytest.mark.parametrize(("most", "sizes"), [(None, [1, 2, 3, 4, 6, 8]), (3, [1, 2, 3]), (100, [1, 2, 3, 4, 6, 8])])
def test_no_more_nodes_are_offered_than_there_are_and_than_are_wanted(most: int | None, sizes: list[int]) -> None:
    node = catalog.cluster("aws-p4d.24xlarge", nodes=1)
    assert list(_sizes(Offer(node=node, max_nodes=most), Wanted(max_devices=64))) == sizes
