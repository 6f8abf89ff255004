"""Rewrites a graph under a plan into what each distinct rank really runs."""

from traincast.errors import IllegalPlan
from traincast.lower.check import check_program
from traincast.lower.data import gather_weights, shard_optimizer, sync_gradients
from traincast.lower.rewrite import as_stage
from traincast.spec import Graph, Parallelism, Program, Stage

__all__ = ["lower"]


def lower(graph: Graph, plan: Parallelism) -> Program:
    """The program of each distinct rank; one micro-batch of one replica is the graph's batch."""
    _refuse_unsupported(graph, plan)
    stages: tuple[Stage, ...] = (as_stage(graph),)
    if graph.mode != "inference":
        stages = tuple(shard_optimizer(gather_weights(sync_gradients(s, plan), plan), plan) for s in stages)
    return check_program(
        Program(stages=stages, parallelism=plan, batch_size=graph.batch_size, mode=graph.mode, notes=graph.assumptions)
    )


def _refuse_unsupported(graph: Graph, plan: Parallelism) -> None:
    for name in ("tensor", "pipeline", "context", "expert", "virtual_stages"):
        if getattr(plan, name) > 1:
            raise IllegalPlan(f"{name} = {getattr(plan, name)} is not supported yet; allowed: 1")
    for name in ("servers", "asynchronous", "offload_optimizer"):
        if getattr(plan, name):
            raise IllegalPlan(f"{name} = {getattr(plan, name)} is not supported yet")
