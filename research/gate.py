"""Scores every publisher against the last release: python -m research.gate [--fast] [--ways WAY...] [--only PUBLISHER...]

An even choice of measured rows of every source in ../shared/cases (the check tables included) is asked in three ways: as the
package ships; left out, which is without what runs of the publisher taught; and given one measured run of the same job on another
number of devices or another batch. Sources weigh alike. What the last release said about the same rows is committed beside this
file. The gate fails where a source of ten rows or more got worse by more than 2 points, or the mean over sources by 0.3, unless
`accepted.toml` names it with the reason, and where a given run makes such a source as much worse than it is without.
`--write FILE` keeps the answers, which makes the table of a release.
"""

import argparse
import contextlib
import itertools
import math
import multiprocessing
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from research.fits.stacks import load_measured
from research.fits.untaught import Untaught, publisher_of
from traincast.accuracy import answer_rows, hide_results, parse_case, read_rows, translate
from traincast.accuracy._cases import parse_observation
from traincast.errors import TraincastError
from traincast.forecast import Engine

HERE = Path(__file__).resolve().parent
CASES = HERE.parents[1] / "shared" / "cases"
RELEASE = HERE / "results" / "release-0.4.0.parquet"
ACCEPTED = HERE / "accepted.toml"
SHIPPED, LEFT_OUT, GIVEN = "as shipped", "left out", "given a run"
WAYS = (SHIPPED, LEFT_OUT, GIVEN)
MOST_ROWS, FAST_ROWS = 60, 24
"""Of one source, evenly over its models, devices and numbers of nodes."""
MOST_ASKED = 24
"""Rows of one source that are asked again with a run given, or left out."""
FEW_ASKED, FEW_JOBS = 12, 6
"""The same of the fast version."""
ENOUGH = 10
"""Rows of a source that may fail the gate by itself."""
WORSE, WORSE_ON_AVERAGE = 2.0, 0.3
"""Points of mean error."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A forecast of one row, asked in one way; ends are not a number where no interval was asked for."""

    case_id: str
    source: str
    way: str
    step_s: float
    low_s: float = math.nan
    high_s: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Rows that are asked, and what was measured."""

    rows: Mapping[str, list[Row]]
    """By source."""
    every: Mapping[str, list[Row]]
    """All timed rows of the sources, of which a given run is taken."""
    measured_s: Mapping[str, float]
    """By case."""


def pick(rows: Sequence[Row], most: int) -> list[int]:
    """Places of rows in turns over models, devices and numbers of nodes, the same in every run; fewer are among the more."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        groups[tuple(str(row.get(name)) for name in ("model", "gpu", "n_nodes"))].append(place)
    spread = [[own[i] for i in np.random.default_rng(0).permutation(len(own))] for own in groups.values()]
    turns = (place for turn in itertools.zip_longest(*spread) for place in turn if place is not None)
    return sorted(itertools.islice(turns, most))


def read_sample(most: int, *, only: Sequence[str] = (), cases: Path = CASES) -> Sample:
    every: dict[str, list[Row]] = defaultdict(list)
    measured: dict[str, float] = {}
    for path in [*sorted(cases.glob("*.parquet")), *sorted((cases / "check").glob("*.parquet"))]:
        for row in read_rows(str(path)):
            with contextlib.suppress(TraincastError):
                seen = parse_observation(row)
                source = str(row.get("source"))
                if seen.scores_time and seen.step_s and (not only or source in only or publisher_of(source) in only):
                    every[source].append(row)
                    measured[str(row["case_id"])] = seen.step_s
    rows = {source: [own[place] for place in pick(own, most)] for source, own in sorted(every.items())}
    return Sample(rows=rows, every=every, measured_s=measured)


def job_of(row: Row) -> tuple[str, ...]:
    return tuple(str(row.get(name)) for name in ("source", "model", "gpu", "dtype", "framework", "seq_len", "compiled"))


def size_of(row: Row) -> tuple[float, float]:
    return float(row.get("n_gpus") or 1), float(row.get("global_batch") or row.get("micro_batch") or 0)


def pair_jobs(sample: Sample, *, most_asked: int, most_jobs: int | None = None) -> list[tuple[Row, list[Row]]]:
    """A given run (the smallest of its job) and the rows of the sample that are asked with it."""
    found: list[tuple[Row, list[Row]]] = []
    for source, rows in sample.rows.items():
        jobs: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for row in rows:
            jobs[job_of(row)].append(row)
        smallest: dict[tuple[str, ...], Row] = {}
        for row in sample.every[source]:
            job = job_of(row)
            if job not in smallest or size_of(row) < size_of(smallest[job]):
                smallest[job] = row
        pairs = []
        for job, own in sorted(jobs.items()):
            others = [row for row in own if size_of(row) != size_of(smallest[job])]
            if others:
                pairs.append((smallest[job], others))
        pairs = [pairs[place] for place in _evenly(len(pairs), most_jobs or len(pairs))]
        share = max(1, most_asked // max(1, len(pairs)))
        found += [(given, [others[place] for place in _evenly(len(others), share)]) for given, others in pairs]
    return found


def _evenly(number: int, most: int) -> list[int]:
    return sorted({round(x) for x in np.linspace(0, number - 1, min(most, number))}) if number else []


def _keep(rows: Sequence[Row], way: str, predictions: Iterable[Any]) -> list[Said]:
    return [
        Said(case_id=str(row["case_id"]), source=str(row["source"]), way=way, step_s=one.step_s, low_s=one.step_low_s,
             high_s=one.step_high_s)
        for row, one in zip(rows, predictions, strict=True) if one.answered
    ]  # fmt: skip


_untaught: list[Untaught] = []
"""Made before the processes that ask fork."""


def ask_shipped(rows: Sequence[Row]) -> list[Said]:
    return _keep(rows, SHIPPED, answer_rows(rows))


def ask_given(pair: tuple[Row, list[Row]]) -> list[Said]:
    given, rows = pair
    return _keep(rows, GIVEN, answer_rows(rows, given=[given]))


def ask_left_out(rows: Sequence[Row]) -> list[Said]:
    found = []
    for row, hidden in zip(rows, hide_results(list(rows)), strict=True):
        with contextlib.suppress(TraincastError):
            question = translate(parse_case(hidden))
            engine, job = _untaught[0].without(publisher_of(str(row["source"])), question)
            program = engine.lower(job, question.cluster, question.parallelism)
            estimates = engine.cost(program, job, question.cluster)
            step_s = engine.simulate(program, estimates, job, question.cluster).duration_s
            found.append(Said(case_id=str(row["case_id"]), source=str(row["source"]), way=LEFT_OUT, step_s=step_s))
    return found


def taught_by(cases: Path = CASES) -> set[str]:
    """Publishers of the tables that fits see; others taught nothing, so leaving them out changes nothing."""
    return {
        publisher_of(str(row.get("source"))) for path in sorted(cases.glob("*.parquet")) for row in read_rows(str(path))
    }


def ask_all(sample: Sample, *, ways: Sequence[str], fast: bool, workers: int = 2) -> list[Said]:
    work: list[tuple[Any, Any]] = []
    if SHIPPED in ways:
        for own in sample.rows.values():
            ordered = sorted(own, key=lambda row: (str(row.get("model")), str(row.get("dtype"))))
            work += [(ask_shipped, ordered[at : at + 25]) for at in range(0, len(ordered), 25)]
    if GIVEN in ways:
        pairs = pair_jobs(sample, most_asked=FEW_ASKED if fast else MOST_ASKED, most_jobs=FEW_JOBS if fast else None)
        work += [(ask_given, pair) for pair in pairs]
    if LEFT_OUT in ways:
        taught = taught_by()
        _untaught[:] = [
            Untaught(load_measured([str(path) for path in sorted(CASES.glob("*.parquet"))]), shipped=Engine())
        ]
        most = FEW_ASKED if fast else MOST_ASKED
        for source, own in sample.rows.items():
            if publisher_of(source) in taught:
                work.append((ask_left_out, [own[place] for place in _evenly(len(own), most)]))
    work.sort(key=lambda item: item[0] is not ask_left_out)
    context = multiprocessing.get_context("fork")
    found: list[Said] = []
    with context.Pool(workers) as pool:
        for done, said in enumerate(pool.imap_unordered(_call, work), 1):
            found += said
            if done % 50 == 0:
                sys.stderr.write(f"{done} of {len(work)}\n")
    if LEFT_OUT in ways:
        # Nothing was fitted to these, so the package as it ships has not seen them.
        asked_again = {one.source for one in found if one.way == LEFT_OUT}
        found += [
            Said(case_id=one.case_id, source=one.source, way=LEFT_OUT, step_s=one.step_s)
            for one in found if one.way == SHIPPED and one.source not in asked_again
        ]  # fmt: skip
    return sorted(found, key=lambda one: (one.way, one.source, one.case_id))


def _call(item: tuple[Any, Any]) -> list[Said]:
    work, argument = item
    return list(work(argument))


def write_table(path: Path, said: Sequence[Said]) -> None:
    columns = {
        name: [getattr(one, name) for one in said] for name in ("case_id", "source", "way", "step_s", "low_s", "high_s")
    }
    for name in ("step_s", "low_s", "high_s"):
        columns[name] = [float(f"{value:.5g}") for value in columns[name]]
    pyarrow.parquet.write_table(pyarrow.table(columns), path, compression="zstd", compression_level=19)


def read_table(path: Path) -> list[Said]:
    return [Said(**row) for row in pyarrow.parquet.read_table(path).to_pylist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one source and way, in percent."""

    n: int
    mean: float
    median: float
    p90: float
    bias: float
    coverage: float = math.nan
    width: float = math.nan
    """Median of the interval's, as a share of the forecast."""


def score(said: Sequence[Said], measured_s: Mapping[str, float]) -> Figures:
    truth = np.array([measured_s[one.case_id] for one in said])
    step, low, high = (np.array([getattr(one, name) for one in said]) for name in ("step_s", "low_s", "high_s"))
    signed = 100 * (step / truth - 1)
    size = np.abs(signed)
    covered, width = math.nan, math.nan
    if np.isfinite(low).all():
        covered = float(100 * np.mean((low <= truth) & (truth <= high)))
        width = float(100 * np.median((high - low) / step))
    return Figures(
        n=len(said), mean=float(size.mean()), median=float(np.median(size)), p90=float(np.quantile(size, 0.9)),
        bias=float(signed.mean()), coverage=covered, width=width,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Of one source and way: the release's figures and today's, on rows that both answered."""

    source: str
    way: str
    before: Figures
    now: Figures
    refused: int = 0
    """Rows that the release answered and today's package does not."""

    @property
    def worse(self) -> float:
        return self.now.mean - self.before.mean


def compare(before: Sequence[Said], now: Sequence[Said], sample: Sample) -> list[Change]:
    asked = {str(row["case_id"]) for own in sample.rows.values() for row in own}
    old = {(one.way, one.case_id): one for one in before}
    new: dict[tuple[str, str], list[Said]] = defaultdict(list)
    for one in now:
        if (one.way, one.case_id) in old:
            new[one.way, one.source].append(one)
    answered = {one.case_id for one in now if one.way == SHIPPED}
    found = []
    for (way, source), own in new.items():
        then = [old[way, one.case_id] for one in own]
        lost = [one for one in before if one.way == way == SHIPPED and one.source == source and one.case_id in asked]
        found.append(
            Change(
                source=source, way=way, before=score(then, sample.measured_s), now=score(own, sample.measured_s),
                refused=sum(one.case_id not in answered for one in lost),
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: (WAYS.index(one.way), one.source))


def average(changes: Sequence[Change]) -> Change:
    """Sources weigh alike."""

    def mean(side: str) -> Figures:
        own = [getattr(one, side) for one in changes]
        names = ("mean", "median", "p90", "bias", "coverage", "width")
        return Figures(
            n=sum(one.n for one in own),
            **{name: float(np.mean([getattr(one, name) for one in own])) for name in names},
        )

    return Change(source="all, alike", way=changes[0].way, before=mean("before"), now=mean("now"))


def read_accepted(path: Path = ACCEPTED) -> dict[tuple[str, str], float]:
    """Mean errors up to which a source may go, by way and source; every entry says why."""
    if not path.is_file():
        return {}
    entries = tomllib.loads(path.read_text()).get("accepted", [])
    for one in entries:
        if not one.get("reason"):
            raise SystemExit(f"{path.name}: {one} gives no reason")
        if one.get("way") not in WAYS:
            raise SystemExit(f"{path.name}: way {one.get('way')!r}; known ways: {', '.join(WAYS)}")
    return {(one["way"], one["source"]): float(one["up_to"]) for one in entries}


def judge(changes: Sequence[Change], accepted: Mapping[tuple[str, str], float]) -> list[str]:
    """What fails the gate, in words."""
    failures = []
    for way in WAYS:
        own = [one for one in changes if one.way == way]
        if not own:
            continue
        for one in [*own, average(own)]:
            alone = one.source != "all, alike"
            limit = WORSE if alone else WORSE_ON_AVERAGE
            if one.refused:
                failures.append(f"{one.source}: {one.refused} rows that were answered are refused")
            if (alone and one.before.n < ENOUGH) or one.worse <= limit:
                continue
            if one.now.mean > accepted.get((way, one.source), -math.inf):
                failures.append(f"{one.source}, {way}: mean {one.before.mean:.1f} -> {one.now.mean:.1f}%")
    return failures


def judge_given(said: Sequence[Said], sample: Sample) -> list[str]:
    """Sources of ten rows or more that a given run made worse than the package is without it, in words."""
    plain = {one.case_id: one for one in said if one.way == SHIPPED}
    given = [one for one in said if one.way == GIVEN and one.case_id in plain]
    failures = []
    for source in sorted({one.source for one in given}):
        own = [one for one in given if one.source == source]
        without = score([plain[one.case_id] for one in own], sample.measured_s).mean
        with_it = score(own, sample.measured_s).mean
        if len(own) >= ENOUGH and with_it > without + WORSE:
            failures.append(f"{source}: mean {without:.1f}% without the given run, {with_it:.1f}% with it")
    return failures


HEADINGS = ("publisher", "n", "mean", "median", "p90", "bias", "coverage", "width")


def tabulate(changes: Sequence[Change]) -> str:
    """By way: a line for each source, then all, every number as release -> today."""
    parts = []
    for way in WAYS:
        own = [one for one in changes if one.way == way]
        if own:
            rows = [_line(one) for one in [*own, average(own)]]
            rule = ["---", *["--:"] * (len(HEADINGS) - 1)]
            body = "\n".join(f"| {' | '.join(row)} |" for row in (HEADINGS, rule, *rows))
            parts.append(f"{way.capitalize()} (release -> today, %)\n\n{body}")
    return "\n\n".join(parts)


def _line(one: Change) -> list[str]:
    cells = [one.source, str(one.now.n)]
    for name, places in (("mean", 1), ("median", 1), ("p90", 0), ("bias", 0), ("coverage", 0), ("width", 0)):
        before, now = (getattr(side, name) for side in (one.before, one.now))
        sign = "+" if name == "bias" else ""
        cells.append("" if math.isnan(now) else f"{before:{sign}.{places}f} -> {now:{sign}.{places}f}")
    return cells


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="fewer rows, as shipped and given a run")
    parser.add_argument("--ways", nargs="*", choices=WAYS, help="ways to ask; all unless --fast")
    parser.add_argument("--only", nargs="*", default=(), help="sources or publishers; all if none is named")
    parser.add_argument("--release", type=Path, default=RELEASE)
    parser.add_argument("--write", type=Path, help="keep the answers in this table")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    if not CASES.is_dir():
        sys.stdout.write(f"no measured cases at {CASES}: nothing to compare\n")
        return
    began = time.monotonic()
    sample = read_sample(FAST_ROWS if options.fast else MOST_ROWS, only=options.only)
    ways = options.ways or ((SHIPPED, GIVEN) if options.fast else WAYS)
    said = ask_all(sample, ways=ways, fast=options.fast, workers=options.workers)
    if options.write:
        write_table(options.write, said)
    if not options.release.is_file():
        return
    changes = compare(read_table(options.release), said, sample)
    failures = judge(changes, read_accepted()) + judge_given(said, sample)
    sys.stdout.write(f"{tabulate(changes)}\n\n{len(said)} forecasts in {time.monotonic() - began:.0f} s\n")
    if failures:
        sys.stdout.write("worse than the last release:\n" + "\n".join(f"  {one}" for one in failures) + "\n")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
