"""Tables of runs that ran and failed to the failures that lack of memory cannot explain, told by other runs and by no forecast.

A failed run is excused where a run of the same job on the same devices ran although it holds no less of anything: its model is
cut into no more pieces, it passes no fewer samples at once, keeps no fewer passes in flight, and shards its
state over no more ranks.
"""

from collections import defaultdict
from collections.abc import Sequence

from traincast.accuracy._cases import Case, Row, parse_case, parse_observation
from traincast.errors import TraincastError
from traincast.noun import noun

_SAME = ("source", "framework", "model", "gpu", "params", "n_layers", "hidden", "n_heads", "n_kv_heads", "ffn", "vocab",
         "seq_len", "input_shape", "mode", "compiled", "dtype", "attention", "act_ckpt", "optimizer", "extra", "cp", "ep",
         "vp")  # fmt: skip
"""Columns in which two runs must agree for one to say something about the other."""


def find_excused(rows: Sequence[Row]) -> frozenset[int]:
    """Places of failed runs that did not fail for lack of memory."""
    ran: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    failed: list[tuple[int, Case]] = []
    for place, row in enumerate(rows):
        try:
            case, seen = parse_case(row), parse_observation(row)
        except TraincastError:
            continue
        if seen.status == "ok" and seen.scores_fit:
            ran[_job_of(case)].append(case)
        elif seen.status == "failed" and seen.scores_fit:
            # Where a source says "oom" it has told the reason itself.
            failed.append((place, case))
    return frozenset(place for place, case in failed if any(needs_no_less(other, case) for other in ran[_job_of(case)]))


def _job_of(case: Case) -> tuple[object, ...]:
    return tuple(getattr(case, name) for name in _SAME)


def needs_no_less(other: Case, case: Case) -> bool:
    """Whether every part of what a rank holds is at least as large in `other` by construction."""
    one, more = _Held.of(case), _Held.of(other)
    if more.shards > one.shards or more.copies < one.copies or more.accumulates < one.accumulates:
        return False
    if more.shards and more.state < one.state:
        return False
    return _covers(more.weights, one.weights) and more.samples >= one.samples and more.in_flight >= one.in_flight


def _covers(more: tuple[float, ...], one: tuple[float, ...]) -> bool:
    return all(a >= b for a, b in zip(more, one, strict=True))


@noun
class _Held:
    """What decides how much a rank holds, each of which only ever adds to it."""

    weights: tuple[float, float]
    """Shares of the model along the tensor and the pipeline axis."""
    samples: float
    in_flight: float
    """Samples of all passes in flight in the first stage, times its share of the layers."""
    accumulates: bool
    """Gradients that are added up live through the whole step."""
    copies: bool
    """Replicas hold buckets and communicators."""
    shards: int
    """The stage of ZeRO."""
    state: float
    """Share of the optimizer state, where it is sharded."""

    @classmethod
    def of(cls, case: Case) -> "_Held":
        data, tensor, stages, passes = (max(1, n or 1) for n in (case.dp, case.tp, case.pp, case.grad_accum))
        samples = case.micro_batch or 1.0
        return cls(
            weights=(1 / tensor, 1 / stages),
            samples=samples,
            in_flight=samples * min(stages, passes) / stages,
            accumulates=passes > 1,
            copies=data > 1,
            shards=case.zero or 0,
            state=1 / (data * tensor * stages),
        )
