"""Feeds every file reader damaged files: no crash, no hang, no memory above a limit.

python benchmarks/fuzz.py --inputs 1000000 [--readers kineto,swf] [--seed 1] [--memory-gib 3]

A crash is any exception that is not a TraincastError; the input that made it is kept in --keep for a regression test.
Each reader gets inputs in inverse proportion to its cost, all of them in this one process under RLIMIT_AS.
"""

import argparse
import collections
import random
import resource
import sys
import tempfile
import time
import zlib
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "fuzz"), str(TESTS)]

from readers import READERS, feed, mutate  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000, help="over all readers together")
    parser.add_argument("--readers", default="", help="comma-separated names; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory-gib", type=float, default=4.0, help="address space beyond what is used at the start")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-crashes"))
    options = parser.parse_args()
    wanted = [name.strip() for name in options.readers.split(",") if name.strip()] or list(READERS)
    chosen = {name: READERS[name] for name in wanted if READERS[name].is_possible}
    for name in wanted:
        if name not in chosen:
            print(f"left out, a package is missing: {name}")
    weights = {name: 1 / reader.cost for name, reader in chosen.items()}
    total = sum(weights.values())
    bad = 0
    print(f"{'reader':24} {'inputs':>8} {'accepted':>9} {'refused':>9} {'bad':>5} {'CPU µs':>8} {'slowest':>8}")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        for name, reader in chosen.items():
            folder = Path(scratch) / str(zlib.crc32(name.encode()))
            folder.mkdir()
            samples = reader.samples(folder)
            foreign = [sample for kind in ("graph", "kineto") for sample in READERS[kind].samples(folder)]
            others = [*samples, *foreign]
            for sample in samples:
                verdict = feed(reader, sample, folder, limit_s=120)
                if verdict != "accepted":
                    print(f"{name}: its own sample is not accepted: {verdict}")
                    bad += 1
            limit_memory(options.memory_gib)
            draw = random.Random(f"{name} {options.seed}")
            verdicts: collections.Counter[str] = collections.Counter()
            slowest_s, begun = 0.0, time.process_time()
            count = max(1, round(options.inputs * weights[name] / total))
            for _ in range(count):
                content = mutate(draw.choice(samples), draw.choice(others), draw)
                started = time.process_time()
                verdict = feed(reader, content, folder)
                slowest_s = max(slowest_s, time.process_time() - started)
                if verdict not in ("accepted", "refused"):
                    kind = verdict.partition(":" if ": " not in verdict else ": ")[0]
                    if kind not in verdicts:
                        options.keep.mkdir(exist_ok=True)
                        kept = (
                            options.keep
                            / f"{name.replace(' ', '-')}-{zlib.crc32(content):08x}{Path(reader.suffix).suffix}"
                        )
                        kept.write_bytes(content)
                        print(f"  {name}: {verdict} -> {kept}", flush=True)
                    verdict = kind
                verdicts[verdict] += 1
            failed = count - verdicts["accepted"] - verdicts["refused"]
            bad += failed
            mean_us = (time.process_time() - begun) / count * 1e6
            print(
                f"{name:24} {count:8,} {verdicts['accepted']:9,} {verdicts['refused']:9,} {failed:5,} {mean_us:8.0f} "
                f"{slowest_s:7.2f}s", flush=True,
            )  # fmt: skip
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak memory {peak_bytes / 2**20:,.0f} MiB; {bad} bad")
    return 1 if bad else 0


def limit_memory(extra_gib: float) -> None:
    """Address space beyond what is mapped now; libraries map much that they never touch."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + int(extra_gib * 2**30), resource.RLIM_INFINITY))


if __name__ == "__main__":
    sys.exit(main())
