"""Looks every installed package up in the databases of known vulnerabilities, and says how many could be looked up.

python benchmarks/audit.py [--write locked.txt]

Exits with 0 where every package was looked up and none is vulnerable, with 1 where one is, and with 2 where some could not be
looked up: pip-audit alone calls that "no known vulnerabilities". Without a network it still writes the locked set, so that it
can be looked up elsewhere, and says which requirements do not fit each other.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SERVICES = ("pypi", "osv")


def freeze() -> str:
    command = [sys.executable, "-m", "pip", "freeze", "--exclude-editable"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    # A local build such as 2.13.0+cpu is the release it was made from; what came from a path has no release.
    return "\n".join(line.partition("+")[0] for line in lines if "==" in line) + "\n"


def ask(locked: Path, service: str) -> list[dict[str, Any]] | str:
    """What a database says of every package, or why it cannot be asked."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(locked), "--no-deps", "--disable-pip"]
    command += ["--vulnerability-service", service, "--format", "json", "--progress-spinner", "off", "--timeout", "15"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return (done.stderr.strip().splitlines() or ["no words"])[-1][:200]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="keep the locked set here")
    options = parser.parse_args()
    text = freeze()
    if options.write:
        options.write.write_text(text)
    fitting = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    print(f"pip check: {fitting.stdout.strip() or fitting.stderr.strip()}")
    judged: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        locked = Path(folder) / "locked.txt"
        locked.write_text(text)
        for service in SERVICES:
            found = ask(locked, service)
            if isinstance(found, str):
                print(f"{service}: cannot be asked: {found}")
                continue
            told = {each["name"]: each["vulns"] for each in found if "vulns" in each}
            print(f"{service}: {len(told)} of {len(found)} packages looked up")
            judged |= told
    names = [line.partition("==")[0] for line in text.splitlines()]
    known = {name.lower().replace("_", "-"): vulns for name, vulns in judged.items()}
    open_ones = [name for name in names if name.lower().replace("_", "-") not in known]
    bad = {name: vulns for name, vulns in judged.items() if vulns}
    for name, vulns in bad.items():
        print(f"{name}: {', '.join(each['id'] for each in vulns)}")
    print(
        f"{len(names)} packages locked, {len(bad)} with known vulnerabilities, {len(open_ones)} could not be looked up"
    )
    if open_ones and not judged:
        print(
            "NOT AUDITED: no database of vulnerabilities can be reached from here; run this where pypi.org or osv.dev can"
        )
        if options.write:
            print(f"or there: pip-audit -r {options.write} --no-deps --disable-pip")
    return 1 if bad else 2 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
