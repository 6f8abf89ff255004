"""Attention as eager PyTorch runs it (products, mask, softmax, dropout, copies) or as one flash kernel."""

from collections.abc import Sequence

from traincast.catalog.models.layers import (
    add,
    copy,
    copy_back,
    dropout,
    kernel,
    matmul,
    pointwise,
    product_dtype,
    scale,
    softmax,
)
from traincast.catalog.models.recipe import FUSED_ATTENTIONS
from traincast.catalog.models.tape import Gradients, Tape, Value
from traincast.spec.graph import Attr


def attend(
    tape: Tape,
    q: Value,
    k: Value,
    v: Value,
    *,
    heads: int,
    kv_heads: int,
    causal: bool,
    mask: str = "",
    bias: Value | None = None,
    rate: float = 0.0,
    window: int = 0,
    value_dim: int = 0,
    divide: bool = False,
    scaled: bool = True,
) -> Value:
    """Softmax(q k' / sqrt(d) + mask) v on (batch, length, heads x dim) values; returns (batch, q length, heads x dim).

    `mask` is how eager code applies one: "" (none), "add", "where"; `bias` is a learned addition to the scores.
    """
    batch, q_len, q_width = q.shape
    kv_len = k.shape[1]
    dim = q_width // heads
    v_dim = value_dim or dim
    with tape.scope("core"):
        if tape.recipe.attention in FUSED_ATTENTIONS and bias is None:
            return _flash(
                tape, q, k, v, batch=batch, heads=heads, kv_heads=kv_heads, q_len=q_len, kv_len=kv_len,
                dim=dim, v_dim=v_dim, causal=causal, window=window,
            )  # fmt: skip
        selective = tape.recipe.recompute == "selective"
        fused = tape.recipe.fused

        tape.views(6)

        def core() -> Value:
            shape = (batch, heads, q_len, kv_len)
            qs, ks, vs = q, k, v
            if not fused:
                # Heads are transposed views. torch.matmul copies those of several samples; the gradients of queries and
                # values come back transposed and are copied even for one.
                several = batch > 1
                qs = copy(tape, qs, back=True) if several else copy_back(tape, qs)
                if kv_heads < heads:
                    ks = repeat_heads(tape, ks, (batch, heads, kv_len, dim))
                    vs = repeat_heads(tape, vs, (batch, heads, kv_len, v_dim))
                else:
                    ks = copy(tape, ks) if several else ks
                    vs = copy(tape, vs, back=True) if several else copy_back(tape, vs)
            elif kv_heads < heads:
                ks = repeat_heads(tape, ks, (batch, heads, kv_len, dim))
                vs = repeat_heads(tape, vs, (batch, heads, kv_len, v_dim))
            count = batch * heads
            scores = matmul(tape, qs, ks, batch=count, m=q_len, n=kv_len, k=dim, layout="tn", shape=shape)
            if fused and tape.recipe.fused_softmax:
                weights = softmax(tape, scores, fused=True)
            elif fused:
                # Megatron's way out: to fp32, scale, mask, softmax, and back.
                scores = scale(tape, tape.cast(scores, "fp32"), "mul")
                weights = softmax(tape, _where(tape, scores, q_len, kv_len))
                weights = tape.cast(weights, vs.dtype)
            else:
                if scaled:
                    scores = scale(tape, scores, "div" if divide else "mul")
                if bias is not None:
                    scores = add(tape, scores, bias)
                if mask == "where":
                    scores = _where(tape, scores, q_len, kv_len)
                elif mask == "add":
                    rows = q_len if causal else 1
                    table = tape.input("attention_mask", (batch, 1, rows, kv_len), scores.dtype)
                    scores = add(tape, scores, table)
                weights = softmax(tape, scores)
                weights = tape.cast(weights, vs.dtype)
            weights = dropout(tape, weights, rate)
            return matmul(
                tape,
                weights,
                vs,
                batch=count,
                m=q_len,
                n=v_dim,
                k=kv_len,
                layout="nn",
                shape=(batch, heads, q_len, v_dim),
            )

        mixed = tape.checkpoint(core, enabled=selective)
        return copy(tape, mixed, (batch, q_len, heads * v_dim), back=batch > 1 and not fused)


def _where(tape: Tape, scores: Value, q_len: int, kv_len: int) -> Value:
    table = tape.buffer("causal_mask", (1, 1, q_len, kv_len), "bool")

    def backward(g: Value, out: Value) -> Gradients:
        return kernel(tape, "where", (g, table), scores), None

    return pointwise(tape, "where", scores, table, backward=backward)


def repeat_heads(tape: Tape, value: Value, shape: Sequence[int]) -> Value:
    """Shared key or value heads written out for every query head; backward sums them."""
    out = tape.new(shape, value.dtype)
    tape.op("aten.clone", "copy", (value,), (out,), {"function": "repeat", "numel": out.numel}, calls=3)

    def backward(g: Value) -> Gradients:
        gx = tape.gradient_like(value)
        attrs: dict[str, Attr] = {"function": "sum", "rows": value.numel, "cols": g.numel // value.numel}
        tape.op("aten.sum", "reduce", (g,), (gx,), attrs, flop=g.numel, calls=2)
        return (gx,)

    return tape.register(out, (value,), backward)


def _flash(
    tape: Tape,
    q: Value,
    k: Value,
    v: Value,
    *,
    batch: int,
    heads: int,
    kv_heads: int,
    q_len: int,
    kv_len: int,
    dim: int,
    v_dim: int,
    causal: bool,
    window: int,
) -> Value:
    """One kernel that keeps q, k, v, its output and one number per row; backward computes the scores again."""
    share = attended_share(q_len, kv_len, causal=causal, window=window)
    pairs = batch * heads * q_len * kv_len * share
    q, k, v = tape.for_product(q), tape.for_product(k), tape.for_product(v)
    attrs: dict[str, Attr] = {
        "batch": batch, "heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len, "head_dim": dim, "causal": causal,
    }  # fmt: skip
    if window and window < kv_len:
        attrs["window"] = window
    if tape.recipe.attention != "flash":
        attrs["kernel"] = tape.recipe.attention
    if v_dim != dim:
        attrs["value_dim"] = v_dim
    product = product_dtype(tape, q.dtype)
    dtype = q.dtype if product in ("fp8", "fp4") else product

    def run() -> Value:
        out = tape.new((batch, q_len, heads * v_dim), q.dtype)
        lse = tape.new((batch, heads, q_len), "fp32")
        tape.op(
            "aten._scaled_dot_product_flash_attention", "attention", (q, k, v), (out, lse), attrs,
            flop=2.0 * pairs * (dim + v_dim), dtype=dtype, calls=4,
        )  # fmt: skip

        def backward(g: Value) -> Gradients:
            given = [tape.gradient_like(value) for value in (q, k, v)]
            tape.op(
                "aten._scaled_dot_product_flash_attention_backward", "attention", (g, q, k, v, out, lse), given, attrs,
                flop=2.0 * pairs * (3 * dim + 2 * v_dim), dtype=dtype, kernels=3, calls=4,
            )  # fmt: skip
            return given

        return tape.register(out, (q, k, v), backward)

    return tape.checkpoint(run, enabled=tape.recipe.recompute == "selective")


def attended_share(q_len: int, kv_len: int, *, causal: bool, window: int) -> float:
    """Which share of all query-key pairs is not masked."""
    if window and window < kv_len:
        inside = window * q_len - (window * (window - 1) / 2 if causal else 0)
        return inside / (q_len * kv_len)
    if causal and q_len == kv_len:
        return (q_len + 1) / (2 * q_len)
    return 1.0
