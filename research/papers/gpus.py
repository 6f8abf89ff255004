"""ScaleDL's comparison on measured GPU steps: whole workloads and whole chips left out, every method on the same rows.

Ours answers with operator models alone (the left-out chip's operators and the left-out workload's nodes unseen) under the plain
constants of PyTorch. *Own steps*: known steps of the same model, software and precision scale it, as on our corpus.
Baselines are fitted to whole steps: to those of the same software where it knows the model already, else to all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from research.baselines.layers import Additive, Array, Ran, fit_additive_steps, fit_black_box
from research.baselines.operators import scale_waves
from research.fits.interaction.network import Example, fit_network
from research.fits.interaction.network import Training as NetworkTraining
from research.papers.compare import BOX, LINEAR, NONLINEAR, Line, score
from research.papers.gpu_steps import (
    BERT,
    GPT,
    NODES_OF,
    RESNET,
    VGG,
    VIT,
    GpuStep,
    operators_without,
    study,
    was_measured,
)
from traincast import catalog
from traincast.accuracy import Measured
from traincast.cost import Network, price_op
from traincast.cost._interaction.features import Neighbourhood, describe
from traincast.simulate import simulate_step
from traincast.spec import Device, Estimate, Op, Stack

TABLE = "ScaleDL on GPUs"
OURS, LAYER_SUM = "operator models + own steps (ours)", "operator models, layer sum (ours)"
INTERACTION = "operator models + interaction + own steps (ours)"
WAVES = "wave scaling from another GPU's step"
PUBLISHED = {"neusight": "NeuSight", "habitat": "Habitat", "li": "Li et al.", "roofline": "roofline"}
FIVE = (VGG, RESNET, VIT, BERT, GPT)
MIN_OWN_ROWS = 12
"""Whole steps of one software from which a baseline is fitted to them alone."""
MAX_EXAMPLES = 40
DEVICE_SHARE = 0.9
"""Of a step that the device must be busy for to teach the network: the rest is the host's."""
_ALONE = Ran(num_ranks=1, bytes_per_s=1.0, share=1.0)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """One chip or workload that nobody may have seen."""

    name: str
    known: tuple[GpuStep, ...]
    asked: tuple[GpuStep, ...]
    places: tuple[int, ...]
    """Of the asked ones among all."""
    chip: str = ""
    workload: str = ""


def make_folds(steps: Sequence[GpuStep], *, by: str) -> list[Fold]:
    """`by`: chip (all cards that bear it) or workload."""
    labels = [step.chip if by == "chip" else step.workload for step in steps]
    folds = []
    for name in sorted(set(labels)):
        places = tuple(place for place, label in enumerate(labels) if label == name)
        known = tuple(step for step, label in zip(steps, labels, strict=True) if label != name)
        if known:
            folds.append(
                Fold(name=name, known=known, asked=tuple(steps[p] for p in places), places=places, **{by: name})
            )
    return folds


def compare_gpus(steps: Sequence[GpuStep], *, seeds: Sequence[int], say: Say = lambda _: None) -> Iterator[Line]:
    """Every line of the table."""
    device_bound = [step for step in steps if not step.is_host_bound]
    waiting = [step for step in steps if step.is_host_bound]
    for by in ("workload", "chip"):
        folds = [fold for fold in make_folds(device_bound, by=by) if by == "chip" or fold.name in FIVE]
        answers = answer_folds(device_bound, folds, seeds=seeds, say=say)
        if by == "workload":
            for name in FIVE:
                yield from part(device_bound, answers, f"{name} left out", _of(name))
            yield from part(device_bound, answers, "all five", lambda step: step.workload in FIVE)
            yield from part(device_bound, answers, "all five, fp32 of NeuSight", _is_peer)
        else:
            yield from part(device_bound, answers, "each chip left out", lambda _: True)
            yield from part(device_bound, answers, "each chip left out, fp32 of NeuSight", _is_peer)
    answers = answer_folds(waiting, make_folds(waiting, by="chip"), seeds=seeds, say=say)
    yield from part(waiting, answers, "each chip left out, AdaptDL (waits for host and input)", lambda _: True)


def _of(workload: str) -> Callable[[GpuStep], bool]:
    return lambda step: step.workload == workload


def _is_peer(step: GpuStep) -> bool:
    return bool(step.peers_s)


def part(
    steps: Sequence[GpuStep], answers: Mapping[str, Sequence[Array]], split: str, chosen: Callable[[GpuStep], bool]
) -> list[Line]:
    mine = np.array([chosen(step) for step in steps])
    if not mine.any():
        return []
    kept = [step for step in steps if chosen(step)]
    parts = {name: [found[mine] for found in each] for name, each in answers.items()}
    if all(_is_peer(step) for step in kept):
        for key, name in PUBLISHED.items():
            found = np.array([step.peers_s.get(key, np.nan) for step in kept])
            parts[f"{name}, as published (has seen them)"] = [found] * len(next(iter(answers.values())))
    return score(TABLE, split, [step.seconds for step in kept], parts)


def answer_folds(
    steps: Sequence[GpuStep], folds: Sequence[Fold], *, seeds: Sequence[int], say: Say
) -> dict[str, list[Array]]:
    """Of each method and seed, one answer for each step; nan where it was not asked or has none."""
    names = (OURS, LAYER_SUM, INTERACTION, NONLINEAR, LINEAR, BOX, WAVES)
    found = {name: [np.full(len(steps), np.nan) for _ in seeds] for name in names}
    waits = all(step.is_host_bound for step in steps)
    for fold in folds:
        say(f"{TABLE}: {fold.name} left out")
        places = list(fold.places)
        fixed = {
            NONLINEAR: additive(fold, nonlinear=True), LINEAR: additive(fold, nonlinear=False), BOX: black_box(fold),
            WAVES: wave_scaling(fold),
        }  # fmt: skip
        owned = [step for step in fold.known if step.own in {asked.own for asked in fold.asked}]
        # What the known steps miss, as shipped: they may have been seen, the asked ones not.
        owned_s = [step.answer() for step in owned]
        for place, seed in enumerate(seeds):
            asked = reprice(fold, seed=seed)
            alone_s = [step.answer() for step in asked]
            answers = {LAYER_SUM: alone_s, OURS: with_own_steps(owned, owned_s, asked, alone_s), **fixed}
            network = None if waits else teach(fold.known, seed=seed)
            if network is not None:
                both_s = [corrected(step, network) for step in asked]
                owned_both_s = [corrected(step, network) for step in owned]
                answers[INTERACTION] = with_own_steps(owned, owned_both_s, asked, both_s)
            for name, values in answers.items():
                found[name][place][places] = values
    return found


def reprice(fold: Fold, *, seed: int) -> tuple[GpuStep, ...]:
    """The asked steps by operator models that have not seen what is left out; as shipped where those never could."""
    if not (was_measured(fold.chip) or fold.workload in NODES_OF):
        return fold.asked
    ops = operators_without(chip=fold.chip, workload=fold.workload, seed=seed)
    return tuple(study([Measured(case=step.case, step_s=step.seconds) for step in fold.asked], ops))


def with_own_steps(
    known: Sequence[GpuStep], known_s: Sequence[float], asked: Sequence[GpuStep], asked_s: Sequence[float]
) -> list[float]:
    """Scaled by what our answers miss on known steps of the same model, software and precision; one counts half."""
    missed: dict[tuple[str | None, ...], list[float]] = {}
    for step, seconds in zip(known, known_s, strict=True):
        missed.setdefault(step.own, []).append(np.log(step.seconds / seconds))
    return [
        seconds * float(np.exp(sum(missed.get(step.own, ())) / (1 + len(missed.get(step.own, ())))))
        for step, seconds in zip(asked, asked_s, strict=True)
    ]


def additive(fold: Fold, *, nonlinear: bool) -> list[float]:
    models: dict[str | None, Additive] = {}
    found = []
    for step in fold.asked:
        same = [other for other in fold.known if other.case.framework == step.case.framework]
        knows = len(same) >= MIN_OWN_ROWS and any(other.own == step.own for other in same)
        name = step.case.framework if knows else None
        if name not in models:
            rows = same if knows else list(fold.known)
            models[name] = fit_additive_steps(
                [(row.totals, _ALONE) for row in rows], [row.seconds for row in rows], nonlinear=nonlinear
            )
        found.append(models[name].seconds(step.totals, _ALONE))
    return found


def black_box(fold: Fold) -> list[float]:
    features = np.array([step.sizes for step in fold.known])
    model = fit_black_box(features, [step.seconds for step in fold.known])
    return [float(value) for value in model.seconds(np.array([step.sizes for step in fold.asked]))]


def wave_scaling(fold: Fold) -> list[float]:
    """From the known step of the same model, software and precision whose batch, then bandwidth, is nearest; nan without one.

    Nobody measured its kernels, so its time is shared out among them as our operator models say.
    """
    found = []
    for step in fold.asked:
        target = catalog.device(step.case.gpu)
        near = [
            (abs(np.log(_batch(other) / _batch(step))), abs(np.log(bandwidth / target.memory_bytes_per_s)), place)
            for place, other in enumerate(fold.known)
            if other.own == step.own
            for origin in (catalog.device(other.case.gpu),)
            for bandwidth in (origin.memory_bytes_per_s,)
            if _has_waves(origin) and _has_waves(target)
        ]
        if not near:
            found.append(float("nan"))
            continue
        other = fold.known[min(near)[-1]]
        seen = see(other)
        spent = seen.seconds * seen.counts
        ops = other.known.step.program.stages[0].tasks
        carried = scale_waves(
            spent * other.seconds / spent.sum(), [op for op in ops if isinstance(op, Op)],
            origin=catalog.device(other.case.gpu), target=target,
        )  # fmt: skip
        found.append(float(carried.sum()) * _batch(step) / _batch(other))
    return found


def _has_waves(device: Device) -> bool:
    return device.num_sm is not None and device.clock_hz is not None


def _batch(step: GpuStep) -> float:
    return step.case.micro_batch or 1.0


def price(step: GpuStep) -> list[Estimate]:
    """Each operator of the step under the plain constants of PyTorch."""
    known = step.known.step
    return [
        price_op(Stack(), task, estimate) if isinstance(task, Op) else estimate
        for task, estimate in zip(known.program.stages[0].tasks, known.estimates[0], strict=True)
    ]


def see(step: GpuStep) -> Neighbourhood:
    return describe(step.known.step.program.stages[0], price(step))


def teach(known: Sequence[GpuStep], *, seed: int) -> Network | None:
    """The interaction network above operator models, from known steps that keep the device busy, evenly over models and chips."""
    groups: dict[tuple[str | None, str], list[GpuStep]] = {}
    for step in known:
        groups.setdefault((step.case.model, step.chip), []).append(step)
    share = max(1, MAX_EXAMPLES // len(groups))
    examples = []
    for own in groups.values():
        for place in dict.fromkeys(np.linspace(0, len(own) - 1, min(share, len(own))).round().astype(int).tolist()):
            seen = see(own[place])
            busy_s, step_s = float((seen.seconds * seen.counts).sum()), own[place].answer()
            if busy_s >= DEVICE_SHARE * step_s:
                examples.append(Example(seen=seen, seconds=own[place].seconds * busy_s / step_s))
    return fit_network(examples, NetworkTraining(seed=seed)) if len(examples) >= MIN_OWN_ROWS else None


def corrected(step: GpuStep, network: Network | None) -> float:
    """The step with each operator scaled by the network."""
    priced = price(step)
    if network is None:
        return step.answer()
    program = step.known.step.program
    factors = network.factors(describe(program.stages[0], priced)).tolist()
    scaled = [
        replace(each, seconds=each.seconds * factor, low_s=each.low_s * factor, high_s=each.high_s * factor)
        for each, factor in zip(priced, factors, strict=True)
    ]
    return simulate_step(program, [scaled]).duration_s
