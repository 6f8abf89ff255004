"""Which rows a method may learn from and which it is asked: leave GPU, family or scale out, never a random split."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from research.baselines import (
    constant_utilization,
    ernest_by_batch,
    ernest_by_flop,
    no_scaling,
    scale_by_peak_and_bandwidth,
)
from traincast.accuracy import Case, Measured

Choose = Callable[[Case], bool]
Method = Callable[[Sequence[Measured], Sequence[Case]], list[float | None]]

FLOP_METHODS: Mapping[str, Method] = {
    "constant utilisation": constant_utilization,
    "Ernest (size = FLOP / peak)": ernest_by_flop,
}
SCALING_METHODS: Mapping[str, Method] = {
    "no scaling cost (own 1-GPU profile)": no_scaling,
    "Ernest (own 1-node rows)": ernest_by_batch,
}
PROFILE_METHODS: Mapping[str, Method] = {
    "no scaling cost (own 1-GPU profile)": no_scaling,
    "Ernest (own 1-GPU rows)": ernest_by_batch,
}
RATIO_METHODS: Mapping[str, Method] = {"sqrt(peak x bandwidth) ratio": scale_by_peak_and_bandwidth}


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A question of extrapolation: `known` rows are granted, `asked` rows are scored, none is both."""

    name: str
    known: Choose
    asked: Choose
    methods: Mapping[str, Method]
    leave_out: Callable[[Case], str] | None = None
    """With it, rows are asked fold by fold and all rows of the fold are taken from what is granted."""
    profile: Choose | None = None
    """Rows of a fold that stay granted: what a user would measure first."""


def _of(source: str, test: Choose = lambda case: True) -> Choose:
    return lambda case: case.source == source and test(case)


def _sia(case: Case) -> bool:
    # The azure cluster repeats nothing and its small jobs are 2-10 times too slow; the shared baselines leave it out.
    return (case.source or "").startswith("sia_") and case.source != "sia_azure"


def _cluster(name: str, test: Choose) -> Choose:
    return lambda case: (case.source or "").removesuffix("-ext") == name and test(case)


def _one_node(case: Case) -> bool:
    return case.n_nodes == 1


def _many_nodes(case: Case) -> bool:
    return (case.n_nodes or 1) > 1


def _plain(case: Case) -> bool:
    # With pipelines across nodes the code of the campaign changed under it (findings: twins differ 4-7 times).
    return case.n_nodes == 1 or (case.pp or 1) == 1


def _gpus(test: Callable[[int], bool]) -> Choose:
    return lambda case: test(case.n_gpus or 0)


SPLITS: tuple[Split, ...] = (
    Split(
        name="vTrain, 1 node: hidden 1024 -> 2048",
        known=_of("vtrain_single", lambda case: case.hidden == 1024),
        asked=_of("vtrain_single", lambda case: case.hidden == 2048),
        methods=FLOP_METHODS,
    ),
    Split(
        name="vTrain, 1 node: <= 4 -> 8 GPUs",
        known=_of("vtrain_single", _gpus(lambda count: count <= 4)),
        asked=_of("vtrain_single", _gpus(lambda count: count == 8)),
        methods=FLOP_METHODS,
    ),
    Split(
        name="vTrain, many nodes: 64 -> 256 GPUs",
        known=_of("vtrain_multi", _gpus(lambda count: count == 64)),
        asked=_of("vtrain_multi", _gpus(lambda count: count == 256)),
        methods=FLOP_METHODS,
    ),
    Split(
        name="vTrain: 1 node -> many nodes",
        known=_of("vtrain_single"),
        asked=_of("vtrain_multi"),
        methods=FLOP_METHODS,
    ),
    Split(
        name="MPT FSDP: 8-32 -> 64 GPUs",
        known=_of("llm_foundry", _gpus(lambda count: count <= 32)),
        asked=_of("llm_foundry", _gpus(lambda count: count == 64)),
        methods=FLOP_METHODS,
    ),
    Split(
        name="MPT FSDP: leave 30b out",
        known=_of("llm_foundry", lambda case: case.model != "mpt-30b"),
        asked=_of("llm_foundry", lambda case: case.model == "mpt-30b"),
        methods=FLOP_METHODS,
    ),
    Split(
        name="MPT FSDP: A100 -> H100",
        known=_of("llm_foundry", lambda case: case.gpu.startswith("a")),
        asked=_of("llm_foundry", lambda case: case.gpu.startswith("h")),
        methods=FLOP_METHODS,
    ),
    Split(
        name="Megatron-Bridge: H100 -> GB200",
        known=_of("megatron_bridge", lambda case: case.gpu.startswith("h")),
        asked=_of("megatron_bridge", lambda case: case.gpu.startswith("gb")),
        methods=FLOP_METHODS,
    ),
    Split(
        name="Sia aws (T4, 50 Gb/s): 1 node -> many nodes",
        known=_cluster("sia_aws", _one_node),
        asked=_cluster("sia_aws", _many_nodes),
        methods=SCALING_METHODS,
    ),
    Split(
        name="Sia dgx (A100, 1600 Gb/s): 1 node -> many nodes",
        known=_cluster("sia_dgx", _one_node),
        asked=_cluster("sia_dgx", _many_nodes),
        methods=SCALING_METHODS,
    ),
    Split(
        name="Sia: 1 GPU -> many GPUs",
        known=lambda case: _sia(case) and case.n_gpus == 1,
        asked=lambda case: _sia(case) and (case.n_gpus or 1) > 1,
        methods=PROFILE_METHODS,
    ),
    Split(
        name="Sia: leave one model out, its 1-GPU profile known",
        known=_sia,
        asked=lambda case: _sia(case) and (case.n_gpus or 1) > 1,
        methods=PROFILE_METHODS,
        leave_out=lambda case: case.model or "",
        profile=lambda case: case.n_gpus == 1,
    ),
    Split(
        name="Sia: leave one GPU out, its 1-GPU profiles known",
        known=_sia,
        asked=lambda case: _sia(case) and (case.n_gpus or 1) > 1,
        methods=PROFILE_METHODS,
        leave_out=lambda case: case.gpu,
        profile=lambda case: case.n_gpus == 1,
    ),
    Split(
        name="Ultra-Scale time, 1 node or pp=1: <= 4 -> 8, 16 nodes",
        known=_of("hf_ultrascale", lambda case: _plain(case) and (case.n_nodes or 1) <= 4),
        asked=_of("hf_ultrascale", lambda case: _plain(case) and (case.n_nodes or 1) >= 8),
        methods=FLOP_METHODS,
    ),
    Split(
        name="Ultra-Scale time, 1 node or pp=1: 1.3B, 3.6B -> 8.9B",
        known=_of("hf_ultrascale", lambda case: _plain(case) and case.model != "llama-8.86b"),
        asked=_of("hf_ultrascale", lambda case: _plain(case) and case.model == "llama-8.86b"),
        methods=FLOP_METHODS,
    ),
    Split(
        name="Lambda: leave one GPU out",
        known=_of("lambda"),
        asked=_of("lambda"),
        methods=RATIO_METHODS,
        leave_out=lambda case: case.gpu,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What one method said about the asked rows of one split."""

    split: str
    method: str
    asked: tuple[Measured, ...]
    steps_s: tuple[float | None, ...]


def folds(split: Split, rows: Sequence[Measured]) -> Iterator[tuple[list[Measured], list[Measured]]]:
    """(granted, asked) of each fold."""
    asked = [row for row in rows if split.asked(row.case)]
    known = [row for row in rows if split.known(row.case)]
    if split.leave_out is None:
        yield known, asked
        return
    name = split.leave_out
    stays = split.profile or (lambda case: False)
    for value in sorted({name(row.case) for row in asked}):
        granted = [row for row in known if name(row.case) != value or stays(row.case)]
        yield granted, [row for row in asked if name(row.case) == value]


def answer_split(split: Split, rows: Sequence[Measured]) -> list[Answers]:
    """Every method of a split on every fold; nothing where no row is asked."""
    parts = [(known, asked) for known, asked in folds(split, rows) if asked]
    if not parts:
        return []
    everyone = tuple(row for _, asked in parts for row in asked)
    return [
        Answers(
            split=split.name,
            method=name,
            asked=everyone,
            steps_s=tuple(step_s for known, asked in parts for step_s in method(known, [row.case for row in asked])),
        )
        for name, method in split.methods.items()
    ]
