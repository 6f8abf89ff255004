"""Rewrites a graph under a plan into what each distinct rank really runs."""

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from traincast.errors import IllegalPlan
from traincast.facade import load_lazily
from traincast.lower._check import check_stages
from traincast.lower._data import (
    Writers,
    find_writers,
    gather_weights,
    name_last_bucket,
    send_at_once,
    shard_state,
    share_updates,
    shrink_temporaries,
    sync_gradients,
    use_servers,
)
from traincast.lower._pipeline import cut_sorts
from traincast.lower._pipeline import in_flight as in_flight
from traincast.lower._rewrite import GATHERED, as_stage, is_table, reads_host
from traincast.memo import Remember, compute
from traincast.spec import Graph, Op, Parallelism, PlanHabits, Program, Stage

__all__ = ["lower", "run_again", "share_model", "split_model", "spread_state"]

PLAIN_HABITS = PlanHabits()


def _all_but(*names: str) -> tuple[str, ...]:
    return tuple(item.name for item in fields(Parallelism) if item.name not in names)


_SPLIT = _all_but(
    "data", "pipeline", "virtual_stages", "micro_batches", "zero", "shard", "regather", "recompute", "order", "balance",
    "bucket_bytes", "bucket_copies", "overlap", "reduce_dtype", "servers", "asynchronous", "offload_optimizer",
    "offload_weights", "offload_activations", "offload_to", "gather_dtype",
)  # fmt: skip
_CUT = _all_but(
    "expert", "expert_tensor", "expert_capacity", "expert_imbalance", "dispatch_once", "overlap_experts", "micro_batches",
    "zero", "shard", "regather", "recompute", "order", "bucket_bytes", "bucket_copies", "overlap", "reduce_dtype",
    "async_tensor", "servers", "asynchronous", "offload_optimizer", "offload_weights", "offload_activations", "offload_to",
    "table_sharding", "table_cache", "table_hits", "gather_dtype",
)  # fmt: skip
_STATE = _all_but(
    "pipeline", "expert_capacity", "expert_imbalance", "dispatch_once", "overlap_experts", "virtual_stages",
    "micro_batches", "sequence_parallel", "recompute", "order", "balance", "bucket_copies", "async_tensor",
    "table_sharding", "table_cache", "table_hits",
)  # fmt: skip
"""Fields that may decide how a model is split, cut into stages, and how its state is spread: plans that differ in the others
share it. A new field counts everywhere until it is named here."""


def lower(
    graph: Graph, plan: Parallelism, *, compiled: bool = False, captured: bool = False,
    habits: PlanHabits = PLAIN_HABITS, remember: Remember = compute,
) -> Program:  # fmt: skip
    """The program of each distinct rank; one micro-batch of one replica is the graph's batch. A pipeline of 64 has three or
    four sorts of stages, and each is made once. `captured`: the step is a program of fixed sizes.
    `habits`: what the stack runs on gradients besides."""
    _refuse_unsupported(graph, plan)
    whole = split_model(graph, plan, compiled=compiled, remember=remember)
    sorts, owner = remember(cut_sorts, whole, plan.only(_CUT if plan.pipeline > 1 else ()))
    state = plan.only((*_STATE, "pipeline") if plan.zero == 2 else _STATE)
    if graph.mode != "inference":
        lone = plan.only(("data", "context", "zero"))
        sorts = tuple([remember(spread_state, sort, remember(find_writers, sort), state) for sort in sorts])
        sorts = tuple([remember(add_habits, sort, lone, habits) for sort in sorts])
        if "first_stage_buckets" in habits.runs and plan.pipeline > 1:
            sorts = tuple(
                [sort if place == owner[0] else remember(send_at_once, sort) for place, sort in enumerate(sorts)]
            )
    elif plan.zero == 3:
        sorts = tuple([remember(gather_weights, sort, state) for sort in sorts])
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
    rate = habits.amount("input_bytes_per_s")
    if rate is None:
        return 0.0
    return graph.role_bytes("input") / rate


def split_model(graph: Graph, plan: Parallelism, *, compiled: bool = False, remember: Remember = compute) -> Stage:
    """What one rank of the context, tensor and expert axes runs, before a pipeline cuts it and replicas share its state."""
    whole = remember(run_again, graph, plan.recompute)
    return remember(share_model, whole, narrow_split(whole, plan, remember=remember), compiled)


def narrow_split(whole: Stage, plan: Parallelism, *, remember: Remember = compute) -> Parallelism:
    """What of a plan `share_model` looks at: the number of replicas only where these exchange samples."""
    return plan.only((*_SPLIT, "data", "overlap") if remember(exchanges_samples, whole) else _SPLIT)


def exchanges_samples(whole: Stage) -> bool:
    return any(is_table(task) or (isinstance(task, Op) and GATHERED in task.attrs) for task in whole.tasks)


def run_again(graph: Graph, how: str) -> Stage:
    """The whole step with what a plan recomputes."""
    whole = as_stage(mark_orders(mark_evaluation(graph)))
    if how == "none":
        return whole
    from traincast.lower._recompute import recompute

    return recompute(whole, how)


def mark_evaluation(graph: Graph) -> Graph:
    """Norms of an inference graph apply given statistics; its convolutions and pooling run without what training adds to them."""
    if graph.mode != "inference":
        return graph
    marked = ("norm", "conv", "pool")
    ops = tuple(replace(op, attrs={**op.attrs, "training": False}) if op.kind in marked else op for op in graph.ops)
    return replace(graph, ops=ops)


def mark_orders(graph: Graph) -> Graph:
    """Convolutions and norms say in which order they find the channels of an image."""
    if not any(op.kind == "conv" for op in graph.ops):
        return graph
    from traincast.lower._orders import mark_orders

    return mark_orders(graph)


def share_model(whole: Stage, plan: Parallelism, compiled: bool) -> Stage:
    """One rank's part of a whole step. Only the passes that change something are loaded."""
    shared = whole
    if plan.context > 1:
        from traincast.lower._context import split_context

        shared = split_context(shared, plan)
    if plan.tensor > 1:
        from traincast.lower._tensor import split_tensors

        shared = split_tensors(shared, plan)
    if plan.expert > 1 or plan.folds_experts or plan.expert_load != 1:
        from traincast.lower._expert import spread_experts

        shared = spread_experts(shared, plan)
    if (
        plan.table_sharding is not None
        or plan.table_cache is not None
        or any(is_table(task) or reads_host(task) for task in shared.tasks)
    ):
        from traincast.lower._tables import spread_tables

        shared = spread_tables(shared, plan)
    if plan.data > 1 and any(GATHERED in task.attrs for task in shared.tasks if isinstance(task, Op)):
        from traincast.lower._contrast import exchange_embeddings

        shared = exchange_embeddings(shared, plan)
    if not compiled:
        return shared
    from traincast.lower._attend import find_attention
    from traincast.lower._fuse import fuse

    return fuse(find_attention(shared))


def spread_state(stage: Stage, writers: Writers, plan: Parallelism) -> Stage:
    """Gradients, optimizer state and weights over the replicas, or on parameter servers. `writers`: by `find_writers`."""
    synced = sync_gradients(stage, writers, plan)
    if plan.servers:
        return shrink_temporaries(use_servers(synced, plan))
    spread = shard_state(gather_weights(synced, plan), plan)
    if plan.offload_activations or plan.offload_weights:
        from traincast.lower._stow import offload_weights, stow_activations

        spread = offload_weights(stow_activations(spread, plan), plan)
    if plan.offload_optimizer:
        from traincast.lower._offload import offload_state

        spread = offload_state(spread, plan)
    return shrink_temporaries(spread)


def add_habits(stage: Stage, plan: Parallelism, habits: PlanHabits) -> Stage:
    """What the stack runs on gradients and how it shares updates."""
    shared = share_updates(name_last_bucket(stage, habits), plan, habits)
    if not any(map(habits.num_calls, ("backward", "update", "update scaled"))):
        return shared
    from traincast.lower._statistics import watch_gradients

    return watch_gradients(shared, habits)


def _refuse_unsupported(graph: Graph, plan: Parallelism) -> None:
    if plan.offload_optimizer and plan.servers:
        raise IllegalPlan(f"offload_optimizer = True: the {plan.servers} servers hold the optimizer state already")
    if plan.offload_optimizer and not any(op.kind == "optimizer" for op in graph.ops):
        raise IllegalPlan("offload_optimizer = True: this graph has no optimizer; use a training step with one")
    if plan.servers and (plan.offload_weights or plan.offload_activations):
        raise IllegalPlan(f"servers = {plan.servers} hold the weights; offloading does not go with them")
    if plan.asynchronous and not plan.servers:
        raise IllegalPlan("asynchronous = True needs parameter servers; set servers to at least 1")
    if plan.servers and (plan.zero or plan.num_devices != plan.data):
        raise IllegalPlan(f"servers = {plan.servers} go with data parallelism alone: zero = 0 and all other degrees 1")


if TYPE_CHECKING:
    from traincast.lower._check import check_program
    from traincast.lower._fuse import ON_CPU, choose_kept, leave_eager, mark_autotuned
    from traincast.lower._samples import use_data

__getattr__ = load_lazily(__name__)
