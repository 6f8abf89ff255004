"""Rewrites a graph under a plan into what each distinct rank really runs."""

from dataclasses import replace
from typing import TYPE_CHECKING

from traincast.errors import IllegalPlan
from traincast.facade import load_lazily
from traincast.lower._attend import find_attention
from traincast.lower._check import check_stages
from traincast.lower._context import split_context
from traincast.lower._contrast import exchange_embeddings
from traincast.lower._data import (
    Writers,
    find_writers,
    gather_weights,
    name_last_bucket,
    shard_state,
    share_updates,
    shrink_temporaries,
    sync_gradients,
    use_servers,
)
from traincast.lower._evaluate import mark_evaluation
from traincast.lower._expert import spread_experts
from traincast.lower._fuse import ON_CPU as ON_CPU
from traincast.lower._fuse import choose_kept as choose_kept
from traincast.lower._fuse import fuse
from traincast.lower._fuse import leave_eager as leave_eager
from traincast.lower._fuse import mark_autotuned as mark_autotuned
from traincast.lower._offload import offload_state
from traincast.lower._orders import mark_orders as mark_orders
from traincast.lower._pipeline import cut_sorts
from traincast.lower._pipeline import in_flight as in_flight
from traincast.lower._recompute import recompute
from traincast.lower._rewrite import as_stage
from traincast.lower._statistics import watch_gradients
from traincast.lower._stow import offload_weights, stow_activations
from traincast.lower._tables import spread_tables
from traincast.lower._tensor import split_tensors
from traincast.memo import Remember, compute
from traincast.spec import Graph, Parallelism, PlanHabits, Program, Stage

__all__ = ["lower", "run_again", "share_model", "split_model", "spread_state"]

PLAIN_HABITS = PlanHabits()


def lower(
    graph: Graph, plan: Parallelism, *, compiled: bool = False, captured: bool = False,
    habits: PlanHabits = PLAIN_HABITS, remember: Remember = compute,
) -> Program:  # fmt: skip
    """The program of each distinct rank; one micro-batch of one replica is the graph's batch. A pipeline of 64 has three or
    four sorts of stages, and each is made once. `captured`: the step is a program of fixed sizes.
    `habits`: what the stack runs on gradients besides."""
    _refuse_unsupported(graph, plan)
    sorts, owner = remember(cut_sorts, split_model(graph, plan, compiled=compiled, remember=remember), plan)
    if graph.mode != "inference":
        sorts = tuple([remember(spread_state, sort, remember(find_writers, sort), plan) for sort in sorts])
        sorts = tuple([remember(add_habits, sort, plan, habits) for sort in sorts])
    elif plan.zero == 3:
        sorts = tuple([remember(gather_weights, sort, plan) for sort in sorts])
    check_stages(sorts, remember=remember)
    stages = tuple(
        replace(sorts[sort], index=index, num_in_flight=in_flight(plan, index) if plan.pipeline > 1 else 1)
        for index, sort in enumerate(owner)
    )
    return Program(
        stages=stages, parallelism=plan, batch_size=graph.batch_size, mode=graph.mode, notes=graph.assumptions,
        input_variation=0.0 if captured and graph.padded else graph.input_variation,
        largest_batch=graph.largest_batch, preparation_s=graph.preparation_s + _copy_inputs_s(graph, habits),
    )  # fmt: skip


def _copy_inputs_s(graph: Graph, habits: PlanHabits) -> float:
    if habits.input_bytes_per_s is None:
        return 0.0
    return graph.role_bytes("input") / habits.input_bytes_per_s


def split_model(graph: Graph, plan: Parallelism, *, compiled: bool = False, remember: Remember = compute) -> Stage:
    """What one rank of the context, tensor and expert axes runs, before a pipeline cuts it and replicas share its state."""
    return remember(share_model, remember(run_again, graph, plan), plan, compiled)


def run_again(graph: Graph, plan: Parallelism) -> Stage:
    """The whole step with what the plan recomputes."""
    return recompute(as_stage(mark_orders(mark_evaluation(graph))), plan.recompute)


def share_model(whole: Stage, plan: Parallelism, compiled: bool) -> Stage:
    """One rank's part of a whole step."""
    shared = spread_tables(spread_experts(split_tensors(split_context(whole, plan), plan), plan), plan)
    shared = exchange_embeddings(shared, plan)
    return fuse(find_attention(shared)) if compiled else shared


def spread_state(stage: Stage, writers: Writers, plan: Parallelism) -> Stage:
    """Gradients, optimizer state and weights over the replicas, or on parameter servers. `writers`: by `find_writers`."""
    synced = sync_gradients(stage, writers, plan)
    if plan.servers:
        return shrink_temporaries(use_servers(synced, plan))
    sharded = shard_state(gather_weights(synced, plan), plan)
    return shrink_temporaries(offload_state(offload_weights(stow_activations(sharded, plan), plan), plan))


def add_habits(stage: Stage, plan: Parallelism, habits: PlanHabits) -> Stage:
    """What the stack runs on gradients and how it shares updates."""
    return watch_gradients(share_updates(name_last_bucket(stage, habits), plan, habits), plan, habits)


def _refuse_unsupported(graph: Graph, plan: Parallelism) -> None:
    if plan.offload_optimizer and plan.servers:
        raise IllegalPlan(f"offload_optimizer = True: the {plan.servers} servers hold the optimizer state already")
    if plan.offload_optimizer and not any(op.kind == "optimizer" for op in graph.ops):
        raise IllegalPlan("offload_optimizer = True: this graph has no optimizer; use a training step with one")
    if plan.servers and (plan.offload_weights or plan.offload_activations or plan.activation_dtype):
        raise IllegalPlan(
            f"servers = {plan.servers} hold the weights; offload and packed activations do not go with them"
        )
    if plan.asynchronous and not plan.servers:
        raise IllegalPlan("asynchronous = True needs parameter servers; set servers to at least 1")
    if plan.servers and (plan.zero or plan.num_devices != plan.data):
        raise IllegalPlan(f"servers = {plan.servers} go with data parallelism alone: zero = 0 and all other degrees 1")


if TYPE_CHECKING:
    from traincast.lower._check import check_program as check_program

__getattr__ = load_lazily(
    __name__,
    {
        "_check": ("check_program",),
    },
)
