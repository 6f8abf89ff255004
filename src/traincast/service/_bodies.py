"""The JSON that requests carry, as the OpenAPI document describes it. Lower bounds and names are checked where the command
line checks them, so that both say the same sentence; what stands here are types and the most that may be asked."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from traincast.spec import CLUSTER_FIELDS, JOB_FIELDS, PLAN_FIELDS, QUESTION_FIELDS, WORKLOAD_FIELDS, Asked

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


SHORT: dict[str, Asked] = {
    name: item
    for item in QUESTION_FIELDS
    if item.section
    for name in (item.name, *(flag[2:].replace("-", "_") for flag in item.flags if flag.startswith("--")))
}
"""What a request may say beside its tables, as the command's options: by field and by flag."""


def _shows(**example: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [example]})


def _derive(name: str, base: type[Body], asked: Iterable[Asked], *, limits: Mapping[str, int]) -> type[Body]:
    """A body with a key for each thing that a question may say in one of its tables."""
    made: type[Body] = create_model(name, __base__=base, **_fields(asked, partial(_type_of, limits=limits)))
    return made


def _fields(asked: Iterable[Asked], type_of: Callable[[Asked], Any]) -> dict[str, Any]:
    return {item.name: (type_of(item) | None, Field(None, description=item.description or None)) for item in asked}


def _type_of(item: Asked, limits: Mapping[str, int]) -> Any:
    if item.kind is bool:
        return bool
    most = limits.get(item.name, limits[""])
    whole = Annotated[int, Field(le=most, ge=-most)]
    if item.kind is str:
        return Name if item.name in _LONG_NAMES else Word | whole if item.name in _WORDS_OR_NUMBERS else Word
    return Amount if item.kind is float else whole


_WORDS_OR_NUMBERS = ("input_size",)
_LONG_NAMES = ("device", "node", "intra", "inter", "placement", "stack")


class _Model(Body):
    name: Name | None = Field(
        None,
        description="A workload of the catalogue; with sizes (arch, n_layers ...) only a title.",
        examples=["gpt2-xl"],
    )
    model: ModelId | None = Field(None, description="What POST /models answered for an upload.")


class _Nodes(Body):
    node: Name | None = Field(
        None, alias="machine", description="A machine instead of a device.", examples=["aws-p4d.24xlarge"]
    )


_OF_CLUSTER = tuple(item for item in CLUSTER_FIELDS if item.name in ("price_per_device", "placement", "device_memory"))
_IN_GROUP = tuple(item for item in CLUSTER_FIELDS if item.name != "node" and item not in _OF_CLUSTER)
_DEGREES = {"": 65_536}

_SIZES = {"": 2**20, "batch": 2**22, "seq": 2**23, "n_layers": 4096, "vocab": 2**26}


class WorkloadBody(_derive("WorkloadFields", _Model, WORKLOAD_FIELDS, limits=_SIZES)):  # type: ignore[misc]
    """One of `name` and `model` says what is trained; the rest how."""


class GroupBody(_derive("GroupFields", _Nodes, _IN_GROUP, limits=_DEGREES)):  # type: ignore[misc]
    """Equal nodes: a machine of the catalogue, or a device and how it is connected."""


class ClusterBody(_derive("ClusterFields", GroupBody, _OF_CLUSTER, limits=_DEGREES)):  # type: ignore[misc]
    """One group of equal nodes, or several under `groups`."""

    groups: Annotated[list[GroupBody], Field(max_length=16)] | None = None


class ParallelismBody(_derive("PlanFields", Body, PLAN_FIELDS, limits=_DEGREES)):  # type: ignore[misc]
    """Degrees; without `data` every device that the others leave holds a replica."""


class JobBody(_derive("JobFields", Body, JOB_FIELDS, limits={"": 2**40})):  # type: ignore[misc]
    """How long it trains, on what stack, and what happens around the steps."""


class ConfigBody(Body):
    """A configuration of another project, as text."""

    name: Name = Field(description="Of the file; its ending helps to tell the format.", examples=["ds_config.json"])
    text: Annotated[str, Field(max_length=2**18)] = Field(description="Its content; it is read and never run.")
    format: Word = Field("", description="A format by its name; empty: told by the content.")


def _kind_in_words(item: Asked) -> Any:
    """A field as a person writes it: 15B, 36h, 80GB or a number."""
    return bool if item.kind is bool else Name if item.kind is str else Amount | (Word if item.unit else int)


_Short: Any = create_model(
    "ShortFields",
    __base__=Body,
    model=(Name | None, Field(None, description="A workload of the catalogue.", examples=["llama-3-8b"])),
    gpus=(Word | None, Field(None, description="Hardware in one word.", examples=["8xh100", "2x8xh100"])),
    **_fields((item for item in QUESTION_FIELDS if item.section and item.name != "node"), _kind_in_words),
)


class AskBody(_Short):  # type: ignore[misc]
    """A job on a cluster under a plan: in a few words (`model`, `gpus` and any option of the command), or in tables."""

    workload: WorkloadBody = WorkloadBody.model_validate({})
    cluster: ClusterBody = ClusterBody.model_validate({})
    parallelism: ParallelismBody = ParallelismBody.model_validate({})
    job: JobBody = JobBody.model_validate({})
    configs: Annotated[list[ConfigBody], Field(max_length=8)] | None = Field(
        None, description="Configurations of other projects; what the tables say wins."
    )
    calibration: Name | dict[str, Any] | None = Field(
        None,
        description="What was learned: a name that this service was started with, or the content of a calibration file.",
        examples=["ours"],
    )

    @classmethod
    def own_fields(cls) -> set[str]:
        """Those that are no short words for a field of a table."""
        return set(cls.model_fields) - (set(_Short.model_fields) - set(cls.__annotations__))


class ForecastBody(AskBody):
    model_config = _shows(model="llama-3-8b", gpus="8xh100", tokens="15B")

    detail: bool = Field(False, description="Add the spans of the step, the memory over it and its slowest tasks.")
    emit: Word | None = Field(None, description="Add the file that starts the job: torchrun, slurm, k8s ...")
    advice: bool = Field(False, description="Add what dominates, whether it fits and what would help, in sentences.")


class FitBody(AskBody):
    model_config = _shows(
        workload={"name": "llama-2-7b", "precision": "bf16", "seq": 4096},
        cluster={"device": "a100-80g", "devices_per_node": 8}, parallelism={"zero": 3}, confidence=0.9,
    )  # fmt: skip

    confidence: Amount = Field(0.9, description="How likely it must be to fit, between 0 and 1.")


class AdviseBody(AskBody):
    model_config = _shows(model="gpt2-xl", gpus="8xa100-80g", batch=4, steps=10000)

    confidence: Amount = Field(0.9, description="How likely it must be to fit, between 0 and 1.")


class CompareBody(AskBody):
    trace: dict[str, Any] = Field(description="The content of a trace that torch.profiler wrote.")
    num_steps: Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        None, description="Steps in the trace, where it does not mark them."
    )


_SPACE: dict[str, Any] = {
    **dict.fromkeys(("tensor", "pipeline", "context", "expert", "zero"), (Degrees | None, None)),
    **dict.fromkeys(("recompute", "orders"), (Words | None, None)),
}
SpaceBody: Any = create_model(
    "SpaceBody", __base__=Body, __doc__="What may be chosen; left out: whatever is sensible.", **_SPACE
)


class PlanBody(AskBody):
    model_config = _shows(
        workload={"name": "gpt2-xl", "seq": 1024, "precision": "bf16"},
        cluster={"device": "a100-80g", "devices_per_node": 8}, job={"steps": 10000}, global_batch=256, max_gpus=32,
        deadline_s=172800, space={"orders": ["1f1b"]},
    )  # fmt: skip

    all_machines: bool = Field(False, description="Every rented machine of the catalogue instead of one cluster.")
    global_batch: Annotated[int, Field(ge=1, le=2**26)] | None = Field(
        None, description="Samples of one optimizer step."
    )
    min_gpus: Annotated[int, Field(ge=1, le=65_536)] = 1
    max_gpus: Annotated[int, Field(ge=1, le=65_536)] = 64
    regions: Words = Field(default=[])
    devices: Annotated[list[Name], Field(max_length=32)] = Field(default=[])
    deadline_s: Amount | None = None
    budget_usd: Amount | None = None
    confidence: Amount = 0.9
    objective: Literal["time", "money", "energy"] = "time"
    top: Annotated[int, Field(ge=1, le=1000)] = 100
    space: SpaceBody = Field(default_factory=lambda: SpaceBody())


class TraceBody(Body):
    """Generated jobs, or the text of a job log."""

    synthetic: Count | None = Field(None, description="Number of jobs to generate.", examples=[500])
    load: Amount = Field(1.0, description="Load of generated jobs: their demand over what the cluster can serve.")
    text: Annotated[str, Field(max_length=4_000_000)] | None = Field(None, description="The content of a job log.")
    format: Word | None = Field(None, description="Format of the log; default: guessed from its first line.")
    only: Name | None = Field(None, description="Keep rows of this trace, tenant or cluster.")


class ScheduleBody(Body):
    model_config = _shows(trace={"synthetic": 300}, cluster="4x8:a100@2.5", policies=["fifo", "srtf", "easy"], seed=1)

    trace: TraceBody
    cluster: Annotated[str, Field(max_length=500)] = Field(
        description="NODESxGPUS[:device][@usd per GPU-hour], comma between pools.", examples=["4x8:a100@2.5"]
    )
    policies: Annotated[list[Word], Field(min_length=1, max_length=12)] = Field(default=["fifo", "srtf", "easy"])
    placement: Word = "consolidated"
    sigma: Amount = Field(0.0, description="Log-normal error of every estimate.")
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0


class Problem(BaseModel):
    """What is wrong, as RFC 9457 says it; `detail` is the sentence of the command line."""

    type: str
    title: str
    status: int
    detail: str = Field(examples=["unknown device 'b20'; known devices: ... (did you mean 'b200'?)"])
    reason: str | None = Field(None, description="Of a fault of storage: full, read-only, locked, corrupt ...")


class AdviceAnswer(BaseModel):
    """What `traincast advise` says."""

    sentences: list[str]
    suggestions: list[dict[str, Any]]
    assumptions: list[str]


class HealthAnswer(BaseModel):
    """What works and what does not: where models and jobs are kept, and how the jobs stand."""

    status: Literal["ok", "failing"]
    problems: list[str]
    storage: dict[str, str | bool | None]
    queue: dict[str, float]
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
