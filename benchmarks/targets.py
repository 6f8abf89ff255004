"""CPU seconds of what each `make` target runs, children included: python benchmarks/targets.py [TARGET ...] [--list].

The recipes are read from the Makefile and run with this Python's folder as $(BIN), so that no environment is built.
"""

import argparse
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUICK = ("lint", "types", "layers", "fast-test", "docs")
"""What is measured when nothing is named; the others take minutes to hours or need ../shared, root or the network."""


def read_recipes() -> dict[str, list[str]]:
    recipes: dict[str, list[str]] = {}
    target = ""
    for line in (ROOT / "Makefile").read_text().splitlines():
        found = re.match(r"([a-z-]+):", line)
        if found:
            target = found[1]
            recipes[target] = []
        elif not line.startswith("\t"):
            target = ""
        elif target:
            recipes[target].append(line.strip().lstrip("@").replace("$(BIN)", str(Path(sys.executable).parent)))
    return recipes


def measure(commands: list[str]) -> tuple[float, float, int]:
    """(CPU seconds, seconds, exit code of the first command that failed)."""
    before, started, code = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), 0
    for command in commands:
        code = code or subprocess.run(
            command, shell=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, check=False
        ).returncode  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent_s, time.monotonic() - started, code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=QUICK)
    parser.add_argument("--list", action="store_true", help="the commands of every target")
    asked = parser.parse_args()
    recipes = read_recipes()
    if asked.list:
        for name, commands in recipes.items():
            print(f"{name}: {'; '.join(commands) or 'only others'}")
        return
    print(f"{'target':<16}{'CPU s':>8}{'s':>8}  exit code")
    for name in asked.targets:
        spent_s, passed_s, code = measure(recipes[name])
        print(f"{name:<16}{spent_s:>8.1f}{passed_s:>8.1f}  {code}", flush=True)


if __name__ == "__main__":
    main()
