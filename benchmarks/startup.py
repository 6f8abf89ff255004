"""CPU seconds of whole commands, start-up included: python benchmarks/startup.py [REPEATS]."""

import resource
import subprocess
import sys

COMMANDS = {
    "--help": (["--help"], 0.3),
    "forecast --help": (["forecast", "--help"], 0.3),
    "forecast gpt2-xl (catalogue)": (
        ["forecast", "gpt2-xl", "-d", "a100-80g", "--nodes", "2", "-g", "8", "-b", "8", "--seq", "1024"],
        1.0,
    ),
}


def cpu_seconds(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "traincast", *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{'command':<32}{'best':>8}{'aim':>8}   CPU seconds, best of {repeats}")
    for name, (arguments, aim_s) in COMMANDS.items():
        best_s = min(cpu_seconds(arguments) for _ in range(repeats))
        print(f"{name:<32}{best_s:>8.3f}{aim_s:>8.2f}")


if __name__ == "__main__":
    main()
