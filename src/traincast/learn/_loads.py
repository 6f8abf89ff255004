"""What a calibration measures, fits and forecasts: single operators and whole steps, as counted operators."""

import hashlib
import statistics
from collections.abc import Sequence

from traincast.noun import noun
from traincast.profile import observe
from traincast.spec import Experiment, Graph, Measurement, Op

OPERATOR_SPREAD, STEP_SPREAD = 0.25, 0.06
"""What a rates model misses of single operators and of whole steps in log space: the weights of their residuals."""


@noun
class CalibrationLoad:
    """One thing to measure, fit or forecast: operators and how often each runs. A step has many, an operator one."""

    experiment: Experiment
    ops: tuple[Op, ...]
    counts: tuple[int, ...]
    graph: Graph | None = None
    """What a step was made of: several ranks synchronise its gradients."""

    @property
    def is_step(self) -> bool:
        return self.experiment.subject == "step"

    @property
    def spread(self) -> float:
        return STEP_SPREAD if self.is_step else OPERATOR_SPREAD


def operator_load(experiment: Experiment) -> CalibrationLoad:
    from traincast.profile import op_of

    return CalibrationLoad(experiment=experiment, ops=(op_of(experiment),), counts=(1,))


def step_load(experiment: Experiment, graph: Graph) -> CalibrationLoad:
    return CalibrationLoad(experiment=experiment, ops=graph.ops, counts=tuple(graph.counts()), graph=graph)


def observed_seconds(measurement: Measurement) -> float:
    """What is fitted, from one measurement alone: CPU time where one thread of a CPU computed, wall time elsewhere."""
    return statistics.median(observe(measurement, block) for block in measurement.blocks)


def is_held_out(name: str, *, share: float = 0.2) -> bool:
    """Whether a workload is kept for the check; its name alone decides, so no run can move it over."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32 < share


@noun
class CalibrationCandidates:
    """What may be measured, and what is kept for the check."""

    loads: tuple[CalibrationLoad, ...]
    held_out: tuple[CalibrationLoad, ...]


def corpus_candidates(
    *, num_models: int = 48, num_held_out: int = 20, batches: Sequence[int] = (2, 4, 8, 16), optimizer: str = "adamw"
) -> CalibrationCandidates:
    """Operators and steps of our own architectures; whole architectures are kept back for the check."""
    from traincast.profile import architecture_names

    ordered = sorted(architecture_names(), key=lambda name: hashlib.sha256(f"order {name}".encode()).hexdigest())
    fitted = [name for name in ordered if not is_held_out(name)][:num_models]
    checked = [name for name in ordered if is_held_out(name)][:num_held_out]
    steps = [capture_step(name, batches[index % len(batches)], optimizer) for index, name in enumerate(fitted)]
    held_out = [capture_step(name, batches[index % len(batches)], optimizer) for index, name in enumerate(checked)]
    return CalibrationCandidates(loads=(*operators_of(steps), *steps), held_out=tuple(held_out))


def operators_of(steps: Sequence[CalibrationLoad]) -> list[CalibrationLoad]:
    """Every different operator of these steps that can be run alone."""
    from traincast.profile import experiment_of, is_runnable

    found: dict[str, CalibrationLoad] = {}
    for step in steps:
        for op in step.ops:
            if is_runnable(op):
                experiment = experiment_of(op)
                found.setdefault(experiment.key, CalibrationLoad(experiment=experiment, ops=(op,), counts=(1,)))
    return list(found.values())


def capture_step(name: str, batch: int, optimizer: str) -> CalibrationLoad:
    """The step of one of our architectures with the operators it is made of."""
    from traincast.capture import capture
    from traincast.profile import build_architecture, step_experiment

    model, inputs = build_architecture(name)
    graph = capture(model, inputs(batch), optimizer=optimizer, name=name)
    return step_load(step_experiment(name, batch=batch, optimizer=optimizer), graph)
