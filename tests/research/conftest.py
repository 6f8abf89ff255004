"""The shared case tables, where they lie beside the repository."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "cases"


@pytest.fixture(scope="session")
def shared_cases() -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"the measured cases are not here: {SHARED}")
    return SHARED
