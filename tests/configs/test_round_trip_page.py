"""The page of round trips says what its command finds."""

from pathlib import Path
from types import ModuleType

import pytest

from scripts import load_benchmark

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def trips() -> ModuleType:
    return load_benchmark("round_trips")


def test_the_page_is_what_its_command_prints(trips: ModuleType, tmp_path: Path) -> None:
    found = [trips.travel(name, origin, tmp_path, ask=False) for name, origin in trips.list_files()]
    assert trips.show(found) == trips.PAGE.read_text(), "run: python benchmarks/round_trips.py --write"


def test_ten_projects_and_more_make_the_trip_with_files_that_they_ship(trips: ModuleType, tmp_path: Path) -> None:
    origins = dict(trips.list_files())
    assert all(origins.values()), "every file says where it is from"
    shipped = [name for name, origin in origins.items() if trips.WRITTEN_HERE not in origin]
    found = [trips.travel(name, origins[name], tmp_path, ask=False) for name in shipped]
    assert all(not trip.lost for trip in found)
    assert len({trip.project for trip in found if trip.written}) >= 10
