"""Tests that wait for real processes get a second try: what else runs on a shared machine is not theirs to fail for.

A try that failed shows as R in the output. Everything else has one try, and what fails twice fails.
"""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, not whether it is right. The suite draws the same examples
# each time; benchmarks/laws.py and `make fuzz` draw new ones.
settings.register_profile(
    "shared machine",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
settings.load_profile("shared machine")

# Every test records what it asks for, and leaves nothing behind.
os.environ["TRAINCAST_CACHE"] = ""

# Commands that tests start keep what Python compiled, or each of them compiles the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

HERE = Path(__file__).parent
REAL_TIME = tuple(
    HERE / room
    for room in (
        "learn", "integrate", "profile", "service", "store", "test_workers.py",
        "cli/test_interrupt.py", "cli/test_batch_resume.py", "cli/test_sweep_resume.py",
    )
)  # fmt: skip
"""Rooms whose tests drive browsers, servers, measured training loops and emulated networks by the clock,
or stop real processes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.is_relative_to(room) for room in REAL_TIME):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=2))
