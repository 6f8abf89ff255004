"""Recommendation: neural collaborative filtering and DLRM."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from traincast.catalog._models.layers import (
    activation,
    add,
    concat,
    dropout,
    embedding,
    gather_rows,
    linear,
    matmul,
    mean_loss,
    multiply,
    table_lookup,
)
from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.tape import Gradients, Tape, Value
from traincast.spec import Attr, Graph

if TYPE_CHECKING:
    from traincast.catalog._workloads import Sizes


def build_neumf(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """Matrix factorisation beside an MLP on user and item embeddings (He 2017); a sample is one pair of ids."""
    config = entry["config"]
    tape = Tape(recipe)
    batch = sizes.batch
    users, items = config["users"], config["items"]
    factors, widths = config["factors"], config["mlp"]
    half = widths[0] // 2
    user = tape.input("user", (batch,), "int64")
    item = tape.input("item", (batch,), "int64")
    mf_user = embedding(tape, user, vocab=users, width=factors, name="mf_user")
    mf_item = embedding(tape, item, vocab=items, width=factors, name="mf_item")
    mlp_user = embedding(tape, user, vocab=users, width=half, name="mlp_user")
    mlp_item = embedding(tape, item, vocab=items, width=half, name="mlp_item")
    product = multiply(tape, mf_user, mf_item)
    x = concat(tape, (mlp_user, mlp_item), (batch, 2 * half))
    rate = recipe.rate(config.get("dropout", 0.0))
    with tape.scope("mlp"):
        for index, width in enumerate(widths[1:]):
            x = dropout(tape, activation(tape, "relu", linear(tape, x, width, name=f"fc{index}")), rate)
    product = tape.cast(product, x.dtype)
    both = concat(tape, (product, x), (batch, factors + widths[-1]))
    score = linear(tape, both, 1, name="output")
    outputs = [mean_loss(tape, score, "binary_cross_entropy_with_logits")] if recipe.trains and recipe.loss else [score]
    return tape.finish(outputs, name=name, batch_size=batch, source=entry["source"])


def build_dlrm(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """Dense features through an MLP, categorical ones through tables, all pairs multiplied (Naumov 2019), or crossed (DCN v2)."""
    config = entry["config"]
    tape = Tape(recipe)
    batch, dim = sizes.batch, config["dim"]
    hot = config.get("lookups_per_table", 1)
    tape.assume("embedding gradients are sparse: only the rows that were read are updated")
    x = tape.input("dense", (batch, 13), "fp32")
    x = tape.cast(x, tape.numbers.compute) if not tape.numbers.autocast else x
    with tape.scope("bottom"):
        for index, width in enumerate(config["bottom"]):
            x = _rectified(tape, x, width, name=f"fc{index}")
    count = len(config["tables"]) + 1
    bags = batch * (count - 1)
    ids = tape.input("ids", (bags * hot,), "int64")
    looked = table_lookup(tape, ids, rows=config["tables"], width=dim, bags=bags)
    looked = tape.view(tape.cast(looked, x.dtype), (batch, (count - 1) * dim))
    stacked = concat(tape, (x, looked), (batch, count * dim))
    top = config["top"]
    if config.get("cross_layers"):
        tape.assume(f"{hot} ids are looked up in every table (mean of the multi-hot data)")
        y = cross(tape, stacked, layers=config["cross_layers"], rank=config["cross_rank"])
    elif recipe.fused:
        with tape.scope("interaction"):
            y = _interact(tape, stacked, count=count, dim=dim)
    else:
        with tape.scope("interaction"):
            square = matmul(
                tape, stacked, stacked, batch=batch, m=count, n=count, k=dim, layout="tn", shape=(batch, count * count)
            )
            pairs = count * (count - 1) // 2
            flat = gather_rows(
                tape, tape.view(square, (batch * count * count, 1)), batch * pairs, function="index_select"
            )
            y = concat(tape, (x, tape.view(flat, (batch, pairs))), (batch, dim + pairs))
    with tape.scope("top"):
        for index, width in enumerate(top):
            last = index == len(top) - 1
            y = linear(tape, y, width, name=f"fc{index}") if last else _rectified(tape, y, width, name=f"fc{index}")
    outputs = [mean_loss(tape, y, "binary_cross_entropy_with_logits")] if recipe.trains and recipe.loss else [y]
    return tape.finish(outputs, name=name, batch_size=batch, source=entry["source"])


def _rectified(tape: Tape, x: Value, width: int, *, name: str) -> Value:
    """A dense layer and its activation. Fused, the product adds the bias and cuts at zero as it writes, and the product before it
    in the backward pass does the same to the gradient (epilogues of cuBLASLt)."""
    out = linear(tape, x, width, name=name)
    return out if tape.recipe.fused else activation(tape, "relu", out)


def _interact(tape: Tape, vectors: Value, *, count: int, dim: int) -> Value:
    """All pairs in one kernel each way, which reads every vector once and writes the lower triangle beside the dense features
    (Mudigere et al. 2022; the fused layer of the published submissions)."""
    batch = vectors.shape[0]
    pairs = count * (count - 1) // 2
    flop = 2.0 * batch * count * count * dim
    out = tape.new((batch, dim + pairs), vectors.dtype)
    attrs: dict[str, Attr] = {"function": "interaction", "numel": vectors.numel, "num_inputs": 1}
    tape.op("fused.interaction", "elementwise", (vectors,), (out,), attrs, flop=flop)

    def backward(g: Value) -> Gradients:
        gradient = tape.gradient_like(vectors)
        both: dict[str, Attr] = {"function": "interaction_backward", "numel": vectors.numel, "num_inputs": 2}
        tape.op("fused.interaction_backward", "elementwise", (g, vectors), (gradient,), both, flop=2 * flop)
        return (gradient,)

    return tape.register(out, (vectors,), backward)


def cross(tape: Tape, x: Value, *, layers: int, rank: int) -> Value:
    """x0 * (V U x + b) + x, a few times (Wang 2021)."""
    width = x.shape[1]
    y = x
    for index in range(layers):
        with tape.scope(f"cross{index}"):
            inner = linear(tape, linear(tape, y, rank, bias=False, name="down"), width, name="up")
            y = add(tape, multiply(tape, x, inner), y)
    return y
