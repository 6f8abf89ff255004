"""Samples as the data has them to the graph that trains on them: packed, with losses in parts and averaged weights."""

import math
from dataclasses import replace

from traincast.errors import InvalidInput
from traincast.spec import Graph, Lengths, Op, Tensor, WorkloadOptions
from traincast.units import DTYPE_BYTES


def use_data(graph: Graph, options: WorkloadOptions, lengths: Lengths) -> tuple[Graph, tuple[str, ...]]:
    """The graph with what a question says of its data, its loss and its averages, and what that means in sentences."""
    notes: list[str] = []
    if options.document_masks is not None and not options.packing:
        raise InvalidInput("document_masks goes with samples that are packed; give --packing and --sample-tokens")
    if options.sample_tokens is not None and options.packing and options.document_masks is not False:
        graph, told = mask_documents(graph, lengths)
        notes.append(told)
    if options.loss_chunks is not None:
        graph = chunk_loss(graph, options.loss_chunks)
    if options.gather_negatives:
        graph = gather_negatives(graph)
        notes.append("each sample is compared with those of all replicas, whose embeddings are gathered")
    if options.ema and graph.mode == "training_step":
        graph = average_weights(graph)
    return graph, tuple(notes)


def mask_documents(graph: Graph, lengths: Lengths) -> tuple[Graph, str]:
    """Attention inside each of the samples packed into a sequence. A token attends within its own sample, so the pairs of a
    sequence are those of samples of the length that a token sees on average, E[l^2] / E[l]; fused kernels skip all others."""
    seq = graph.tokens_per_sample
    seen = min(lengths.mean * math.exp(lengths.log_sigma**2), lengths.longest, seq)
    if not any(op.kind == "attention" for op in graph.ops):
        raise InvalidInput(f"{graph.name} has no fused attention; packing with masks needs --attention flash")
    told = (
        f"{seq / lengths.mean:.1f} samples of {lengths.mean:g} tokens on average fill a sequence of {seq}; a token sees "
        f"{seen:.0f} tokens of its own sample"
    )
    ops = tuple([_inside(op, seq, seen) if op.kind == "attention" else op for op in graph.ops])
    return graph.with_ops(ops), told


def _inside(op: Op, seq: int, seen: float) -> Op:
    if int(op.attrs["q_len"]) != seq or int(op.attrs["kv_len"]) != seq:
        return op
    share = seen / seq
    batch = max(1, round(int(op.attrs["batch"]) / share))
    attrs = {**op.attrs, "batch": batch, "q_len": max(1, round(seen)), "kv_len": max(1, round(seen))}
    if int(attrs.get("window", 0)) >= seen:
        attrs.pop("window", None)
    return replace(op, attrs=attrs, flop=None if op.flop is None else op.flop * share)


def chunk_loss(graph: Graph, chunks: int) -> Graph:
    """Scores for every word exist for one part of the tokens at a time, and their gradient right after (Hsu et al. 2024)."""
    if chunks < 1:
        raise InvalidInput(f"loss_chunks = {chunks}; it must be a whole number of at least 1")
    head = next((op for op in reversed(graph.ops) if op.phase == "forward" and op.kind == "matmul"), None)
    if head is None:
        raise InvalidInput(f"{graph.name} ends in no product, so its loss cannot be made in parts")
    whole = int(head.attrs["m"]) * int(head.attrs["n"])

    def part(tensor: Tensor) -> Tensor:
        if tensor.numel != whole or tensor.role not in ("activation", "temporary"):
            return tensor
        return replace(tensor, shape=(math.ceil(whole / chunks),))

    return replace(graph, tensors=tuple([part(tensor) for tensor in graph.tensors]))


CONTRAST = "contrast"
"""The layer of a model of two towers in which samples are compared."""


def gather_negatives(graph: Graph) -> Graph:
    """Each replica compares its own samples with those of all (Radford et al. 2021). The products that do so are marked; how many
    replicas there are is the plan's to say."""
    product = next((op for op in graph.ops if _compares(op) and op.phase == "forward"), None)
    if product is None:
        raise InvalidInput(f"{graph.name} has no contrastive loss; gather_negatives goes with models of two towers")
    sent = 2.0 * int(product.attrs["m"]) * int(product.attrs["k"]) * DTYPE_BYTES[product.dtype]
    marked = {next(at for at, op in enumerate(graph.ops) if _compares(op) and op.phase == phase)
              for phase in {op.phase for op in graph.ops if _compares(op)}}  # fmt: skip
    ops = [
        replace(op, attrs={**op.attrs, "gathered_bytes": sent if at in marked else 0.0})
        if op.layer.split(".")[0] in (CONTRAST, "loss")
        else op
        for at, op in enumerate(graph.ops)
    ]
    known = tuple(text for text in graph.assumptions if "contrastive loss" not in text)
    return replace(graph, ops=tuple(ops), assumptions=known)


def _compares(op: Op) -> bool:
    return op.kind == "matmul" and op.layer.split(".")[0] == CONTRAST


def average_weights(graph: Graph) -> Graph:
    """An fp32 average of the trained weights, held and sharded as optimizer state is: read with the weights, written back."""
    update = next((op for op in graph.ops if op.kind == "optimizer"), None)
    if update is None:
        raise InvalidInput(f"{graph.name} has no optimizer, so no weights to average")
    numel = sum(tensor.numel * tensor.copies for tensor in graph.tensors if tensor.role == "gradient")
    average = Tensor(shape=(numel,), dtype="fp32", role="optimizer_state", name="ema")
    op = replace(
        update, name="ema.lerp_", flop=3.0 * numel, bytes_read=8.0 * numel, bytes_written=4.0 * numel,
        reads=(len(graph.tensors),), writes=(len(graph.tensors),), attrs={**update.attrs, "algorithm": "ema", "numel": numel},
        layer="ema",
    )  # fmt: skip
    return replace(graph, ops=(*graph.ops, op), tensors=(*graph.tensors, average))
