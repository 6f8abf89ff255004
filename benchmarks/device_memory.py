"""What a device's own meter (nvidia-smi) shows, against measurements.

python benchmarks/device_memory.py TABLE.parquet ...   # errors with each device and each model left out; the constants
                                                       # of traincast.simulate._reserve.Surroundings, with priors
"""

import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PRIORS = {
    # name: (prior, one standard deviation)
    "context_bytes": (0.7e9, 0.3e9),
    "unseen": (0.1, 0.1),
    "search": (0.3, 0.4),
    "full": (0.97, 0.02),
}
NOISE = 0.03
OBSERVATIONS = 4.0
"""As which number of independent runs those of one model count: they err together."""


@dataclasses.dataclass(frozen=True, slots=True)
class Metered:
    """One run and what the meter showed."""

    model: str
    device: str
    dtype: str
    live_bytes: float
    reserved_bytes: float
    searches: bool
    capacity_bytes: float
    measured_bytes: float


def main() -> None:
    tables = [Path(word) for word in sys.argv[1:]]
    if not tables or any(table.suffix != ".parquet" for table in tables):
        raise SystemExit(__doc__)
    runs = read_runs(tables)
    print(
        f"{len(runs)} runs that trained, {len({run.device for run in runs})} devices, {len({run.model for run in runs})} models"
    )
    print(f"{'tensors alone (live)':<28}{describe([run.live_bytes / run.measured_bytes - 1 for run in runs])}")
    share = sorted(run.measured_bytes / run.capacity_bytes for run in runs)[len(runs) // 2]
    print(f"{f'{share:.0%} of every device':<28}"
          f"{describe([share * run.capacity_bytes / run.measured_bytes - 1 for run in runs])}")  # fmt: skip
    for name, group_of in GROUPINGS.items():
        errors: list[float] = []
        for group in sorted({group_of(run) for run in runs}):
            found = search([run for run in runs if group_of(run) != group])
            own = errors_of([run for run in runs if group_of(run) == group], found)
            errors += own
            if name == "model":
                print(f"  {group:<26}{describe(own)}")
        print(f"{f'each {name} left out':<28}{describe(errors)}", flush=True)
    found = search(runs)
    print(f"{'all, fitted on all':<28}{describe(errors_of(runs, found))}")
    for item in dataclasses.fields(found):
        print(f"  {item.name} = {getattr(found, item.name):.4g}")


GROUPINGS: dict[str, Callable[[Metered], str]] = {"model": lambda run: run.model, "device": lambda run: run.device}


def read_runs(tables: Sequence[Path]) -> list[Metered]:
    """Rows of sources that read the meter; a run without a step time never trained, so what it held is no peak."""
    from traincast.accuracy import hide_results, parse_case, read_rows, translate
    from traincast.accuracy._cases import parse_observation
    from traincast.errors import TraincastError
    from traincast.forecast import watch_device
    from traincast.lower import lower
    from traincast.simulate import searches_algorithms

    rows = [row for table in tables for row in read_rows(table)]
    runs = []
    for row, hidden in zip(rows, hide_results(rows), strict=True):
        seen = parse_observation(row)
        if not seen.scores_memory or not seen.step_s:
            continue
        try:
            question = translate(parse_case(hidden))
        except TraincastError:
            continue
        if not question.counts_device:
            continue
        memory = watch_device(question.job, question.cluster, question.parallelism)
        stage = lower(question.job.graph, question.parallelism, compiled=question.job.compiled).stages[0]
        runs.append(
            Metered(
                model=str(row["model"]),
                device=str(row["gpu"]),
                dtype=str(row["dtype"]),
                live_bytes=memory.live_bytes,
                reserved_bytes=memory.reserved_bytes,
                searches=searches_algorithms(stage),
                capacity_bytes=min(group.device.memory_bytes for group in question.cluster.groups),
                measured_bytes=float(seen.memory_bytes or 0.0),
            )
        )
    return runs


def errors_of(runs: Sequence[Metered], around: Any) -> list[float]:
    from traincast.simulate import device_bytes

    return [
        device_bytes(run.reserved_bytes, capacity_bytes=run.capacity_bytes, searches=run.searches, around=around)
        / run.measured_bytes
        - 1
        for run in runs
    ]


def search(runs: Sequence[Metered]) -> Any:
    """Robust error in log bytes plus the priors, by the simplex method (Nelder and Mead 1965)."""
    from scipy.optimize import minimize

    from traincast.simulate import Surroundings

    sizes = Counter(run.model for run in runs)

    def decode(point: Sequence[float]) -> Any:
        moved = {name: prior + spread * z for (name, (prior, spread)), z in zip(PRIORS.items(), point, strict=True)}
        return dataclasses.replace(Surroundings.usual(), **moved)

    def cost(point: Sequence[float]) -> float:
        around = decode(point)
        if min(around.context_bytes, 1 + around.unseen, 1 + around.search, around.full) <= 0:
            return 1e9
        misses = [math.hypot(math.log1p(error), NOISE) / NOISE for error in errors_of(runs, around)]
        weighted = sum(miss / sizes[run.model] for miss, run in zip(misses, runs, strict=True))
        return OBSERVATIONS * weighted + 0.5 * sum(z * z for z in point)

    size = len(PRIORS)
    corners = [[0.7 if row == column else 0.0 for column in range(size)] for row in range(-1, size)]
    options = {"maxfev": 600, "xatol": 1e-2, "fatol": 1e-2, "initial_simplex": corners}
    found = minimize(cost, corners[0], method="Nelder-Mead", options=options)
    return decode(found.x)


def describe(errors: Sequence[float]) -> str:
    sizes = sorted(abs(error) for error in errors)
    bias = sum(errors) / len(errors)
    near = sum(size <= 0.1 for size in sizes) / len(sizes)
    return (f"n {len(sizes):>4}  mean {sum(sizes) / len(sizes):.1%}  median {sizes[len(sizes) // 2]:.1%}  "
            f"p90 {sizes[int(0.9 * len(sizes))]:.1%}  within 10% {near:.0%}  bias {bias:+.1%}")  # fmt: skip


if __name__ == "__main__":
    main()
