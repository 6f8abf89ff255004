"""The JSON that requests carry, as the OpenAPI document describes it. Lower bounds and names are checked where the command
line checks them, so that both say the same sentence; what stands here are types and the most that may be asked."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from traincast.spec import CLUSTER_FIELDS, JOB_FIELDS, PLAN_FIELDS, WORKLOAD_FIELDS, Asked

Name = Annotated[str, Field(max_length=200)]
Word = Annotated[str, Field(max_length=40)]
Degree = Annotated[int, Field(le=65_536, ge=-65_536)]
Count = Annotated[int, Field(le=2**40, ge=-(2**40))]
Amount = Annotated[float, Field(le=1e24, ge=-1e24)]
Degrees = Annotated[list[Degree], Field(max_length=16)]
Words = Annotated[list[Word], Field(max_length=16)]
ModelId = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def given(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


def _derive(name: str, base: type[Body], asked: Iterable[Asked], *, limits: Mapping[str, int]) -> type[Body]:
    """A body with a key for each thing that a question may say in one of its tables."""
    fields: dict[str, Any] = {
        item.name: (_type_of(item, limits) | None, Field(None, description=item.description or None)) for item in asked
    }
    made: type[Body] = create_model(name, __base__=base, **fields)
    return made


def _type_of(item: Asked, limits: Mapping[str, int]) -> Any:
    if item.kind is bool:
        return bool
    if item.kind is str:
        return Name if item.name in _LONG_NAMES else Word
    if item.kind is float:
        return Amount
    most = limits.get(item.name, limits[""])
    return Annotated[int, Field(le=most, ge=-most)]


_LONG_NAMES = ("device", "node", "intra", "inter", "placement", "stack")


class _Model(Body):
    name: Name | None = Field(
        None,
        description="A workload of the catalogue; with sizes (arch, n_layers ...) only a title.",
        examples=["gpt2-xl"],
    )
    model: ModelId | None = Field(None, description="What POST /models answered for an upload.")
    graph: dict[str, Any] | None = Field(
        None, description="A saved graph, as `traincast capture -o graph.json` writes it."
    )
    config: dict[str, Any] | None = Field(None, description="The content of a Hugging Face config.json.")


class _Nodes(Body):
    machine: Name | None = Field(None, description="A machine instead of a device.", examples=["aws-p4d.24xlarge"])

    def table(self) -> dict[str, Any]:
        """As the catalogue reads it."""
        table = self.given()
        if "machine" in table:
            table["node"] = table.pop("machine")
        return table


_IN_GROUP = tuple(
    item for item in CLUSTER_FIELDS if item.name not in ("node", "price_per_device", "placement", "device_memory")
)
_OF_CLUSTER = tuple(item for item in CLUSTER_FIELDS if item.name in ("price_per_device", "placement", "device_memory"))
_DEGREES = {"": 65_536}

_SIZES = {"": 2**20, "batch": 2**22, "seq": 2**23, "n_layers": 4096, "vocab": 2**26}


class WorkloadBody(_derive("WorkloadFields", _Model, WORKLOAD_FIELDS, limits=_SIZES)):  # type: ignore[misc]
    """One of `name`, `model`, `graph` and `config` says what is trained; the rest how."""


class GroupBody(_derive("GroupFields", _Nodes, _IN_GROUP, limits=_DEGREES)):  # type: ignore[misc]
    """Equal nodes: a machine of the catalogue, or a device and how it is connected."""


class ClusterBody(_derive("ClusterFields", GroupBody, _OF_CLUSTER, limits=_DEGREES)):  # type: ignore[misc]
    """One group of equal nodes, or several under `groups`."""

    groups: Annotated[list[GroupBody], Field(max_length=16)] | None = None

    def table(self) -> dict[str, Any]:
        table: dict[str, Any] = super().table()
        if self.groups is not None:
            table["groups"] = [group.table() for group in self.groups]
        return table


class ParallelismBody(_derive("PlanFields", Body, PLAN_FIELDS, limits=_DEGREES)):  # type: ignore[misc]
    """Degrees; without `data` every device that the others leave holds a replica."""


class JobBody(_derive("JobFields", Body, JOB_FIELDS, limits={"": 2**40})):  # type: ignore[misc]
    """How long it trains, on what stack, and what happens around the steps."""


class ConfigBody(Body):
    """A configuration of another project, as text."""

    name: Name = Field(description="Of the file; its ending helps to tell the format.", examples=["ds_config.json"])
    text: Annotated[str, Field(max_length=2**18)] = Field(description="Its content; it is read and never run.")
    format: Word = Field("", description="A format by its name; empty: told by the content.")


class AskBody(Body):
    """A job on a cluster under a plan."""

    workload: WorkloadBody
    cluster: ClusterBody
    parallelism: ParallelismBody = Field(default_factory=lambda: ParallelismBody.model_validate({}))
    job: JobBody = Field(default_factory=lambda: JobBody.model_validate({}))
    configs: Annotated[list[ConfigBody], Field(max_length=8)] | None = Field(
        None, description="Configurations of other projects; what the tables say wins."
    )
    calibration: Name | dict[str, Any] | None = Field(
        None,
        description="What was learnt: a name that this service was started with, or the content of a calibration file.",
        examples=["ours"],
    )


class ForecastBody(AskBody):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "workload": {"name": "gpt2-xl", "batch": 8, "seq": 1024, "precision": "bf16"},
                    "cluster": {"device": "a100-80g", "nodes": 2, "devices_per_node": 8},
                    "parallelism": {"zero": 1},
                    "job": {"steps": 10000},
                }
            ]
        }
    )

    detail: bool = Field(False, description="Add the spans of the step, the memory over it and its slowest tasks.")
    emit: Word | None = Field(None, description="Add the file that starts the job: torchrun, slurm, k8s ...")
    advice: bool = Field(False, description="Add what dominates, whether it fits and what would help, in sentences.")


class FitBody(AskBody):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "workload": {"name": "llama-2-7b", "precision": "bf16", "seq": 4096},
                    "cluster": {"device": "a100-80g", "devices_per_node": 8},
                    "parallelism": {"zero": 3},
                    "confidence": 0.99,
                }
            ]
        }
    )

    confidence: Amount = Field(0.99, description="How sure it must be to fit, between 0 and 1.")


class SimilarBody(AskBody):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"workload": {"name": "resnet50", "batch": 32}, "count": 5}]}
    )

    cluster: ClusterBody = Field(default_factory=lambda: ClusterBody.model_validate({}))
    calibration: None = Field(None, description="Neighbours do not depend on one.")
    count: Annotated[int, Field(ge=1, le=50)] = Field(5, description="How many neighbours.")


class SpaceBody(Body):
    """What may be chosen; left out: whatever is sensible."""

    tensor: Degrees | None = None
    pipeline: Degrees | None = None
    context: Degrees | None = None
    expert: Degrees | None = None
    zero: Degrees | None = None
    recompute: Words | None = None
    orders: Words | None = None


class PlanBody(AskBody):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "workload": {"name": "gpt2-xl", "seq": 1024, "precision": "bf16"},
                    "cluster": {"device": "a100-80g", "devices_per_node": 8},
                    "job": {"steps": 10000},
                    "global_batch": 256,
                    "max_gpus": 32,
                    "deadline_s": 172800,
                    "space": {"orders": ["1f1b"]},
                }
            ]
        }
    )

    cluster: ClusterBody = Field(default_factory=lambda: ClusterBody.model_validate({}))
    all_machines: bool = Field(False, description="Every rented machine of the catalogue instead of one cluster.")
    global_batch: Annotated[int, Field(ge=1, le=2**26)] | None = Field(
        None, description="Samples of one optimizer step."
    )
    min_gpus: Annotated[int, Field(ge=1, le=65_536)] = 1
    max_gpus: Annotated[int, Field(ge=1, le=65_536)] = 64
    regions: Words = []
    devices: Annotated[list[Name], Field(max_length=32)] = []
    deadline_s: Amount | None = None
    budget_usd: Amount | None = None
    confidence: Amount = 0.9
    objective: Literal["time", "money", "energy"] = "time"
    top: Annotated[int, Field(ge=1, le=1000)] = 100
    space: SpaceBody = Field(default_factory=lambda: SpaceBody.model_validate({}))


class TraceBody(Body):
    """Generated jobs, or the text of a job log."""

    synthetic: Count | None = Field(None, description="Number of jobs to generate.", examples=[500])
    load: Amount = Field(1.0, description="Load of generated jobs: their demand over what the cluster can serve.")
    text: Annotated[str, Field(max_length=4_000_000)] | None = Field(None, description="The content of a job log.")
    format: Word | None = Field(None, description="Format of the log; default: guessed from its first line.")
    only: Name | None = Field(None, description="Keep rows of this trace, tenant or cluster.")


class ScheduleBody(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "trace": {"synthetic": 300},
                    "cluster": "4x8:a100@2.5",
                    "policies": ["fifo", "srtf", "easy"],
                    "seed": 1,
                }
            ]
        }
    )

    trace: TraceBody
    cluster: Annotated[str, Field(max_length=500)] = Field(
        description="NODESxGPUS[:device][@usd per GPU-hour], comma between pools.", examples=["4x8:a100@2.5"]
    )
    policies: Annotated[list[Word], Field(min_length=1, max_length=12)] = Field(default=["fifo", "srtf", "easy"])
    placement: Word = "consolidated"
    sigma: Amount = Field(0.0, description="Log-normal error of every estimate.")
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0


class Problem(BaseModel):
    """What is wrong, in one sentence, as the command line says it."""

    error: str = Field(examples=["unknown device 'b20'; known devices: ... (did you mean 'b200'?)"])


class StorageAnswer(BaseModel):
    """Where models and jobs are kept and whether that works."""

    backend: str
    writable: bool
    fault: str | None


class QueueAnswer(BaseModel):
    """How the jobs stand."""

    queued: int
    running: int
    oldest_s: float
    runners: int
    runners_alive: int


class HealthAnswer(BaseModel):
    """What works and what does not."""

    status: Literal["ok", "failing"]
    problems: list[str]
    storage: StorageAnswer
    queue: QueueAnswer
    version: str


class ModelAnswer(BaseModel):
    """An upload that can be forecast."""

    model: str
    name: str
    kind: Literal["graph", "config", "onnx"]
    batch_size: int
    any_batch: bool
    num_ops: int
    parameters: float


class JobAnswer(BaseModel):
    """A plan or a schedule: asked, running or ended."""

    id: str
    kind: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    done: int
    total: int
    words: str
    created_s: float
    finished_s: float | None
    error: str | None
    result: Any = None
