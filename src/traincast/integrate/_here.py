"""The machine that this process runs on to a forecast: a GPU by its name, a CPU by a few seconds of measuring."""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from traincast import catalog
from traincast.cost import Calibrated, Pricing
from traincast.errors import InvalidInput, UnknownName
from traincast.learn import (
    CalibrationLoad,
    RatesFit,
    anchors,
    choose_loads,
    expected_cost_s,
    find_peaks,
    operators_of,
    rates_of,
    refit,
    run_subjects,
    seconds_by_key,
    start_fit,
    step_load,
    to_machine_rates,
)
from traincast.noun import noun
from traincast.plan import forecast
from traincast.profile import Protocol
from traincast.spec import (
    Attr,
    Calibration,
    Cluster,
    Device,
    Environment,
    Estimate,
    Experiment,
    Forecast,
    Graph,
    Job,
    Link,
    MachineRates,
    NodeGroup,
    Parallelism,
)
from traincast.store import Store
from traincast.units import NORMAL_90

QUICK = Protocol(num_rounds=2, block_s=0.02, warm_up_s=0.005, min_repeats=3)
LOOPBACK = Link(name="loopback", bytes_per_s=2e9, latency_s=3e-5, source="assumed for processes of one host")


@noun
class MachinePlace:
    """Where this process runs and how many do the same."""

    device: str = "cpu"
    """cpu or cuda."""
    name: str = ""
    """Of the GPU, as its driver says."""
    num_ranks: int = 1
    ranks_per_node: int = 1

    def __post_init__(self) -> None:
        if self.num_ranks % self.ranks_per_node:
            raise InvalidInput(
                f"{self.num_ranks} ranks on nodes of {self.ranks_per_node}; every node must have as many"
            )


@noun
class PreparedModel:
    """A forecast for this machine and the names under which its measurements are kept."""

    forecast: Forecast
    experiment: Experiment
    environment: Environment
    graph: Graph | None = None


def find_place(device: str) -> MachinePlace:
    """The current device; ranks as torchrun and Slurm tell them to every process."""
    import torch

    num_ranks = torch.distributed.get_world_size() if _is_distributed() else 1
    local = int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks))
    name = torch.cuda.get_device_name() if device == "cuda" else ""
    return MachinePlace(
        device=device, name=name, num_ranks=num_ranks, ranks_per_node=local if num_ranks % local == 0 else 1
    )


def _is_distributed() -> bool:
    import torch

    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def forecast_here(
    graph: Graph,
    *,
    place: MachinePlace,
    num_steps: int | None = None,
    accumulate: int = 1,
    compiled: bool = False,
    attrs: Mapping[str, Attr] | None = None,
    calibration: str | Path | Calibration | MachineRates | None = None,
    measuring_s: float = 2.0,
    store: Store | None = None,
) -> PreparedModel:
    """The forecast of a step (and of `num_steps` of them) on this machine.

    A GPU is priced by its name in the catalogue. A CPU is in no catalogue: it is priced by a calibration, or by measuring
    for `measuring_s` those operators of this step that tell most about it; what `store` holds of earlier runs counts too.
    """
    from traincast.profile import describe

    environment = describe(device=place.device)
    known: dict[str, Attr] = {"batch": graph.batch_size, "accumulate": accumulate, "num_ranks": place.num_ranks}
    experiment = Experiment(subject="step", name=graph.name, attrs={**known, **(attrs or {})})
    job = Job(graph=graph, steps=num_steps, compiled=compiled, startup_s=0.0)
    plan = Parallelism(data=place.num_ranks, micro_batches=accumulate)
    if calibration is not None:
        kept = rates_of(calibration)
        cluster = (
            _gpus(place) if place.device == "cuda" else cluster_of_cores(kept, place=place, name=environment.device)
        )
        answer = forecast(job, cluster, plan, costs=Calibrated(rates=kept, others=Pricing().estimate), draw=True)
        answer = _widen(answer, kept.step_log_spread, note=_differences(kept.environment, environment))
    elif place.device == "cuda":
        answer = forecast(job, _gpus(place), plan, draw=True)
    else:
        step = step_load(experiment, graph)
        # Earlier runs of the same step tell most of all; several passes or ranks in one step are not what is fitted.
        is_plain = accumulate == 1 and place.num_ranks == 1
        fit, measured, seconds = _measure(
            step, is_plain=is_plain, environment=environment, budget_s=measuring_s, store=store
        )
        kept = to_machine_rates(
            fit, name="this process", environment=environment, loads=measured, seconds=seconds, measuring_s=measuring_s
        )
        cluster = cluster_of_cores(kept, place=place, name=environment.device)
        answer = forecast(job, cluster, plan, costs=Calibrated(rates=kept, others=Pricing().estimate), draw=True)
        note = f"priced by {len(measured)} measurements on this machine, {measuring_s:g} s of them for this job"
        answer = _widen(answer, float(fit.log_spread([step])[0]), note=note)
    return PreparedModel(forecast=answer, experiment=experiment, environment=environment, graph=graph)


def _measure(
    step: CalibrationLoad, *, is_plain: bool, environment: Environment, budget_s: float, store: Store | None
) -> tuple[RatesFit, list[CalibrationLoad], list[float]]:
    """Peaks first, then the operators of this step that tell most about it within the budget; then fit."""
    from traincast.profile import subject_of

    marks = anchors()
    candidates = [*marks, *operators_of([step])]
    with Store(":memory:") if store is None else nullcontext(store) as kept:
        # Six short operators, whatever the budget: without the peaks there is no prior.
        _visit([subject_of(load.experiment) for load in marks], kept, environment, budget_s=math.inf)
        seconds_of = seconds_by_key(kept, environment)
        first = start_fit([*candidates, step], find_peaks(marks, seconds_of))
        costs = [expected_cost_s(load, first, QUICK) for load in (*candidates, step)]
        known = [index for index, load in enumerate(candidates) if load.experiment.key in seconds_of]
        # The step itself is what the choice serves; it cannot be run before the run.
        chosen = choose_loads(
            first, [*candidates, step], costs=costs, budget_s=budget_s, measured=known, forbidden=[len(candidates)]
        )
        wanted = [candidates[index].experiment for index in chosen if index < len(candidates)]
        _visit([subject_of(each) for each in wanted], kept, environment, budget_s=budget_s)
        seconds_of = seconds_by_key(kept, environment)
    measured = [load for load in candidates if seconds_of.get(load.experiment.key, 0.0) > 0]
    seconds = [seconds_of[load.experiment.key] for load in measured]
    if is_plain and seconds_of.get(step.experiment.key, 0.0) > 0:
        measured.append(step)
        seconds.append(seconds_of[step.experiment.key])
    return refit(first, measured, seconds), measured, seconds


def _visit(subjects: Sequence[Any], store: Store, environment: Environment, *, budget_s: float) -> None:
    for _ in run_subjects(subjects, store=store, environment=environment, protocol=QUICK, budget_s=budget_s):
        pass


def _gpus(place: MachinePlace) -> Cluster:
    try:
        device = catalog.device(place.name)
    except UnknownName as error:
        raise InvalidInput(f"{error}; calibrate this machine (traincast calibrate) and give calibration=") from error
    return catalog.cluster(
        device=device, nodes=place.num_ranks // place.ranks_per_node, devices_per_node=place.ranks_per_node
    )


def cluster_of_cores(
    calibration: MachineRates, *, place: MachinePlace | None = None, name: str | None = None
) -> Cluster:
    """The processes of a host as devices whose peaks are the best rates of its calibration."""
    place = place or MachinePlace()
    name = name or calibration.environment.device
    rates = calibration.rates.values()
    matmul = [rate.flop_per_s for group, rate in calibration.rates.items() if group.split(":")[0] == "matmul"]
    device = Device(
        name=name,
        memory_bytes=host_memory_bytes() / place.ranks_per_node,
        memory_bytes_per_s=max((rate.bytes_per_s for rate in rates), default=calibration.fallback.bytes_per_s),
        vector_flop_per_s={"fp32": max(matmul, default=calibration.fallback.flop_per_s)},
        source=f"calibration {calibration.name!r}",
    )
    num_nodes = place.num_ranks // place.ranks_per_node
    group = NodeGroup(
        device=device, num_nodes=num_nodes, devices_per_node=place.ranks_per_node, intra=LOOPBACK, inter=LOOPBACK
    )
    title = f"{place.num_ranks} x {name}" if place.num_ranks > 1 else name
    return Cluster(name=title, groups=(group,))


def host_memory_bytes() -> float:
    return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")


def _widen(answer: Forecast, log_spread: float, *, note: str) -> Forecast:
    """With the interval of the calibration: that of the GPU stacks says nothing about this machine."""
    factor = math.exp(NORMAL_90 * log_spread)

    def widened(estimate: Estimate) -> Estimate:
        return replace(estimate, low_s=estimate.seconds / factor, high_s=estimate.seconds * factor)

    job = replace(answer.job, total=widened(answer.job.total))
    return replace(answer, step=widened(answer.step), job=job, notes=(*answer.notes, *([note] if note else [])))


def _differences(calibrated: Environment, here: Environment) -> str:
    names = [f"{key} {calibrated.settings.get(key)} against {here.settings.get(key)} here" for key in ("threads",)
             if calibrated.settings.get(key) != here.settings.get(key)]  # fmt: skip
    if calibrated.device != here.device:
        names.insert(0, f"device {calibrated.device} against {here.device} here")
    return f"the calibration was made elsewhere: {', '.join(names)}" if names else ""
