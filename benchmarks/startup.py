"""CPU seconds of whole commands, start-up included: python benchmarks/startup.py [REPEATS] [--beside FOLDER].

Bytecode is kept in a folder of its own and written before the clock starts, as on the machine of somebody who has used the
command before. `--beside`: the src folder of another version, whose commands are run in turns with ours, so that the load of
the machine does not matter.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

GIVEN = ["-d", "a100-80g", "--nodes", "2", "-g", "8", "-b", "2", "--seq", "1024"]
FULL = ["--recompute", "full"]
COMMANDS = {
    "--help": (["--help"], 0.25),
    "forecast --help": (["forecast", "--help"], 0.5),
    "forecast gpt2-xl, a given plan": (["forecast", "gpt2-xl", *GIVEN, "--dp", "16"], 0.35),
    "forecast llama-3-8b, a given plan": (
        [
            "forecast",
            "llama-3-8b",
            *["--gpus", "8xh100", "--dp", "8", "--zero", "2", "--micro-batches", "8", "-b", "1", "--recompute", "full"],
        ],
        0.35,
    ),
    "plan llama-3-8b --gpus 8xh100": (["plan", "llama-3-8b", "--gpus", "8xh100"], 1.2),
}
OURS = Path(__file__).resolve().parents[1] / "src"


def cpu_seconds(arguments: list[str], source: Path, kept: str) -> float:
    unset = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONPYCACHEPREFIX")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"PYTHONPATH": str(source), "PYTHONPYCACHEPREFIX": kept, "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "traincast", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repeats", nargs="?", type=int, default=5)
    parser.add_argument("--beside", type=Path, help="the src folder of another version")
    asked = parser.parse_args()
    sources = [OURS, *([asked.beside.resolve()] if asked.beside else [])]
    print(f"{'command':<36}{'ours':>8}{'aim':>8}", f"{'other':>8}{'ratio':>8}" if asked.beside else "", end="")
    print(f"   CPU seconds, best of {asked.repeats}")
    with tempfile.TemporaryDirectory() as kept:
        for name, (arguments, aim_s) in COMMANDS.items():
            times: dict[Path, list[float]] = {source: [] for source in sources}
            for _ in range(asked.repeats + 1):
                for source in sources:
                    times[source].append(cpu_seconds(arguments, source, kept))
            # The first of each wrote the bytecode.
            best = [min(each[1:]) for each in times.values()]
            print(f"{name:<36}{best[0]:>8.3f}{aim_s:>8.2f}", end="")
            print(f" {best[1]:>8.3f}{best[0] / best[1]:>8.2f}" if asked.beside else "")


if __name__ == "__main__":
    main()
