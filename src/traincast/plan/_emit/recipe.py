"""A plan to the few numbers and names that every launcher asks for."""

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.plan._nouns import Plan, job_quantile_s
from traincast.spec import Cluster, Parallelism, Question, WorkloadOptions
from traincast.units import GIB, MINUTE_S

HOST_BYTES_PER_RANK = 8 * GIB
"""A Python process with its CUDA context, libraries, pinned buffers and a few loader workers: a rule, not a forecast."""
PORT = 29500


@noun
class Recipe:
    """What is written into a file."""

    name: str
    """Of the job: lower case, digits and dashes."""
    command: str
    cluster: Cluster
    plan: Parallelism
    batch: int
    global_batch: int
    precision: str
    """fp32, fp16 or bf16 as launchers know them; empty: not known."""
    limit_s: int
    """Whole minutes, at the quantile."""
    quantile: float
    host_bytes: float
    """Of one node: a rule of thumb for what to ask of a scheduler."""
    says: str
    """The forecast in a sentence, for a comment."""
    question: Question
    """What was asked, with the batch of the plan: the model, its length, precision, optimizer, adapters and steps."""

    @property
    def num_nodes(self) -> int:
        return self.cluster.num_nodes

    @property
    def per_node(self) -> int:
        return self.cluster.devices_per_node


def make_recipe(
    plan: Plan, *, quantile: float, command: str, precision: str = "", question: Question | None = None
) -> Recipe:
    cluster = plan.cluster
    sizes = {group.devices_per_node for group in cluster.groups}
    if len(sizes) > 1:
        raise InvalidInput(
            f"the cluster has nodes with {', '.join(map(str, sorted(sizes)))} devices; launchers want equal nodes"
        )
    if not command.strip():
        raise InvalidInput("the command is empty; give what every rank runs, such as --command 'train.py --epochs 3'")
    if "\n" in command:
        raise InvalidInput("the command has more than one line; put it into a script")
    limit_s = math.ceil(job_quantile_s(plan.forecast.job, quantile) / MINUTE_S) * int(MINUTE_S)
    return Recipe(
        name=_clean(plan.forecast.workload),
        command=command.strip(),
        cluster=cluster,
        plan=plan.parallelism,
        batch=plan.batch,
        global_batch=plan.forecast.global_batch,
        precision=_mixed(precision),
        limit_s=max(int(MINUTE_S), limit_s),
        quantile=quantile,
        host_bytes=_host_bytes(plan),
        says=_say(plan, quantile, limit_s),
        question=_complete(plan, precision, question),
    )


def _complete(plan: Plan, precision: str, question: Question | None) -> Question:
    asked = question or Question(source=plan.forecast.workload)
    said: WorkloadOptions = replace(
        asked.workload, batch=plan.batch, precision=asked.workload.precision or precision or None
    )
    return replace(asked, workload=said)


def _clean(name: str) -> str:
    text = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower()).strip("-")
    return text[:40].strip("-") or "training"


def _mixed(precision: str) -> str:
    for known in ("bf16", "fp16", "fp8", "fp32"):
        if precision.startswith(known):
            return known
    return ""


def _host_bytes(plan: Plan) -> float:
    """Every rank's process, and the weights of the model once per node while they are loaded."""
    degrees = plan.parallelism
    weights = plan.forecast.memory.by_role.get("parameter", 0.0) * degrees.tensor * degrees.pipeline
    if degrees.zero == 3:
        weights *= degrees.data * degrees.context
    return plan.cluster.devices_per_node * HOST_BYTES_PER_RANK + weights


def _say(plan: Plan, quantile: float, limit_s: float) -> str:
    total = plan.forecast.job.total
    return (
        f"forecast {total.seconds / 3600:.2f} h (90% interval {total.low_s / 3600:.2f} to {total.high_s / 3600:.2f} h); "
        f"the limit of {limit_s / 3600:.2f} h holds with probability {quantile:g}"
    )


def settings(recipe: Recipe) -> dict[str, str]:
    """The plan as variables that a training script can read."""
    plan = recipe.plan
    values = {
        "DATA_PARALLEL": plan.data,
        "TENSOR_PARALLEL": plan.tensor,
        "PIPELINE_PARALLEL": plan.pipeline,
        "CONTEXT_PARALLEL": plan.context,
        "EXPERT_PARALLEL": plan.expert,
        "VIRTUAL_STAGES": plan.virtual_stages,
        "PIPELINE_ORDER": plan.order,
        "ZERO_STAGE": plan.zero,
        "SEQUENCE_PARALLEL": int(plan.sequence_parallel),
        "RECOMPUTE": plan.recompute,
        "MICRO_BATCH_SIZE": recipe.batch,
        "NUM_MICRO_BATCHES": plan.micro_batches,
        "GLOBAL_BATCH_SIZE": recipe.global_batch,
    }
    return {name: str(value) for name, value in values.items()}


def export_lines(recipe: Recipe) -> Iterator[str]:
    yield from (f"export {name}={shlex.quote(value)}" for name, value in settings(recipe).items())


def torchrun_line(recipe: Recipe, *, host: str, extra: Sequence[str] = ()) -> str:
    words = [
        "torchrun",
        f"--nnodes={recipe.num_nodes}",
        f"--nproc-per-node={recipe.per_node}",
        "--rdzv-backend=c10d",
        f'--rdzv-endpoint="{host}:{PORT}"',
        f"--rdzv-id={recipe.name}",
        *extra,
    ]
    return " ".join([*words, recipe.command])
