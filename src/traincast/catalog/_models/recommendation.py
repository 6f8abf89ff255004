"""Recommendation: neural collaborative filtering and DLRM."""

from collections.abc import Mapping
from typing import Any

from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import Sizes
from traincast.catalog._models.tape import Gradients, Value
from traincast.spec import Attr, Graph


def build_neumf(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """Matrix factorisation beside an MLP on user and item embeddings (He 2017); a sample is one pair of ids."""
    batch = sizes.batch
    users, items = config["users"], config["items"]
    factors, widths = config["factors"], config["mlp"]
    half = widths[0] // 2
    user = tape.input("user", (batch,), "int64")
    item = tape.input("item", (batch,), "int64")
    mf_user = tape.embedding(user, vocab=users, width=factors, name="mf_user")
    mf_item = tape.embedding(item, vocab=items, width=factors, name="mf_item")
    mlp_user = tape.embedding(user, vocab=users, width=half, name="mlp_user")
    mlp_item = tape.embedding(item, vocab=items, width=half, name="mlp_item")
    product = tape.multiply(mf_user, mf_item)
    x = tape.concat((mlp_user, mlp_item), (batch, 2 * half))
    rate = tape.recipe.rate(config.get("dropout", 0.0))
    with tape.scope("mlp"):
        for index, width in enumerate(widths[1:]):
            x = tape.dropout(tape.activation("relu", tape.linear(x, width, name=f"fc{index}")), rate)
    product = tape.cast(product, x.dtype)
    both = tape.concat((product, x), (batch, factors + widths[-1]))
    score = tape.linear(both, 1, name="output")
    return tape.close([score], lambda: tape.mean_loss(score, "binary_cross_entropy_with_logits"))


def build_dlrm(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """Dense features through an MLP, categorical ones through tables, all pairs multiplied (Naumov 2019), or crossed (DCN v2)."""
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
    looked = tape.table_lookup(ids, rows=config["tables"], width=dim, bags=bags)
    looked = tape.view(tape.cast(looked, x.dtype), (batch, (count - 1) * dim))
    stacked = tape.concat((x, looked), (batch, count * dim))
    top = config["top"]
    if config.get("cross_layers"):
        tape.assume(f"{hot} ids are looked up in every table (mean of the multi-hot data)")
        y = cross(tape, stacked, layers=config["cross_layers"], rank=config["cross_rank"])
    elif tape.recipe.fused:
        with tape.scope("interaction"):
            y = _interact(tape, stacked, count=count, dim=dim)
    else:
        with tape.scope("interaction"):
            square = tape.matmul(
                stacked, stacked, batch=batch, m=count, n=count, k=dim, layout="tn", shape=(batch, count * count)
            )
            pairs = count * (count - 1) // 2
            flat = tape.gather_rows(
                tape.view(square, (batch * count * count, 1)), batch * pairs, function="index_select"
            )
            y = tape.concat((x, tape.view(flat, (batch, pairs))), (batch, dim + pairs))
    with tape.scope("top"):
        for index, width in enumerate(top):
            last = index == len(top) - 1
            y = tape.linear(y, width, name=f"fc{index}") if last else _rectified(tape, y, width, name=f"fc{index}")
    return tape.close([y], lambda: tape.mean_loss(y, "binary_cross_entropy_with_logits"))


def _rectified(tape: Net, x: Value, width: int, *, name: str) -> Value:
    """A dense layer and its activation. Fused, the product adds the bias and cuts at zero as it writes, and the product before it
    in the backward pass does the same to the gradient (epilogues of cuBLASLt)."""
    out = tape.linear(x, width, name=name)
    return out if tape.recipe.fused else tape.activation("relu", out)


def _interact(tape: Net, vectors: Value, *, count: int, dim: int) -> Value:
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


def cross(tape: Net, x: Value, *, layers: int, rank: int) -> Value:
    """x0 * (V U x + b) + x, a few times (Wang 2021)."""
    width = x.shape[1]
    y = x
    for index in range(layers):
        with tape.scope(f"cross{index}"):
            inner = tape.linear(tape.linear(y, rank, bias=False, name="down"), width, name="up")
            y = tape.add(tape.multiply(x, inner), y)
    return y
