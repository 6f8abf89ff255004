"""A job, a cluster and a plan to the numbers by which learned systems tell settings apart, and a first guess of the step."""

import math

import numpy as np
from numpy.typing import NDArray

from traincast.noun import noun
from traincast.spec import MATMULS, Cluster, Graph, Job, Parallelism
from traincast.units import DTYPE_BYTES

SETTING = (
    "log_compute_s", "log_memory_s", "log_host_s", "log_wire_s", "compute_share", "host_share", "wire_share", "log_flop_per_s",
    "log_bytes_per_s", "log_link", "log_data", "log_nodes", "log_local", "log_split", "log_micro_batches", "log_servers",
    "asynchronous", "sharded", "sockets", "training", "compiled", "replayed", "half", "log_batch", "log_parameters",
)  # fmt: skip


@noun
class Setting:
    """Where and how a graph runs, as one rank sees it."""

    numbers: NDArray[np.float64]
    """One for each of SETTING."""
    guess_s: float
    """Of a step: work over the rates of the data sheet, or what the host issues, and gradients over the slowest link."""


def read_setting(job: Job, cluster: Cluster, plan: Parallelism) -> Setting:
    graph, first = job.graph, cluster.groups[0]
    flop, moved, kernels, calls, peak = _add_up(graph, cluster)
    split = plan.tensor * plan.pipeline * plan.context
    passes = plan.micro_batches
    rate = min(group.device.memory_bytes_per_s * group.speed for group in cluster.groups)
    compute_s, memory_s = passes * flop / split / peak, passes * moved / split / rate
    host_s = passes * (calls * job.stack.forward_call_s + kernels * job.stack.launch_s)
    host_s = 0.0 if job.cuda_graphs else host_s / plan.pipeline
    gradients = sum(t.num_bytes * t.copies for t in graph.tensors if t.role == "parameter") / (
        plan.tensor * plan.pipeline
    )
    link = min(group.inter.bytes_per_s / group.devices_per_node for group in cluster.groups)
    if cluster.num_nodes == 1:
        link = min(group.intra.bytes_per_s for group in cluster.groups)
    wire_s = 2.0 * gradients * (plan.data - 1) / plan.data / link if graph.mode != "inference" else 0.0
    if plan.servers:
        wire_s *= max(1.0, plan.data / plan.servers / 2)
    work_s = max(compute_s + memory_s, host_s)
    guess_s = max(work_s, wire_s) + 0.3 * min(work_s, wire_s) + 1e-9
    half = any(DTYPE_BYTES.get(op.dtype, 4.0) <= 2 for op in graph.ops if op.kind in MATMULS)
    numbers = (
        *(math.log10(seconds + 1e-7) for seconds in (compute_s, memory_s, host_s, wire_s)),
        compute_s / (compute_s + memory_s + 1e-12), host_s / (host_s + compute_s + memory_s + 1e-12), wire_s / guess_s,
        math.log10(peak), math.log10(rate), math.log10(link), math.log2(plan.data), math.log2(cluster.num_nodes),
        math.log2(first.devices_per_node), math.log2(split), math.log2(passes), math.log2(1 + plan.servers),
        float(plan.asynchronous), float(plan.zero > 0), float(first.inter.transport == "sockets"),
        float(graph.mode != "inference"), float(job.compiled), float(job.cuda_graphs), float(half),
        math.log2(max(graph.batch_size, 1)), math.log10(1 + graph.num_parameters),
    )  # fmt: skip
    return Setting(numbers=np.array(numbers, dtype=np.float64), guess_s=guess_s)


def _add_up(graph: Graph, cluster: Cluster) -> tuple[float, float, float, float, float]:
    """FLOP, bytes, kernels and calls of one pass, and the FLOP per second of the slowest device for its matmuls."""
    flop = moved = kernels = calls = 0.0
    for op, count in zip(graph.ops, graph.counts(), strict=True):
        flop += count * (op.flop or 0.0)
        moved += count * op.num_bytes
        kernels += count * op.num_kernels
        calls += count * op.num_calls
    dtypes = {op.dtype for op in graph.ops if op.kind in MATMULS}
    peaks = []
    for group in cluster.groups:
        device = group.device
        every = max({**device.vector_flop_per_s, **device.matrix_flop_per_s}.values())
        peaks.append(
            group.speed * max((device.peak_flop_per_s(dtype) or 0.0 for dtype in dtypes), default=0.0) or every
        )
    return flop, moved, kernels, calls, min(peaks)
