"""A row of a table becomes the question that a person would type, and what its numbers mean; `resolve` does the rest."""

from dataclasses import field, replace
from typing import Any

from traincast.accuracy._cases import ASKED_COLUMNS, Case
from traincast.accuracy._translate.machine import read_cluster
from traincast.accuracy._translate.plan import read_micro_batch, read_plan
from traincast.accuracy._translate.workload import read_workload
from traincast.catalog import LogFacts, find_stack, log_facts, plain_stack, with_version
from traincast.noun import noun
from traincast.plan import decide
from traincast.resolve import Resolved
from traincast.spec import Cluster, Graph, Job, Parallelism, Question, Stack, WorkloadOptions

__all__ = ["CaseQuestion", "read_question", "translate"]


@noun
class CaseQuestion:
    """What a row asks, resolved, and how its source counts memory."""

    question: Question
    resolved: Resolved
    assumptions: tuple[str, ...] = ()
    logs: LogFacts = field(default_factory=LogFacts)
    counts_device: bool = False
    """Whether the source read the device's own meter, which counts all that its process has taken."""

    @property
    def job(self) -> Job:
        return self.resolved.job

    @property
    def cluster(self) -> Cluster:
        return self.resolved.cluster

    @property
    def parallelism(self) -> Parallelism:
        return self.resolved.parallelism


def translate(case: Case) -> CaseQuestion:
    """Ask a case; what cannot be asked raises a TraincastError that says why."""
    said: list[str] = []
    question, stack = read_question(case, said)
    resolved = decide(question)
    if log_facts(stack.name).known_to_run and not _state_fits(resolved):
        said.append("weights, gradients and optimizer state exceed the recipe's device; the state is off it")
        question = replace(question, parallelism={**question.parallelism, "offload_optimizer": True})
        resolved = decide(question)
    spelling = log_facts(stack.name).metered_spelling
    return CaseQuestion(
        question=question,
        resolved=resolved,
        assumptions=tuple(dict.fromkeys([*said, *resolved.assumptions])),
        logs=log_facts(stack.name),
        counts_device=bool(spelling) and spelling in (case.framework or ""),
    )


def read_question(case: Case, said: list[str]) -> tuple[Question, Stack]:
    """The question of a row with the stack that it names; what the row leaves open is said."""
    case = _count_devices(case, said)
    stack = read_stack(case, said)
    plan = read_plan(case, stack, said)
    batch = read_micro_batch(case, data=plan["data"], passes=plan["micro_batches"], said=said)
    source, workload = read_workload(case, stack, batch=batch, zero=plan.get("zero", 0), said=said)
    job: dict[str, Any] = {"stack": with_version(stack, case.version).spelling} if _find_named(case) else {}
    if case.compiled or "xla" in case.settings:
        job["compiled"] = True
    if case.settings & {"cuda_graphs", "cudagraph", "cuda-graphs"}:
        job["cuda_graphs"] = True
    if case.undetermined:
        said.append(f"the source leaves open: {case.undetermined}")
    parts: dict[str, dict[str, Any]] = {
        "workload": workload, "cluster": dict(read_cluster(case, said)), "parallelism": dict(plan), "job": job, "": {},
    }  # fmt: skip
    if case.settings & {"channels_last", "nhwc"}:
        parts[ASKED_COLUMNS["channels_last"].section]["channels_last"] = True
    for name, value in case.asked:
        parts[ASKED_COLUMNS[name].section][name] = value
    question = Question(
        source=source, workload=WorkloadOptions(**parts["workload"]), cluster=parts["cluster"],
        parallelism=parts["parallelism"], job=parts["job"], calibration=parts[""].get("calibration"),
    )  # fmt: skip
    return question, stack


def read_stack(case: Case, said: list[str]) -> Stack:
    """The stack that a framework's spelling means. Where no document knows it, columns mean what they do for plain PyTorch, and
    what runs the plan is assumed as for a question."""
    found = _find_named(case)
    if found is None and case.framework:
        said.append(f"the stack {case.framework} is not known")
    return found or plain_stack()


def _find_named(case: Case) -> Stack | None:
    return find_stack(case.framework) if case.framework else None


def _count_devices(case: Case, said: list[str]) -> Case:
    """Without a number of devices, the nodes or the plan say it."""
    if case.n_gpus is not None:
        return case
    degrees = (case.dp or 1) * (case.tp or 1) * (case.pp or 1) * (case.cp or 1)
    on_nodes = case.n_nodes * case.gpus_per_node if case.n_nodes and case.gpus_per_node else 1
    said.append(f"the number of devices is not known; {max(degrees, on_nodes)} assumed")
    return replace(case, n_gpus=max(degrees, on_nodes))


def _state_fits(resolved: Resolved) -> bool:
    """Whether what an update needs at once fits, activations aside; sharded state is taken to."""
    graph: Graph = resolved.job.graph
    if not any(op.kind == "optimizer" for op in graph.ops):
        return True
    roles = ("parameter", "gradient", "optimizer_state")
    capacity = min(group.device.memory_bytes for group in resolved.cluster.groups)
    return resolved.parallelism.zero > 0 or sum(graph.role_bytes(role) for role in roles) < capacity
