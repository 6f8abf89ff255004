"""Feeds every file reader damaged files: no crash, no hang, no memory above a limit.

python benchmarks/fuzz.py --inputs 1000000 [--readers 'graph,jobs swf'] [--seed 1] [--memory-gib 1] [--feedback 0.01]
                          [--record FILE [--again] [--minutes 5] [--write PAGE]]

Half of the inputs are valid files changed by their own grammar (tests/fuzz/grammar.py), so that they can be parsed; half have
bytes changed anyhow. A share of the inputs is traced: one that runs lines of ours which no input ran before joins the samples.
An input got past the first check when it ran lines that no garbage runs. A crash is any exception that is not a
TraincastError; the input that made it is kept in --keep for a regression test. Each reader gets inputs in inverse proportion
to its cost, all of them in this one process under RLIMIT_AS. With a record, counts are added up after every few thousand
inputs, and a later run goes on where it stands until each reader has its share of the inputs.
"""

import argparse
import collections
import json
import math
import random
import resource
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

CHUNK = 4000
"""Inputs between two entries of the record."""
Counts = dict[str, dict[str, Any]]

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
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after this")
    parser.add_argument("--record", type=Path, help="a JSON file that adds up the counts of several runs")
    parser.add_argument("--again", action="store_true", help="begin the record anew instead of going on")
    parser.add_argument("--write", type=Path, help="a page about the record")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory-gib", type=float, default=1.0, help="address space beyond what is used at the start")
    parser.add_argument("--feedback", type=float, default=0.01, help="share of the inputs that is traced")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-crashes"))
    options = parser.parse_args()
    wanted = [name.strip() for name in options.readers.split(",") if name.strip()] or list(READERS)
    if unknown := set(wanted) - set(READERS):
        parser.error(f"unknown readers: {', '.join(sorted(unknown))}; known: {', '.join(READERS)}")
    chosen = {
        name: READERS[name]
        for name in wanted
        if READERS[name].is_possible and options.least_cost <= READERS[name].cost <= options.most_cost
    }
    end_s = time.monotonic() + 60 * options.minutes
    for name in wanted:
        if not READERS[name].is_possible:
            print(f"left out, a package is missing: {name}")
    if options.again and options.record:
        options.record.unlink(missing_ok=True)
    shares = share_out(options.inputs, chosen)
    bad = inputs = 0
    print("| reader | inputs | accepted | refused | bad | past the first check | lines reached | CPU µs | slowest s |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        for name, reader in chosen.items():
            before = load_record(options.record).get(name, {}).get("inputs", 0)
            if time.monotonic() > end_s or before >= shares[name]:
                continue
            campaign = Campaign(name, reader, Path(scratch), options, seed=f"{name} {options.seed} {before}")
            bad += campaign.run(shares[name] - before, end_s)
            inputs += campaign.count
            print(campaign.row(), flush=True)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"\n{inputs:,} inputs, {bad} bad, at most {peak_bytes / 2**20:,.0f} MiB resident")
    if options.write:
        options.write.write_text(format_page(load_record(options.record)), encoding="utf-8")
    return 1 if bad else 0


def share_out(inputs: int, chosen: Mapping[str, Reader]) -> dict[str, int]:
    """In inverse proportion to cost, rounded up so that no reader goes without."""
    total = sum(1 / reader.cost for reader in chosen.values())
    return {name: math.ceil(inputs / reader.cost / total) for name, reader in chosen.items()}


def load_record(record: Path | None) -> Counts:
    found: Counts = json.loads(record.read_text()) if record and record.is_file() else {}
    return found


def format_page(known: Counts) -> str:
    def total(key: str) -> int:
        return int(sum(told[key] for told in known.values()))

    dates = sorted({told["date"] for told in known.values()})
    between = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    slowest_s, peak_mib = (max(told[key] for told in known.values()) for key in ("slowest_s", "peak_mib"))
    lines = [
        "# Damaged files", "",
        f"`make fuzz` gives damaged files to {len(known)} readers.",
        f"{between}: {total('inputs'):,} inputs, **{total('bad')} bad**.",
        f"Bad is a traceback, more than {CPU_LIMIT_S:g} s of CPU time, or more than 1 GiB beyond what the libraries map.",
        f"The slowest took {slowest_s:.2f} s; {peak_mib:,} MiB were resident at most, with every library loaded.", "",
        "Half of the inputs are valid files changed by their own grammar (`tests/fuzz/grammar.py`).",
        "The other half have bytes changed anyhow.",
        "A share is traced: what runs lines of ours that no input ran before joins the samples.",
        "An input got past the first check when it ran lines that no garbage runs; the share is of the traced ones.",
        f"All readers together: **{total('past') / max(1, total('traced')):.0%}** of {total('traced'):,}.", "",
        "A reader gets inputs in inverse proportion to its cost. `benchmarks/fuzz.json` holds the counts.", "",
        "| reader | inputs | accepted | refused | bad | past the first check | lines reached | CPU µs | slowest s |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    for name, told in known.items():
        past = f"{told['past'] / told['traced']:.0%} of {told['traced']:,}" if told["traced"] else "-"
        lines.append(
            f"| {name} | {told['inputs']:,} | {told['accepted']:,} | {told['refused']:,} | {told['bad']} | {past} | "
            f"{told['lines']:,} | {1e6 * told['cpu_s'] / told['inputs']:,.0f} | {told['slowest_s']:.2f} |"
        )
    return "\n".join([*lines, ""])


class Campaign:
    """All inputs of one reader."""

    def __init__(self, name: str, reader: Reader, scratch: Path, options: argparse.Namespace, *, seed: str) -> None:
        self.name, self.reader, self.options = name, reader, options
        self.folder = scratch / str(zlib.crc32(name.encode()))
        self.folder.mkdir()
        self.draw = random.Random(seed)
        self.samples = reader.samples(self.folder)
        foreign = [sample for kind in ("graph", "kineto compare") for sample in READERS[kind].samples(self.folder)]
        self.others = [*self.samples, *foreign]
        self.verdicts: collections.Counter[str] = collections.Counter()
        self.slowest_s = self.cpu_s = 0.0
        self.count = self.traced = self.past = 0
        # What joins the samples is fed again and again: it must not be much larger than what a user writes.
        self.longest = 4 * max(len(sample) for sample in self.samples)
        self.known: set[int] = set()

    def run(self, count: int, end_s: float) -> int:
        """Feed so many, or until the time is over; how many were neither accepted nor refused."""
        for sample in self.samples:
            verdict = feed(self.reader, sample, self.folder, limit_s=120)
            if verdict != "accepted":
                print(f"{self.name}: its own sample is not accepted: {verdict}")
                self.verdicts["not accepted"] += 1
        # What garbage reaches is the first check.
        first = set().union(*(self._trace(content) for content in (b"\xff" * 50, self.draw.randbytes(400), b"garbage")))
        self.known |= first
        limit_memory(self.options.memory_gib)
        # A dear reader has few inputs, and still needs some that were traced.
        self.feedback = max(self.options.feedback, min(0.2, 100 / count))
        while self.count < count and time.monotonic() < end_s:
            before = self._counts()
            begun = time.process_time()
            size = min(CHUNK, count - self.count)
            for _ in range(size):
                self._draw_one(first)
            self.count += size
            self.cpu_s += time.process_time() - begun
            if self.options.record:
                self._add_to(self.options.record, before)
        return self._bad() + self.verdicts["not accepted"]

    def _draw_one(self, first: set[int]) -> None:
        change = mutate_by_grammar if self.draw.random() < 0.5 else mutate
        content = change(self.draw.choice(self.samples), self.draw.choice(self.others), self.draw)
        if self.draw.random() < self.feedback:
            self._learn(content, first)
        else:
            self._feed(content)

    def _bad(self) -> int:
        return self.count - self.verdicts["accepted"] - self.verdicts["refused"]

    def _learn(self, content: bytes, first: set[int]) -> None:
        lines = self._trace(content, judged=True)
        self.traced += 1
        self.past += bool(lines - first)
        if lines - self.known and len(self.samples) < 400 and len(content) <= self.longest:
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

    def _counts(self) -> dict[str, float]:
        seen = self.verdicts
        return {
            "inputs": self.count, "accepted": seen["accepted"], "refused": seen["refused"], "bad": self._bad(),
            "traced": self.traced, "past": self.past, "cpu_s": self.cpu_s,
        }  # fmt: skip

    def _add_to(self, record: Path, before: Mapping[str, float]) -> None:
        """The counts since `before` beside those of other runs; sizes and times are the largest of all."""
        known = load_record(record)
        told = known.get(self.name, {})
        sums = {key: told.get(key, 0) + value - before[key] for key, value in self._counts().items()}
        known[self.name] = {
            **sums, "cpu_s": round(sums["cpu_s"], 3),
            "lines": max(len(self.known), told.get("lines", 0)),
            "slowest_s": round(max(self.slowest_s, told.get("slowest_s", 0.0)), 2),
            "peak_mib": max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, told.get("peak_mib", 0)),
            "date": f"{date.today()}",
        }  # fmt: skip
        record.write_text(json.dumps(known, indent=1) + "\n")

    def row(self) -> str:
        seen = self.verdicts
        past = f"{self.past / self.traced:.0%} of {self.traced:,}" if self.traced else "-"
        return (
            f"| {self.name} | {self.count:,} | {seen['accepted']:,} | {seen['refused']:,} | {self._bad()} | {past} | "
            f"{len(self.known):,} | {1e6 * self.cpu_s / max(1, self.count):,.0f} | {self.slowest_s:.2f} |"
        )


def limit_memory(extra_gib: float) -> None:
    """Address space beyond what is mapped now; libraries map much that they never touch."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + int(extra_gib * 2**30), resource.RLIM_INFINITY))


if __name__ == "__main__":
    sys.exit(main())
