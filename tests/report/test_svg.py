from xml.etree import ElementTree

import pytest

from traincast.errors import InvalidInput
from traincast.report._svg import Point, draw_agreement

SVG = "{http://www.w3.org/2000/svg}"


def test_agreement_draws_a_dot_per_case_inside_the_picture() -> None:
    points = [Point(measured=0.01, forecast=0.02, series="a"), Point(measured=3.0, forecast=2.5, series="b")]
    root = ElementTree.fromstring(draw_agreement(points, title="all", size=500))
    dots = [dot for dot in root.iter(f"{SVG}circle") if dot.get("r") == "2.5"]
    assert len(dots) == 2
    assert all(0 <= float(dot.get(axis, "-1")) <= 500 for dot in dots for axis in ("cx", "cy"))


def test_points_without_a_logarithm_are_refused() -> None:
    with pytest.raises(InvalidInput, match="above 0"):
        draw_agreement([Point(measured=0.0, forecast=1.0, series="a")], title="")
