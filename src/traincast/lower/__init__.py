"""Rewrites a graph under a plan into what each distinct rank really runs."""

from collections.abc import Callable
from dataclasses import replace

from traincast.errors import IllegalPlan
from traincast.lower.attend import find_attention
from traincast.lower.check import check_program
from traincast.lower.context import split_context
from traincast.lower.data import gather_weights, shard_state, shrink_temporaries, sync_gradients, use_servers
from traincast.lower.evaluate import mark_evaluation
from traincast.lower.expert import spread_experts
from traincast.lower.fuse import fuse
from traincast.lower.offload import offload_state
from traincast.lower.pipeline import cut_pipeline
from traincast.lower.recompute import recompute
from traincast.lower.rewrite import as_stage
from traincast.lower.tables import spread_tables
from traincast.lower.tensor import split_tensors
from traincast.spec import Graph, Parallelism, Program, Stage

__all__ = ["lower", "split_model", "spread_state"]


def lower(graph: Graph, plan: Parallelism, *, compiled: bool = False) -> Program:
    """The program of each distinct rank; one micro-batch of one replica is the graph's batch."""
    _refuse_unsupported(graph, plan)
    stages = cut_pipeline(split_model(graph, plan, compiled=compiled), plan)
    if graph.mode != "inference":
        stages = _for_each_distinct(
            stages,
            lambda stage: spread_state(stage, plan),
        )
    return check_program(
        Program(stages=stages, parallelism=plan, batch_size=graph.batch_size, mode=graph.mode, notes=graph.assumptions)
    )


def split_model(graph: Graph, plan: Parallelism, *, compiled: bool = False) -> Stage:
    """What one rank of the context, tensor and expert axes runs, before a pipeline cuts it and replicas share its state."""
    whole = recompute(as_stage(mark_evaluation(graph)), plan.recompute)
    shared = spread_tables(spread_experts(split_tensors(split_context(whole, plan), plan), plan), plan)
    return fuse(find_attention(shared)) if compiled else shared


def _for_each_distinct(stages: tuple[Stage, ...], rewrite: Callable[[Stage], Stage]) -> tuple[Stage, ...]:
    """Rewrite stages with the same tasks once: a pipeline of 64 has three or four sorts of them."""
    done: dict[int, Stage] = {}
    for stage in stages:
        if id(stage.tasks) not in done:
            done[id(stage.tasks)] = rewrite(stage)
    return tuple(
        replace(done[id(stage.tasks)], index=stage.index, num_in_flight=stage.num_in_flight) for stage in stages
    )


def spread_state(stage: Stage, plan: Parallelism) -> Stage:
    """Gradients, optimizer state and weights over the replicas, or on parameter servers."""
    synced = sync_gradients(stage, plan)
    if plan.servers:
        return shrink_temporaries(use_servers(synced, plan))
    return shrink_temporaries(offload_state(shard_state(gather_weights(synced, plan), plan), plan))


def _refuse_unsupported(graph: Graph, plan: Parallelism) -> None:
    if plan.offload_optimizer and plan.servers:
        raise IllegalPlan(f"offload_optimizer = True: the {plan.servers} servers hold the optimizer state already")
    if plan.offload_optimizer and not any(op.kind == "optimizer" for op in graph.ops):
        raise IllegalPlan("offload_optimizer = True: this graph has no optimizer; use a training step with one")
    if plan.asynchronous and not plan.servers:
        raise IllegalPlan("asynchronous = True needs parameter servers; set servers to at least 1")
    if plan.servers and (plan.zero or plan.num_devices != plan.data):
        raise IllegalPlan(f"servers = {plan.servers} go with data parallelism alone: zero = 0 and all other degrees 1")
