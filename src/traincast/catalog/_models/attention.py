"""Attention as eager PyTorch runs it (products, mask, softmax, dropout, copies) or as one flash kernel."""

from collections.abc import Sequence

from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import FUSED_ATTENTIONS
from traincast.catalog._models.tape import Gradients, Value
from traincast.noun import noun
from traincast.spec import Attr


@noun
class Heads:
    """The sizes of one attention: how many heads of which width, over which lengths, and what each query may see."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    dim: int
    v_dim: int
    causal: bool
    window: int = 0

    @property
    def attended_share(self) -> float:
        """Which share of all query-key pairs is not masked."""
        if self.window and self.window < self.kv_len:
            inside = self.window * self.q_len - (self.window * (self.window - 1) / 2 if self.causal else 0)
            return inside / (self.q_len * self.kv_len)
        if self.causal and self.q_len == self.kv_len:
            return (self.q_len + 1) / (2 * self.q_len)
        return 1.0


@noun
class Scores:
    """What eager code does to the scores between the two products."""

    mask: str = ""
    """How it applies a mask: "" (none), "add", "where"."""
    bias: Value | None = None
    """A learned addition."""
    rate: float = 0.0
    """Of dropout on the weights."""
    scaled: bool = True
    divide: bool = False
    """Scaled by a division instead of a product."""


def attend(
    tape: Net, q: Value, k: Value, v: Value, *, heads: int, kv_heads: int, causal: bool,
    scores: Scores | None = None, window: int = 0, value_dim: int = 0,
) -> Value:  # fmt: skip
    """Softmax(q k' / sqrt(d) + mask) v on (batch, length, heads x dim) values; returns (batch, q length, heads x dim)."""
    between = scores or Scores()
    batch, q_len, q_width = q.shape
    dim = q_width // heads
    sizes = Heads(
        batch=batch, heads=heads, kv_heads=kv_heads, q_len=q_len, kv_len=k.shape[1], dim=dim, v_dim=value_dim or dim,
        causal=causal, window=window,
    )  # fmt: skip
    if causal and tape.recipe.keeps_keys and not tape.recipe.trains:
        tape.return_with_scores(k, v)
    with tape.scope("core"):
        if tape.recipe.attention in FUSED_ATTENTIONS and between.bias is None:
            return _flash(tape, q, k, v, sizes)
        tape.views(6)
        mixed = tape.checkpoint(
            lambda: _eager(tape, q, k, v, sizes, between), enabled=tape.recipe.recompute == "selective"
        )
        return tape.copy(mixed, (batch, q_len, heads * sizes.v_dim), back=batch > 1 and not tape.recipe.fused)


def _eager(tape: Net, q: Value, k: Value, v: Value, sizes: Heads, between: Scores) -> Value:
    """Two products with what lies between them written out."""
    qs, ks, vs = _arrange_heads(tape, q, k, v, sizes)
    count, q_len, kv_len, v_dim = sizes.batch * sizes.heads, sizes.q_len, sizes.kv_len, sizes.v_dim
    shape = (sizes.batch, sizes.heads, q_len, kv_len)
    scores = tape.matmul(qs, ks, batch=count, m=q_len, n=kv_len, k=sizes.dim, layout="tn", shape=shape)
    weights = tape.dropout(_weigh(tape, scores, vs.dtype, sizes, between), between.rate)
    out = (sizes.batch, sizes.heads, q_len, v_dim)
    return tape.matmul(weights, vs, batch=count, m=q_len, n=v_dim, k=kv_len, layout="nn", shape=out)


def _arrange_heads(tape: Net, q: Value, k: Value, v: Value, sizes: Heads) -> tuple[Value, Value, Value]:
    """Queries, keys and values as the products read them; shared heads are written out."""
    fused, several = tape.recipe.fused, sizes.batch > 1
    if not fused:
        # Heads are transposed views. torch.matmul copies those of several samples; the gradients of queries and
        # values come back transposed and are copied even for one.
        q = tape.copy(q, back=True) if several else tape.copy_back(q)
    if sizes.kv_heads < sizes.heads:
        k = repeat_heads(tape, k, (sizes.batch, sizes.heads, sizes.kv_len, sizes.dim))
        v = repeat_heads(tape, v, (sizes.batch, sizes.heads, sizes.kv_len, sizes.v_dim))
    elif not fused:
        k = tape.copy(k) if several else k
        v = tape.copy(v, back=True) if several else tape.copy_back(v)
    return q, k, v


def _weigh(tape: Net, scores: Value, dtype: str, sizes: Heads, between: Scores) -> Value:
    """Scores to the weights of the values: scale, mask, softmax, in the value's format."""
    if tape.recipe.fused and tape.recipe.fused_softmax:
        return tape.softmax(scores, fused=True)
    if tape.recipe.fused:
        # Megatron's way out: to fp32, scale, mask, softmax, and back.
        scores = tape.scale(tape.cast(scores, "fp32"), "mul")
        return tape.cast(tape.softmax(_where(tape, scores, sizes.q_len, sizes.kv_len)), dtype)
    if between.scaled:
        scores = tape.scale(scores, "div" if between.divide else "mul")
    if between.bias is not None:
        scores = tape.add(scores, between.bias)
    if between.mask == "where":
        scores = _where(tape, scores, sizes.q_len, sizes.kv_len)
    elif between.mask == "add":
        rows = sizes.q_len if sizes.causal else 1
        table = tape.input("attention_mask", (sizes.batch, 1, rows, sizes.kv_len), scores.dtype)
        scores = tape.add(scores, table)
    return tape.cast(tape.softmax(scores), dtype)


def _where(tape: Net, scores: Value, q_len: int, kv_len: int) -> Value:
    table = tape.buffer("causal_mask", (1, 1, q_len, kv_len), "bool")

    def backward(g: Value, out: Value) -> Gradients:
        return tape.kernel("where", (g, table), scores), None

    return tape.pointwise("where", scores, table, backward=backward)


def repeat_heads(tape: Net, value: Value, shape: Sequence[int]) -> Value:
    """Shared key or value heads written out for every query head; backward sums them."""
    out = tape.new(shape, value.dtype)
    tape.op("aten.clone", "copy", (value,), (out,), {"function": "repeat", "numel": out.numel}, calls=3)

    def backward(g: Value) -> Gradients:
        gx = tape.gradient_like(value)
        attrs: dict[str, Attr] = {"function": "sum", "rows": value.numel, "cols": g.numel // value.numel}
        tape.op("aten.sum", "reduce", (g,), (gx,), attrs, flop=g.numel, calls=2)
        return (gx,)

    return tape.register(out, (value,), backward)


def _flash(tape: Net, q: Value, k: Value, v: Value, sizes: Heads) -> Value:
    """One kernel that keeps q, k, v, its output and one number per row; backward computes the scores again."""
    batch, heads, q_len, kv_len = sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len
    dim, v_dim = sizes.dim, sizes.v_dim
    pairs = batch * heads * q_len * kv_len * sizes.attended_share
    q, k, v = tape.for_product(q), tape.for_product(k), tape.for_product(v)
    attrs: dict[str, Attr] = {
        "batch": batch, "heads": heads, "kv_heads": sizes.kv_heads, "q_len": q_len, "kv_len": kv_len, "head_dim": dim,
        "causal": sizes.causal,
    }  # fmt: skip
    if sizes.window and sizes.window < kv_len:
        attrs["window"] = sizes.window
    if tape.recipe.attention != "flash":
        attrs["kernel"] = tape.recipe.attention
    if v_dim != dim:
        attrs["value_dim"] = v_dim
    product = tape.product_dtype(q.dtype)
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
