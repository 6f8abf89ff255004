"""Feeds every file reader damaged files: no crash, no hang, no memory above a limit.

python benchmarks/fuzz.py --inputs 1000000 [--readers kineto,swf] [--seed 1] [--memory-gib 1] [--feedback 0.01] [--record FILE]

Half of the inputs are valid files changed by their own grammar (tests/fuzz/grammar.py), so that they can be parsed; half have
bytes changed anyhow. A share of the inputs is traced: one that runs lines of ours which no input ran before joins the samples.
An input got past the first check when it ran lines that no garbage runs. A crash is any exception that is not a
TraincastError; the input that made it is kept in --keep for a regression test. Each reader gets inputs in inverse proportion
to its cost, all of them in this one process under RLIMIT_AS.
"""

import argparse
import collections
import json
import random
import resource
import sys
import tempfile
import time
import zlib
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "fuzz"), str(TESTS)]

from grammar import covered_lines, mutate_by_grammar  # noqa: E402
from readers import CPU_LIMIT_S, READERS, Reader, feed, mutate  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000, help="over all readers together")
    parser.add_argument("--readers", default="", help="comma-separated names; default: all")
    parser.add_argument("--most-cost", type=float, default=1e9, help="only readers that cost no more than this")
    parser.add_argument("--least-cost", type=float, default=0.0, help="only readers that cost at least this")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no reader after this")
    parser.add_argument("--record", type=Path, help="a JSON file that adds up the counts of several runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory-gib", type=float, default=4.0, help="address space beyond what is used at the start")
    parser.add_argument("--feedback", type=float, default=0.01, help="share of the inputs that is traced")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-crashes"))
    options = parser.parse_args()
    wanted = [name.strip() for name in options.readers.split(",") if name.strip()] or list(READERS)
    chosen = {
        name: READERS[name]
        for name in wanted
        if READERS[name].is_possible and options.least_cost <= READERS[name].cost <= options.most_cost
    }
    end_s = time.monotonic() + 60 * options.minutes
    for name in wanted:
        if not READERS[name].is_possible:
            print(f"left out, a package is missing: {name}")
    weights = {name: 1 / reader.cost for name, reader in chosen.items()}
    total = sum(weights.values())
    bad = inputs = 0
    print("| reader | inputs | accepted | refused | bad | past the first check | lines reached | CPU µs | slowest s |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        for name, reader in chosen.items():
            if time.monotonic() > end_s:
                break
            count = max(1, round(options.inputs * weights[name] / total))
            campaign = Campaign(name, reader, Path(scratch), options)
            bad += campaign.run(count)
            inputs += count
            print(campaign.row(), flush=True)
            if options.record:
                campaign.add_to(options.record)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"\n{inputs:,} inputs, {bad} bad, at most {peak_bytes / 2**20:,.0f} MiB resident")
    return 1 if bad else 0


class Campaign:
    """All inputs of one reader."""

    def __init__(self, name: str, reader: Reader, scratch: Path, options: argparse.Namespace) -> None:
        self.name, self.reader, self.options = name, reader, options
        self.folder = scratch / str(zlib.crc32(name.encode()))
        self.folder.mkdir()
        self.draw = random.Random(f"{name} {options.seed}")
        self.samples = reader.samples(self.folder)
        foreign = [sample for kind in ("graph", "kineto") for sample in READERS[kind].samples(self.folder)]
        self.others = [*self.samples, *foreign]
        self.verdicts: collections.Counter[str] = collections.Counter()
        self.slowest_s = self.mean_us = 0.0
        self.traced = self.past = 0
        self.known: set[int] = set()

    def run(self, count: int) -> int:
        for sample in self.samples:
            verdict = feed(self.reader, sample, self.folder, limit_s=120)
            if verdict != "accepted":
                print(f"{self.name}: its own sample is not accepted: {verdict}")
                self.verdicts["not accepted"] += 1
        # What garbage reaches is the first check.
        first = set().union(*(self._trace(content) for content in (b"\xff" * 50, self.draw.randbytes(400), b"garbage")))
        self.known |= first
        limit_memory(self.options.memory_gib)
        begun = time.process_time()
        for _ in range(count):
            change = mutate_by_grammar if self.draw.random() < 0.5 else mutate
            content = change(self.draw.choice(self.samples), self.draw.choice(self.others), self.draw)
            if self.draw.random() < self.options.feedback:
                self._learn(content, first)
            else:
                self._feed(content)
        self.mean_us = (time.process_time() - begun) / count * 1e6
        self.count = count
        return count - self.verdicts["accepted"] - self.verdicts["refused"] + 2 * self.verdicts["not accepted"]

    def _learn(self, content: bytes, first: set[int]) -> None:
        lines = self._trace(content, judged=True)
        self.traced += 1
        self.past += bool(lines - first)
        if lines - self.known and len(self.samples) < 400 and len(content) < 100_000:
            self.samples.append(content)
        self.known |= lines

    def _trace(self, content: bytes, *, judged: bool = False) -> set[int]:
        # Tracing is slow, so the time of a traced input says nothing.
        if judged:
            return covered_lines(lambda: self._feed(content, limit_s=100.0, timed=False))
        return covered_lines(lambda: feed(self.reader, content, self.folder, limit_s=100.0))

    def _feed(self, content: bytes, *, limit_s: float = CPU_LIMIT_S, timed: bool = True) -> None:
        started = time.process_time()
        verdict = feed(self.reader, content, self.folder, limit_s=limit_s)
        if timed:
            self.slowest_s = max(self.slowest_s, time.process_time() - started)
        if verdict not in ("accepted", "refused"):
            kind = verdict.partition(": ")[0]
            if kind not in self.verdicts:
                self.options.keep.mkdir(exist_ok=True)
                name = f"{self.name.replace(' ', '-')}-{zlib.crc32(content):08x}{Path(self.reader.suffix).suffix}"
                (self.options.keep / name).write_bytes(content)
                print(f"  {self.name}: {verdict} -> {self.options.keep / name}", flush=True)
            verdict = kind
        self.verdicts[verdict] += 1

    def add_to(self, record: Path) -> None:
        """The counts of this run beside those of others; sizes and times are the largest of all."""
        known = json.loads(record.read_text()) if record.is_file() else {}
        now = {
            "inputs": self.count, "accepted": self.verdicts["accepted"], "refused": self.verdicts["refused"],
            "bad": self.count - self.verdicts["accepted"] - self.verdicts["refused"], "traced": self.traced, "past": self.past,
        }  # fmt: skip
        before = known.get(self.name, {})
        known[self.name] = {
            **{key: value + before.get(key, 0) for key, value in now.items()},
            "lines": max(len(self.known), before.get("lines", 0)),
            "slowest_s": round(max(self.slowest_s, before.get("slowest_s", 0.0)), 2),
            "peak_mib": max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, before.get("peak_mib", 0)),
        }
        record.write_text(json.dumps(known, indent=1) + "\n")

    def row(self) -> str:
        failed = self.count - self.verdicts["accepted"] - self.verdicts["refused"]
        seen = self.verdicts
        past = f"{self.past / self.traced:.0%} of {self.traced:,}" if self.traced else "-"
        return (
            f"| {self.name} | {self.count:,} | {seen['accepted']:,} | {seen['refused']:,} | {failed} | {past} | "
            f"{len(self.known):,} | {self.mean_us:,.0f} | {self.slowest_s:.2f} |"
        )


def limit_memory(extra_gib: float) -> None:
    """Address space beyond what is mapped now; libraries map much that they never touch."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + int(extra_gib * 2**30), resource.RLIM_INFINITY))


if __name__ == "__main__":
    sys.exit(main())
