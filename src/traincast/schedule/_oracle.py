"""Forecasts as the source of speeds: a workload on so many devices becomes seconds per step, asked once and kept."""

from dataclasses import field
from functools import cache
from pathlib import Path

from traincast.errors import IllegalPlan, InvalidInput
from traincast.forecast import forecast
from traincast.noun import noun
from traincast.plan import decide
from traincast.resolve import fill_in
from traincast.schedule._speeds import NO_FIT, SpeedForecast, SpeedKey
from traincast.spec import Calibration, Question, WorkloadOptions

FILES = (".toml", ".json", ".json.gz", ".onnx", ".py")


def split_workload(name: str) -> tuple[str, int | None]:
    """'gpt2@8' as the source and the batch per replica; without @ the batch is what the source says, or 1."""
    base, _, batch = name.rpartition("@")
    if not base:
        return name, None
    if not (batch.isdecimal() and int(batch)):
        raise InvalidInput(f"workload {name!r}: after @ comes the batch per device, such as gpt2@8")
    return base, int(batch)


@noun
class ForecastSource:
    """What `traincast.forecast` says about a workload: a catalogue name, a saved graph, a model or a job file (TOML).

    Files are looked for from here, then beside the trace (`folder`). Every device holds a replica unless a job file says
    how a replica is split. A step that does not fit in memory, and a count that the plan cannot use, is said not to fit.
    """

    folder: Path = Path()
    calibration: Calibration | None = None
    """What was learnt from measurements or runs of one's own."""
    _known: dict[SpeedKey, SpeedForecast] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, name: str, device: str, num_devices: int, num_nodes: int) -> SpeedForecast:
        key = (name, device, num_devices, num_nodes)
        if key not in self._known:
            self._known[key] = _answer(self, *key)
        return self._known[key]

    def find(self, source: str) -> str:
        """The path of a file as it can be opened from here; catalogue names stay as they are."""
        file, _, rest = source.partition(":")
        if not file.endswith(FILES) and not (self.folder / file).is_dir():
            return source
        for place in (Path(file), self.folder / file):
            if place.exists():
                return f"{place}:{rest}" if rest else str(place)
        raise InvalidInput(f"workload {source!r}: there is no such file here or in {self.folder.absolute()}")


def _options(source: str, batch: int | None) -> WorkloadOptions:
    """A saved graph knows its precision and, unless it was captured at two sizes, its batch."""
    saved = source.endswith((".json", ".json.gz"))
    return WorkloadOptions(batch=batch) if saved else WorkloadOptions(batch=batch or 1, precision="bf16")


@cache
def _devices_per_replica(path: str) -> int:
    """How many devices the plan of a job file gives one replica; the scheduler decides how many replicas there are."""
    plan = fill_in(Question(source=path)).parallelism
    count = 1
    for axis in ("tensor", "pipeline", "context"):
        degree = plan.get(axis, 1)
        count *= degree if isinstance(degree, int) and degree >= 1 else 1
    return count


def _answer(source: ForecastSource, name: str, device: str, num_devices: int, num_nodes: int) -> SpeedForecast:
    base, batch = split_workload(name)
    path = source.find(base)
    nodes = num_nodes
    while num_devices % nodes:
        nodes += 1  # ranks are spread evenly, so an uneven request is asked of the next even layout
    table = {"device": device, "nodes": nodes, "devices_per_node": num_devices // nodes}
    says_length = False
    try:
        if path.endswith(".toml"):
            replicas, rest = divmod(num_devices, _devices_per_replica(path))
            if rest:
                return NO_FIT
            options = WorkloadOptions(batch=batch)
            whole = decide(Question(source=path, workload=options, cluster=table, parallelism={"data": replicas}))
            says_length = bool(whole.job.steps or whole.job.samples or whole.job.epoch_samples)
        else:
            whole = decide(
                Question(
                    source=path,
                    workload=_options(path, batch),
                    cluster=table,
                    parallelism={"data": num_devices, "zero": 0, "micro_batches": 1},
                )
            )
        learned = whole.calibration or source.calibration
        answer = forecast(whole.job, whole.cluster, whole.parallelism, calibration=learned)
    except IllegalPlan:
        return NO_FIT
    step = answer.step
    return SpeedForecast(
        step_s=step.seconds,
        low_s=step.low_s,
        high_s=step.high_s,
        fits=answer.memory.fits,
        samples_per_step=float(answer.global_batch),
        job_s=answer.job.total.seconds if says_length else None,
    )
