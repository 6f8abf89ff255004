"""A number format that was asked for to the one that the devices of a cluster run."""

import dataclasses

from traincast.catalog import BLOCK_SCALED, precision_name
from traincast.spec import Cluster, Graph, Notes, WorkloadOptions

_WIDER = {"fp8": ("bf16", "fp16"), "bf16": (), "fp16": ()}
"""Formats in which products of another are run where a device has no units for that one; else on ordinary cores in fp32."""


def written_precision(graph: Graph) -> str:
    """The number format that a recorded step was written in: that of most of its matmuls, cast (-amp) where weights are wider."""
    flop: dict[str, float] = {}
    for op in graph.ops:
        if op.kind in ("matmul", "conv", "attention", "rnn"):
            flop[op.dtype] = flop.get(op.dtype, 0.0) + (op.flop or 0.0)
    compute = max(flop, key=lambda dtype: flop[dtype], default="fp32")
    weights = {tensor.dtype for tensor in graph.tensors if tensor.role == "parameter" and len(tensor.shape) > 1}
    return f"{compute}-amp" if compute in ("bf16", "fp16") and weights == {"fp32"} else compute


def fit_precision(options: WorkloadOptions, cluster: Cluster | None) -> tuple[WorkloadOptions, Notes]:
    """Without formats that a device lacks: block scales need the matrix units that came with fp4, and some have no TF32."""
    if cluster is None or not isinstance(options.precision, str):
        return options, ()
    devices = [group.device for group in cluster.groups]
    notes: list[str] = []
    if precision_name(options.precision) in BLOCK_SCALED:
        lacking = [device.name for device in devices if device.peak_flop_per_s("fp4") is None]
        if lacking:
            notes.append(
                f"{lacking[0]} has no matrix units with scales for blocks; {options.precision} runs as bf16 there"
            )
            options = dataclasses.replace(options, precision="bf16")
    dtype = precision_name(str(options.precision)).partition("-")[0]
    for device in devices:
        if dtype not in _WIDER or device.peak_flop_per_s(dtype) is not None or not device.matrix_flop_per_s:
            continue
        wider = next((name for name in _WIDER[dtype] if device.peak_flop_per_s(name) is not None), None)
        how = f"in {wider}" if wider else "in fp32 on ordinary cores"
        notes.append(f"{device.name} has no matrix units for {dtype}; its matmuls run {how}")
        break
    without = [device.name for device in devices if device.peak_flop_per_s("tf32") is None]
    if options.precision == "tf32" and without:
        notes.append(f"{without[0]} has no TF32; fp32 taken")
        options = dataclasses.replace(options, precision="fp32")
    return options, tuple(notes)
