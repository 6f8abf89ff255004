"""The comparisons with the source papers to tables."""

from collections.abc import Iterator, Mapping, Sequence

from research.papers import Claim, Papers
from research.papers.compare import Line
from research.papers.noise import Noise
from traincast.report import PLAIN, Paint, Table, format_markdown, format_table

_ERRORS = ("n", "mean", "± seeds", "median", "p90", "max", "RMSE ms", "x ours", "RMSE x ours")


def tabulate_papers(found: Papers) -> Iterator[Table]:
    yield Table(
        title="what the papers claim, and what was found",
        headings=("paper", "what", "to reach", "found", "at most here", ""),
        rows=tuple(
            (
                c.paper,
                c.what,
                _amount(c, c.aim),
                _amount(c, c.found),
                "" if c.most is None else _amount(c, c.most),
                _verdict(c),
            )
            for c in found.claims
        ),
        left=frozenset({"paper", "what", ""}),
    )
    if found.noise is not None:
        yield _tabulate_noise(found.noise, found.perfect)
    yield _lines("ScaleDL: each workload left out, all settings", found.scaledl)
    yield _lines("ScaleDL: its baselines on every split", found.every_split)
    yield _lines("ScaleDL on measured GPU steps: each workload, then each chip left out", found.gpus)
    yield Table(
        title="ScaleDL: error of the other one-worker steps after so many measured, layers only",
        headings=("measured steps", "D-optimal", "random", "± seeds"),
        rows=tuple(
            (str(c.num_measured), _percent(c.d_optimal), _percent(c.random), _percent(c.spread)) for c in found.designs
        ),
    )
    yield Table(
        title="DeletePop: whole jobs, start-up included",
        headings=("architecture", "setting", "steps", "measured s", "forecast s", "start-up s", "accuracy"),
        rows=tuple(
            (
                line.job.name, line.job.setting, str(line.job.num_steps), f"{line.job.wall_s:.1f}", f"{line.forecast_s:.1f}",
                f"{line.startup_s:.1f}", _percent(line.accuracy),
            )
            for line in found.jobs
        ),
        left=frozenset({"architecture", "setting"}),
    )  # fmt: skip
    yield Table(
        title="CherryPick: finding the best of the measured settings of an architecture",
        headings=("best is", "method", "searches", "regret", "p90", "within 5%", "runs", "machine s of runs"),
        rows=tuple(
            (
                line.objective, line.method, f"{line.num_searches:,}", _percent(line.regret), _percent(line.p90),
                _percent(line.found_best), f"{line.num_runs:.1f}", f"{line.run_s:.1f}",
            )
            for line in found.searches
        ),
        left=frozenset({"best is", "method"}),
    )  # fmt: skip
    yield _lines("ablation: each part switched off in turn", found.ablation)
    yield Table(
        title="PredictDDL: the workloads where Ernest is farthest behind, architectures left out",
        headings=("method", "architecture", "n", "theirs", "ours", "x ours"),
        rows=tuple(
            (line.method, line.architecture, str(line.num_rows), _percent(line.theirs), _percent(line.ours), f"{line.ratio:.1f}")
            for line in found.best_workloads
        ),
        left=frozenset({"method", "architecture"}),
    )  # fmt: skip
    yield Table(
        title="PredictDDL: the reuse predictor and Ernest",
        headings=("split", "workloads", "method", "n", "architectures", *_ERRORS[1:-1], "up to"),
        rows=tuple(
            (
                row.split, row.workloads, row.method, f"{row.num_rows:,}", str(row.num_architectures), _percent(row.mean),
                _percent(row.spread), _percent(row.median), _percent(row.p90), _percent(row.max),
                f"{1e3 * row.rmse_s:.0f}", f"{row.ratio:.1f}", f"{row.best_ratio:.1f}",
            )
            for row in found.predictddl
            if row.workloads == "all" or row.split == "leave-architecture-out"
        ),
        left=frozenset({"split", "workloads", "method"}),
    )  # fmt: skip


def _tabulate_noise(noise: Noise, perfect: Mapping[str, float]) -> Table:
    again, often = ("" if each is None else _percent(each) for each in (noise.again, noise.often))
    return Table(
        title="what the labels allow",
        headings=("what", "of", "standard deviation or mean error"),
        rows=(
            ("repeats inside a block: its median", f"{noise.num_blocks:,} blocks", _percent(noise.within)),
            ("the machine's drift: what neighbours in time miss together", f"{noise.num_pairs:,} pairs", _percent(noise.drift)),
            ("a block against another of the same step", f"{noise.num_again:,} pairs", again),
            ("a label of one block, from the first two", "", _percent(noise.sigma)),
            ("a label of a step visited often, drift taken out", f"{noise.num_often:,} steps", often),
            *(("mean error that a perfect forecast would show", name, _percent(error)) for name, error in perfect.items()),
        ),
        left=frozenset({"what", "of"}),
    )  # fmt: skip


def format_papers(found: Papers, *, paint: Paint = PLAIN) -> str:
    tables = "\n\n".join(format_table(table, paint=paint) for table in tabulate_papers(found) if table.rows)
    return f"{tables}\n\n{_about(found)}\n"


def format_papers_markdown(found: Papers) -> str:
    tables = "\n\n".join(format_markdown(table) for table in tabulate_papers(found) if table.rows)
    return f"{_about(found)}\n\n{tables}\n"


def _about(found: Papers) -> str:
    gpus = (
        f"{found.num_gpu_steps:,} of one GPU"
        if found.num_gpu_steps
        else "GPU steps left out: their tables are not beside the repository (../shared)"
    )
    return (
        f"{found.num_steps:,} measured steps of {found.num_architectures} architectures, {gpus}; means over "
        f"{len(found.seeds)} seeds; made in {found.cpu_s:.0f} s of CPU time. Relative errors of wall time; x ours: mean "
        "error over that of the first method of the split, on the same rows; at most here: what a perfect forecast would "
        "show, given the noise of the labels."
    )


def _lines(title: str, lines: Sequence[Line]) -> Table:
    rows = []
    for index, line in enumerate(lines):
        split = "" if index and lines[index - 1].split == line.split else line.split
        rows.append(
            (
                split, line.method, f"{line.num_rows:,}", _percent(line.mean), _percent(line.spread), _percent(line.median),
                _percent(line.p90), _percent(line.max), f"{1e3 * line.rmse_s:.1f}", f"{line.ratio:.2f}",
                f"{line.rmse_ratio:.2f}",
            )
        )  # fmt: skip
    return Table(
        title=title, headings=("split", "method", *_ERRORS), rows=tuple(rows), left=frozenset({"split", "method"})
    )


def _amount(claim: Claim, value: float) -> str:
    return _percent(value) if claim.unit == "%" else f"{value:.1f}x"


def _verdict(claim: Claim) -> str:
    return "reached" if claim.reached else "not reached"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"
