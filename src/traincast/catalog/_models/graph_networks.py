"""Graph neural networks on sampled neighbourhoods: relational graph attention."""

from collections.abc import Mapping
from typing import Any

from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import Sizes
from traincast.catalog._models.tape import Gradients, Value
from traincast.spec import Attr, Graph
from traincast.units import DTYPE_BYTES


def build_rgat(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """Attention over the sampled neighbours of every relation, outermost first (Veličković 2018, Busbridge 2019).

    The neighbourhood of a batch is fetched from host memory, because the features of the whole graph exceed a device.
    """
    batch, width, heads = sizes.batch, config["hidden"], config["heads"]
    classes = sizes.num_classes or config["num_classes"]
    asked = sizes.sampling
    neighbours = list((asked and asked.fan_outs) or config["neighbours"])
    unique = config["unique"] if asked is None or asked.distinct is None else asked.distinct
    nodes = count_nodes(batch, neighbours, unique=unique)
    tape.assume(
        f"a seed has {' x '.join(map(str, neighbours))} sampled neighbours over all relations, of which "
        f"{unique:.0%} are distinct: {nodes[0]:,} nodes for {batch:,} seeds (--fan-outs, --distinct-neighbours)"
    )
    cached = asked is not None and asked.cache_bytes > 0
    where = f"but for {asked.hits:.0%} that a cache on the device answers" if asked and cached else "(--feature-cache)"
    tape.assume(f"features lie in host memory in half precision {where}; sampling keeps ahead of the device")
    x = fetch_features(
        tape, nodes[0], config["features"], cache_bytes=asked.cache_bytes if asked else 0.0,
        hits=asked.hits if asked else 0.0,
    )  # fmt: skip
    for index, (targets, fan_out) in enumerate(zip(nodes[1:], reversed(neighbours), strict=True)):
        with tape.scope(f"layer{index}"):
            x = attend_neighbours(tape, x, width=width, heads=heads, targets=targets, edges=targets * fan_out)
            if index < len(nodes) - 2:
                x = tape.dropout(tape.activation("leaky_relu", x), tape.recipe.rate(0.2))
    scores = tape.linear(x, classes, name="classifier")
    return tape.close([scores], lambda: tape.cross_entropy(scores), samples_unit="seeds")


def count_nodes(batch: int, neighbours: list[int], *, unique: float) -> list[int]:
    """Nodes of every hop, the outermost first and the seeds last."""
    nodes = [batch]
    for fan_out in neighbours:
        nodes.append(nodes[-1] + max(1, round(unique * nodes[-1] * fan_out)))
    return nodes[::-1]


def fetch_features(tape: Net, rows: int, width: int, *, cache_bytes: float = 0.0, hits: float = 0.0) -> Value:
    """Features of a batch's nodes: what the cache on the device has is read there, the rest crosses the link to the host."""
    out = tape.new((rows, width), "fp16", role="activation")
    cache = [tape.buffer("features", (int(cache_bytes // DTYPE_BYTES["fp16"]),), "fp16")] if cache_bytes >= 2 else []
    attrs: dict[str, Attr] = {"function": "host_gather", "numel": out.numel, "host_share": 1.0 - hits}
    tape.op("gather_features", "index", cache, (out,), attrs, bytes_read=hits * out.num_bytes)
    return tape.cast(out, tape.numbers.compute)


def attend_neighbours(tape: Net, x: Value, *, width: int, heads: int, targets: int, edges: int) -> Value:
    """Project all nodes, score every edge from its two ends, softmax over the edges of a target, sum weighted neighbours."""
    rows = x.shape[0]
    projected = tape.linear(x, width, bias=False, name="project")
    ends = tape.linear(projected, 2 * heads, bias=False, name="attention")
    scores = spread_to_edges(tape, ends, edges=edges, width=heads)
    weights = tape.softmax(tape.activation("leaky_relu", scores))
    own = tape.take(projected, (targets, width)) if targets < rows else projected
    return tape.add(sum_neighbours(tape, projected, weights, targets=targets), tape.copy(own))


def spread_to_edges(tape: Net, ends: Value, *, edges: int, width: int) -> Value:
    """One score for each edge and head, from the values of the node it leaves and the node it enters."""
    out = tape.new((edges, width), ends.dtype)
    attrs: dict[str, Attr] = {"function": "gather_edges", "numel": out.numel}
    item = DTYPE_BYTES[ends.dtype]
    tape.op(
        "dgl.gsddmm", "index", (ends,), (out,), attrs, flop=out.numel, bytes_read=2.0 * out.numel * item + 8.0 * edges
    )

    def backward(g: Value) -> Gradients:
        given = tape.gradient_like(ends)
        tape.op("dgl.gsddmm_backward", "index", (g,), (given,), attrs, flop=2 * g.numel, kernels=2, calls=2)
        return (given,)

    return tape.register(out, (ends,), backward)


def sum_neighbours(tape: Net, x: Value, weights: Value, *, targets: int) -> Value:
    """A product with a sparse matrix: every edge reads the vector of its source."""
    edges, width = weights.shape[0], x.shape[1]
    out = tape.new((targets, width), x.dtype)
    attrs: dict[str, Attr] = {"function": "sum_neighbours", "numel": edges * width}
    moved = float(edges * width) * DTYPE_BYTES[x.dtype]
    tape.op(
        "dgl.gspmm", "index", (x, weights), (out,), attrs, flop=2.0 * edges * width,
        bytes_read=moved + weights.num_bytes + 8.0 * edges,
    )  # fmt: skip

    def backward(g: Value) -> Gradients:
        gx, gw = tape.gradient_like(x), tape.gradient_like(weights)
        tape.op(
            "dgl.gspmm_backward", "index", (g, x, weights), (gx, gw), attrs, flop=4.0 * edges * width,
            bytes_read=2 * moved + weights.num_bytes + 16.0 * edges, kernels=2, calls=2,
        )  # fmt: skip
        return gx, gw

    return tape.register(out, (x, weights), backward)
