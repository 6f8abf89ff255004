"""Draws random jobs and checks the laws of conservation on each: state, work, traffic, time.

python benchmarks/laws.py --draws 10000 [--only state,work,traffic,time]

The laws are those of tests/laws (docs/theory/laws.md); every property gets its share of the draws.
"""

import argparse
import importlib
import sys
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
# This file is called as the package of the tests is.
sys.path[:1] = [str(TESTS)]
LAWS = ("state", "work", "traffic", "time")


def find_properties(names: list[str]) -> list[tuple[str, Any]]:
    """(law and sentence, the property) of every drawn test."""
    found = []
    for name in names:
        module = importlib.import_module(f"laws.test_{name}")
        for sentence, test in vars(module).items():
            if sentence.startswith("test_") and hasattr(test, "hypothesis"):
                found.append((f"{name}: {sentence.removeprefix('test_').replace('_', ' ')}", test))
    return found


def main() -> int:
    from hypothesis import HealthCheck, settings

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10_000, help="over all properties together")
    parser.add_argument("--only", default="", help="comma-separated laws; default: all")
    options = parser.parse_args()
    names = [name.strip() for name in options.only.split(",") if name.strip()] or list(LAWS)
    properties = find_properties(names)
    each = -(-options.draws // len(properties))
    violated = 0
    for says, test in properties:
        begun = time.perf_counter()
        # A property that has settings of its own takes no others by the decorator.
        test._hypothesis_internal_use_settings = settings(
            max_examples=each, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        try:
            test()
            outcome = "holds"
        except AssertionError as error:
            outcome, violated = f"VIOLATED: {str(error).splitlines()[0]}", violated + 1
        print(f"{each:6} draws {time.perf_counter() - begun:6.1f} s  {says}: {outcome}", flush=True)
    print(f"{each * len(properties)} draws of {len(properties)} properties, {violated} violated")
    return min(1, violated)


if __name__ == "__main__":
    sys.exit(main())
