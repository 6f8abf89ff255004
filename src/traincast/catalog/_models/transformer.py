"""Transformer language models and encoders: a shape and a recipe in, the folded graph of one step out."""

import math
from collections.abc import Callable

from traincast.catalog._models.attention import Scores, attend
from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import FUSED_ATTENTIONS, Recipe
from traincast.catalog._models.tape import Gradients, Value
from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec import Attr, Graph

NORMS = ("layer_norm", "rms_norm", "none_affine")
POSITIONS = ("learned", "rotary", "alibi", "none", "sinusoidal")


@noun
class TransformerShape:
    """A stack of identical transformer layers with its embeddings and head."""

    n_layers: int
    hidden: int
    heads: int
    vocab: int
    kv_heads: int = 0
    """0: as many as heads."""
    head_dim: int = 0
    """0: hidden / heads."""
    ffn: int = 0
    """0: 4 x hidden."""
    gated: bool = False
    seq: int = 1024
    max_positions: int = 0
    """Rows of a learned position table; 0: seq."""
    tied: bool = False
    norm: str = "layer_norm"
    pre_norm: bool = True
    norm_bias: bool = True
    bias: bool = True
    attention_bias: bool | None = None
    """Bias of the query, key and value products; None: as `bias`."""
    output_bias: bool | None = None
    """Bias of the product after attention; None: as `bias`."""
    positions: str = "learned"
    rotary_share: float = 1.0
    qk_norm: bool = False
    causal: bool = True
    activation: str = "gelu"
    merged_qkv: bool = False
    """One product makes queries, keys and values."""
    layout: str = "tn"
    """"nn" for the Conv1D layers of Hugging Face's GPT-2."""
    mask: str = "add"
    """How eager attention masks: "add", "where" or ""."""
    divide: bool = False
    parallel_residual: bool = False
    shared_norm: bool = False
    """With a parallel residual: attention and MLP read the same norm."""
    sandwich_norm: bool = False
    """Norms after attention and MLP as well as before (Gemma 2 and 3)."""
    embedding_norm: bool = False
    embedding_scale: bool = False
    embedding_width: int = 0
    """Tables narrower than hidden with a projection (ALBERT, ELECTRA, OPT-350m)."""
    shared_layers: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    experts: int = 0
    experts_per_token: int = 0
    moe_ffn: int = 0
    shared_experts: int = 0
    shared_ffn: int = 0
    """Width of the shared expert; 0: shared_experts x moe_ffn."""
    first_dense: int = 0
    """Dense layers before the first with experts."""
    moe_every: int = 1
    expert_bias: bool = False
    token_types: int = 0
    pooler: bool = False
    head: str = "lm"
    """lm, mlm (transform + decoder), pretraining (mlm + next sentence), squad, classes, none."""
    num_classes: int = 2
    head_bias: bool = False
    windows: tuple[int, ...] = ()
    """Attention window of consecutive layers, 0 = unlimited; the pattern repeats."""
    q_rank: int = 0
    kv_rank: int = 0
    """Above 0: multi-head latent attention (DeepSeek)."""
    rope_dim: int = 64
    value_dim: int = 0

    def __post_init__(self) -> None:
        for name in ("n_layers", "hidden", "heads", "vocab", "seq"):
            if getattr(self, name) < 1:
                raise InvalidInput(
                    f"transformer {name} = {getattr(self, name)}; it must be a whole number of at least 1"
                )
        if self.head_dim == 0 and self.hidden % self.heads:
            raise InvalidInput(f"hidden = {self.hidden} is not a multiple of heads = {self.heads}; give head_dim")
        if self.kv_heads and self.heads % self.kv_heads:
            raise InvalidInput(f"heads = {self.heads} is not a multiple of kv_heads = {self.kv_heads}")
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise InvalidInput(
                f"experts_per_token = {self.experts_per_token}; it must be between 1 and experts = {self.experts}"
            )
        if self.norm not in NORMS:
            raise InvalidInput(f"norm = {self.norm!r}; allowed: {', '.join(NORMS)}")
        if self.positions not in POSITIONS:
            raise InvalidInput(f"positions = {self.positions!r}; allowed: {', '.join(POSITIONS)}")

    @property
    def dim(self) -> int:
        return self.head_dim or self.hidden // self.heads

    @property
    def num_kv_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def width(self) -> int:
        """Of the dense MLP."""
        return self.ffn or 4 * self.hidden


def build_transformer(
    shape: TransformerShape, recipe: Recipe, *, batch: int, name: str = "transformer", source: str = ""
) -> Graph:
    """One step of the model on `batch` sequences of `shape.seq` tokens."""
    tape = Net(recipe)
    hidden, table = embed_tokens(tape, shape, batch)
    # Behind a frozen table the first layer's adapters still ask for a gradient, and folded layers are all alike.
    hidden.needs_gradient = recipe.trains
    hidden = run_stack(tape, shape, hidden)
    outputs = run_head(tape, shape, hidden, table)
    return tape.finish(
        outputs, name=name, batch_size=batch, tokens_per_sample=shape.seq, samples_unit="sequences", source=source
    )


def embed_tokens(tape: Net, shape: TransformerShape, batch: int) -> tuple[Value, Value]:
    with tape.scope("embeddings"):
        ids = tape.input("input_ids", (batch, shape.seq), "int64")
        width = shape.embedding_width or shape.hidden
        with tape.scope("tokens"):
            table = tape.parameter("weight", (shape.vocab, width))
        hidden = tape.embedding(ids, vocab=shape.vocab, width=width, name="tokens", weight=table)
        if shape.embedding_scale:
            hidden = tape.scale(hidden)
        if shape.token_types:
            kinds = tape.input("token_type_ids", (batch, shape.seq), "int64")
            hidden = tape.add(hidden, tape.embedding(kinds, vocab=shape.token_types, width=width, name="token_types"))
        if shape.positions == "learned":
            rows = max(shape.max_positions, shape.seq)
            hidden = tape.add(hidden, tape.position_table(length=shape.seq, width=width, rows=rows))
        elif shape.positions == "sinusoidal":
            hidden = tape.add(hidden, tape.buffer("positions", (shape.seq, width), hidden.dtype))
        if shape.embedding_norm:
            hidden = normalize(tape, shape, hidden, "norm")
        hidden = tape.dropout(hidden, tape.recipe.rate(shape.dropout))
        if width != shape.hidden:
            hidden = tape.linear(hidden, shape.hidden, name="projection")
        if tape.numbers.autocast and not shape.pre_norm:
            hidden = tape.cast(hidden, "fp32")
    return hidden, table


def normalize(tape: Net, shape: TransformerShape, value: Value, name: str) -> Value:
    if shape.norm == "rms_norm":
        return tape.rms_norm(value, name=name, fused=tape.recipe.fused)
    return tape.layer_norm(value, name=name, affine=shape.norm != "none_affine", bias=shape.norm_bias)


def run_stack(tape: Net, shape: TransformerShape, hidden: Value) -> Value:
    """All layers: runs of equal ones are folded, patterns of windows and of experts too."""
    if shape.causal and shape.mask == "add" and tape.recipe.attention == "eager" and not tape.recipe.fused:
        prepare_mask(tape, hidden.shape[0], shape.seq)
    tables = rotary_tables(tape, shape) if shape.positions == "rotary" else ()
    bias = alibi_bias(tape, shape) if shape.positions == "alibi" else None
    windows, period = _pattern(shape)

    again = shape.n_layers if tape.recipe.recompute_layers is None else tape.recipe.recompute_layers

    def layers(first: int, count: int, *, again: bool) -> Callable[[Value], Value]:
        def body(value: Value) -> Value:
            for index in range(first, first + count):
                routed = bool(shape.experts) and index >= shape.first_dense and (index + 1) % shape.moe_every == 0
                value = run_layer(
                    tape, shape, value, tables=tables, bias=bias, routed=routed, window=windows[index % len(windows)],
                    again=again,
                )  # fmt: skip
            return value

        return body

    if shape.shared_layers:
        with tape.scope("layers"):
            return tape.repeat(shape.n_layers, hidden, layers(0, 1, again=True), shared=True)
    with tape.scope("layers"):
        dense = min(shape.first_dense, shape.n_layers) if shape.experts else 0
        hidden = tape.repeat(dense, hidden, layers(0, 1, again=again > 0))
        left = shape.n_layers - dense
        at = dense
        for count in runs_of_layers(
            left // period, max(0, again - dense) / period, stages=tape.recipe.recompute_stages
        ):
            hidden = tape.repeat(abs(count), hidden, layers(at, period, again=count > 0))
            at += abs(count) * period
        for index in range(shape.n_layers - left % period, shape.n_layers):
            hidden = layers(index, 1, again=index < again)(hidden)
    return hidden


def _pattern(shape: TransformerShape) -> tuple[tuple[int, ...], int]:
    """(windows of consecutive layers, layers after which windows and experts repeat)."""
    windows = tuple(0 if window >= shape.seq else window for window in shape.windows) or (0,)
    if len(set(windows)) == 1:
        windows = windows[:1]
    period = len(windows)
    return windows, max(period, shape.moe_every) if shape.experts and shape.moe_every > 1 else period


def runs_of_layers(num_layers: int, again: float, *, stages: int) -> list[int]:
    """Layers that follow each other and run again (above 0) or do not (below 0), where `again` layers of every stage of a
    pipeline do. Which layers of a stage they are makes no difference to it, so that neighbouring stages share a run."""
    runs: list[int] = []
    # A run of one layer is not folded, so the longer sort comes first and last, and the shorter meets that of a neighbour.
    starts_again = stages == 1 or 2 * min(math.ceil(again), num_layers // stages) > num_layers // stages
    for stage in range(stages):
        size = (stage + 1) * num_layers // stages - stage * num_layers // stages
        twice = min(size, math.ceil(again))
        pair = (twice, twice - size) if (stage % 2 == 0) == starts_again else (twice - size, twice)
        for count in pair:
            if count and runs and (runs[-1] > 0) == (count > 0):
                runs[-1] += count
            elif count:
                runs.append(count)
    return runs


def run_layer(
    tape: Net, shape: TransformerShape, value: Value, *, tables: tuple[Value, ...] = (), bias: Value | None = None,
    routed: bool = False, window: int = 0, again: bool = True,
) -> Value:  # fmt: skip
    def body() -> Value:
        rate = tape.recipe.rate(shape.dropout)
        residual = value
        if shape.parallel_residual:
            normed = normalize(tape, shape, value, "attention_norm")
            attended = self_attention(tape, shape, normed, tables=tables, bias=bias, window=window)
            other = normed if shape.shared_norm else normalize(tape, shape, value, "mlp_norm")
            mixed = mlp(tape, shape, other)
            return tape.add(tape.add(tape.dropout(mixed, rate), tape.dropout(attended, rate)), residual)
        normed = normalize(tape, shape, value, "attention_norm") if shape.pre_norm else value
        attended = self_attention(tape, shape, normed, tables=tables, bias=bias, window=window)
        if shape.sandwich_norm:
            attended = normalize(tape, shape, attended, "post_attention_norm")
        middle = join(tape, attended, residual, rate, name="attention.output")
        if not shape.pre_norm:
            middle = normalize(tape, shape, middle, "attention_norm")
        normed = normalize(tape, shape, middle, "mlp_norm") if shape.pre_norm else middle
        mixed = experts(tape, shape, normed) if routed else mlp(tape, shape, normed)
        if shape.sandwich_norm:
            mixed = normalize(tape, shape, mixed, "post_mlp_norm")
        out = join(tape, mixed, middle, rate, name="mlp.down")
        return out if shape.pre_norm else normalize(tape, shape, out, "mlp_norm")

    return tape.checkpoint(body, enabled=again and tape.recipe.recompute == "full")


def join(tape: Net, branch: Value, residual: Value, rate: float, *, name: str) -> Value:
    """Dropout and the residual sum; one kernel when fused (the bias of the product before it is inside)."""
    if not tape.recipe.fused or rate <= 0:
        return tape.add(residual, tape.dropout(branch, rate))
    out = tape.new(residual.shape, residual.dtype)
    mask = tape.new(residual.shape, "bool")
    attrs: dict[str, Attr] = {"function": "bias_dropout_add", "numel": out.numel, "num_inputs": 2}
    tape.op("megatron.bias_dropout_add", "elementwise", (branch, residual), (out, mask), attrs, flop=4 * out.numel)

    def backward(g: Value) -> Gradients:
        return tape.kernel("dropout_backward", (g, mask), branch), g

    return tape.register(out, (branch, residual), backward)


def self_attention(
    tape: Net, shape: TransformerShape, x: Value, *, tables: tuple[Value, ...], bias: Value | None, window: int
) -> Value:
    batch, seq, _ = x.shape
    heads, kv_heads, dim = shape.heads, shape.num_kv_heads, shape.dim
    biased = shape.bias if shape.attention_bias is None else shape.attention_bias
    output_bias = shape.bias if shape.output_bias is None else shape.output_bias
    rate = tape.recipe.rate(shape.attention_dropout)
    with tape.scope("attention"):
        if shape.kv_rank:
            return latent_attention(tape, shape, x, tables=tables)
        if shape.merged_qkv or tape.recipe.fused:
            wide = tape.linear(x, (heads + 2 * kv_heads) * dim, bias=biased, name="qkv", layout=shape.layout)
            q, k, v = tape.split(
                wide, ((batch, seq, heads * dim), (batch, seq, kv_heads * dim), (batch, seq, kv_heads * dim))
            )
        else:
            q = tape.linear(x, heads * dim, bias=biased, name="query", layout=shape.layout)
            k = tape.linear(x, kv_heads * dim, bias=biased, name="key", layout=shape.layout)
            v = tape.linear(x, kv_heads * dim, bias=biased, name="value", layout=shape.layout)
        if shape.qk_norm:
            q = tape.rms_norm(q, name="query_norm", fused=tape.recipe.fused, width=dim)
            k = tape.rms_norm(k, name="key_norm", fused=tape.recipe.fused, width=dim)
        if tables:
            q = rotate(tape, q, tables, dim=dim, share=shape.rotary_share)
            k = rotate(tape, k, tables, dim=dim, share=shape.rotary_share)
        mixed = attend(
            tape, q, k, v, heads=heads, kv_heads=kv_heads, causal=shape.causal, window=window,
            scores=Scores(mask=shape.mask, bias=bias, rate=rate, divide=shape.divide),
        )  # fmt: skip
        return tape.linear(mixed, shape.hidden, bias=output_bias, name="output", layout=shape.layout)


def latent_attention(tape: Net, shape: TransformerShape, x: Value, *, tables: tuple[Value, ...]) -> Value:
    """Queries, keys and values through low-rank bottlenecks (DeepSeek-AI 2024), each key with a shared rotary part."""
    batch, seq, _ = x.shape
    heads, rope, fused = shape.heads, shape.rope_dim, tape.recipe.fused
    nope, v_dim = shape.dim, shape.value_dim or shape.dim
    if shape.q_rank:
        q = tape.linear(x, shape.q_rank, bias=False, name="query_down")
        q = tape.rms_norm(q, name="query_norm", fused=fused)
        q = tape.linear(q, heads * (nope + rope), bias=False, name="query_up")
    else:
        q = tape.linear(x, heads * (nope + rope), bias=False, name="query")
    small = tape.linear(x, shape.kv_rank + rope, bias=False, name="kv_down")
    latent, k_rope = tape.split(small, ((batch, seq, shape.kv_rank), (batch, seq, rope)))
    latent = tape.rms_norm(latent, name="kv_norm", fused=fused)
    kv = tape.linear(latent, heads * (nope + v_dim), bias=False, name="kv_up")
    k_nope, v = tape.split(kv, ((batch, seq, heads * nope), (batch, seq, heads * v_dim)))
    q_nope, q_rope = tape.split(q, ((batch, seq, heads * nope), (batch, seq, heads * rope)))
    q_rope = rotate(tape, q_rope, tables, dim=rope, share=1.0)
    k_rope = rotate(tape, k_rope, tables, dim=rope, share=1.0)
    spread = tape.pointwise(
        "expand", k_rope, shape=(batch, seq, heads * rope), backward=lambda g, out: (tape.sum_to(g, k_rope),)
    )
    q = tape.concat((q_nope, q_rope), (batch, seq, heads * (nope + rope)))
    k = tape.concat((k_nope, spread), (batch, seq, heads * (nope + rope)))
    mixed = attend(
        tape, q, k, v, heads=heads, kv_heads=heads, causal=shape.causal, value_dim=v_dim,
        scores=Scores(mask=shape.mask, rate=tape.recipe.rate(shape.attention_dropout)),
    )  # fmt: skip
    return tape.linear(mixed, shape.hidden, bias=False, name="output")


def prepare_mask(tape: Net, batch: int, seq: int) -> None:
    """Hugging Face builds the additive mask once per step: comparisons, logic and a select on all pairs."""
    mask = tape.new((batch, 1, seq, seq), tape.numbers.compute)
    attrs: dict[str, Attr] = {"function": "where", "numel": mask.numel, "num_inputs": 3}
    with tape.scope("mask"):
        tape.op(
            "aten.where", "elementwise", (), (mask,), attrs, flop=mask.numel, bytes_read=3.0 * mask.numel, kernels=12,
            calls=30,
        )  # fmt: skip


def rotary_tables(tape: Net, shape: TransformerShape) -> tuple[Value, ...]:
    """Cosines and sines, computed once per step."""
    dim = shape.rope_dim if shape.kv_rank else max(2, int(shape.dim * shape.rotary_share))
    with tape.scope("rotary"):
        angles = tape.new((shape.seq, dim), "fp32")
        frequencies = tape.buffer("inv_freq", (dim // 2,))
        attrs: dict[str, Attr] = {"batch": 1, "m": shape.seq, "n": dim // 2, "k": 1, "layout": "nn"}
        half = tape.new((shape.seq, dim // 2), "fp32")
        tape.op("aten.bmm", "matmul", (frequencies,), (half,), attrs, flop=2.0 * half.numel, calls=4)
        tape.op("aten.cat", "copy", (half, half), (angles,), {"function": "cat", "numel": angles.numel})
        cos = tape.pointwise("cos", angles)
        sin = tape.pointwise("sin", angles)
        if not tape.recipe.fused:
            cos, sin = tape.pointwise("mul", cos), tape.pointwise("mul", sin)
        dtype = "fp32" if tape.numbers.autocast else tape.numbers.compute
        return tape.cast(cos, dtype), tape.cast(sin, dtype)


def rotate(tape: Net, x: Value, tables: tuple[Value, ...], *, dim: int, share: float) -> Value:
    """Rotary positions (Su 2021): five kernels each way as Hugging Face writes it, one when fused."""
    cos, sin = tables
    if tape.recipe.fused:

        def fused_backward(g: Value, out: Value) -> Gradients:
            return (tape.kernel("rotary_backward", (g, cos, sin), x),)

        return tape.register(_rotated_once(tape, x, cos, sin), (x,), lambda g: fused_backward(g, g))
    if share < 1:
        turned_width = max(2, int(dim * share)) * (x.shape[-1] // dim)
        turned = tape.take(x, (*x.shape[:-1], turned_width))
        passed = tape.take(x, (*x.shape[:-1], x.shape[-1] - turned_width))
        return tape.concat((_turn(tape, turned, cos, sin), passed), x.shape)
    return _turn(tape, x, cos, sin)


def _rotated_once(tape: Net, x: Value, cos: Value, sin: Value) -> Value:
    out = tape.new(x.shape, x.dtype)
    attrs: dict[str, Attr] = {"function": "rotary", "numel": x.numel, "num_inputs": 3}
    tape.op("fused.rotary", "elementwise", (x, cos, sin), (out,), attrs, flop=3 * x.numel)
    return out


def _turn(tape: Net, x: Value, cos: Value, sin: Value) -> Value:
    straight = tape.multiply(x, cos)
    half = (*x.shape[:-1], x.shape[-1] // 2)
    upper, lower = tape.take(x, half), tape.take(x, half)
    negated = tape.scale(lower, "neg")
    return tape.add(straight, tape.multiply(tape.concat((negated, upper), x.shape), sin))


def alibi_bias(tape: Net, shape: TransformerShape) -> Value | None:
    """Linear position biases; flash kernels take the slopes and compute them inside."""
    if tape.recipe.attention in FUSED_ATTENTIONS:
        return None
    return tape.buffer("alibi", (1, shape.heads, 1, shape.seq), tape.numbers.compute)


def mlp(tape: Net, shape: TransformerShape, x: Value, *, width: int = 0, name: str = "mlp") -> Value:
    width = width or shape.width
    with tape.scope(name):
        if shape.gated:
            if tape.recipe.fused:
                both = tape.linear(x, 2 * width, bias=shape.bias, name="gate_up")
                if tape.recipe.gates_once:
                    inner = gate_fused(tape, both, width)
                else:
                    halves = (*both.shape[:-1], width)
                    gate, up = tape.split(both, (halves, halves))
                    inner = tape.multiply(tape.activation(shape.activation, gate), up)
            else:
                gate = tape.activation(shape.activation, tape.linear(x, width, bias=shape.bias, name="gate"))
                inner = tape.multiply(gate, tape.linear(x, width, bias=shape.bias, name="up"))
        elif tape.recipe.fused:
            inner = tape.activation("gelu", tape.linear(x, width, bias=shape.bias, name="up", layout=shape.layout))
        else:
            inner = tape.linear(x, width, bias=shape.bias, name="up", layout=shape.layout)
            inner = tape.activation(shape.activation, inner)
        return tape.linear(inner, shape.hidden, bias=shape.bias, name="down", layout=shape.layout)


def gate_fused(tape: Net, both: Value, width: int) -> Value:
    """Swish of one half times the other in one kernel, keeping only its input."""
    out = tape.new((*both.shape[:-1], width), both.dtype)
    attrs: dict[str, Attr] = {"function": "swiglu", "numel": out.numel, "num_inputs": 2}
    tape.op("fused.swiglu", "elementwise", (both,), (out,), attrs, flop=6 * out.numel)
    return tape.register(out, (both,), lambda g: (tape.kernel("swiglu_backward", (g, both), both),))


def experts(tape: Net, shape: TransformerShape, x: Value) -> Value:
    """Routed experts as permute, grouped products, unpermute; tokens are spread evenly."""
    tape.assume("every expert gets an equal share of the tokens unless the plan has an imbalance or a capacity")
    batch, seq, hidden = x.shape
    tokens, top = batch * seq, shape.experts_per_token
    rows = tokens * top
    width = shape.moe_ffn or shape.width
    with tape.scope("moe"):
        flat = tape.view(x, (tokens, hidden))
        logits = tape.linear(flat, shape.experts, bias=shape.expert_bias, name="router")
        scores = tape.softmax(tape.cast(logits, "fp32"), fused=tape.recipe.fused)
        chosen = top_k(tape, scores, top)
        permuted = tape.gather_rows(flat, rows)
        with tape.scope("experts"):
            mixed = expert_mlp(tape, shape, permuted, width)
        weighted = tape.multiply(mixed, tape.cast(chosen, mixed.dtype))
        out = tape.view(tape.scatter_rows(weighted, tokens), x.shape)
    if shape.shared_experts or shape.shared_ffn:
        shared = mlp(tape, shape, x, width=shape.shared_ffn or shape.shared_experts * width, name="shared_expert")
        out = tape.add(out, shared)
    return out


def expert_mlp(tape: Net, shape: TransformerShape, x: Value, width: int) -> Value:
    """What all experts do to the tokens sent to them."""
    rows, hidden = x.shape
    if not shape.gated:
        inner = tape.activation(shape.activation, grouped(tape, x, shape, width, rows=rows, name="up"))
        return grouped(tape, inner, shape, hidden, rows=rows, name="down")
    inner = grouped(tape, x, shape, 2 * width, rows=rows, name="gate_up")
    if tape.recipe.fused:
        inner = gate_fused(tape, inner, width)
    else:
        gate, up = tape.split(inner, ((rows, width), (rows, width)))
        inner = tape.multiply(tape.activation(shape.activation, gate), up)
    return grouped(tape, inner, shape, hidden, rows=rows, name="down")


def top_k(tape: Net, scores: Value, top: int) -> Value:
    """The best experts of every token and their scores; the ids are then sorted into groups."""
    rows, cols = scores.shape
    out = tape.new((rows, top), scores.dtype)
    ids = tape.new((rows, top), "int64")
    attrs: dict[str, Attr] = {"rows": rows, "cols": cols}
    tape.op("aten.topk", "sort", (scores,), (out, ids), attrs, flop=scores.numel, kernels=2)
    order = tape.new((rows * top,), "int64")
    tape.op("aten.sort", "sort", (ids,), (order,), {"rows": 1, "cols": rows * top}, flop=rows * top, kernels=4, calls=4)

    def backward(g: Value) -> Gradients:
        gx = tape.gradient_like(scores)
        tape.op(
            "aten.scatter", "index", (g, ids), (gx,), {"function": "scatter", "numel": gx.numel}, kernels=2, calls=2
        )
        return (gx,)

    return tape.register(out, (scores,), backward)


def grouped(tape: Net, x: Value, shape: TransformerShape, features: int, *, rows: int, name: str) -> Value:
    """One product per expert in one launch; with fewer rows than experts only that many work."""
    width = x.shape[-1]
    active = min(shape.experts, rows)
    each = -(-rows // active)
    small = tape.recipe.frozen_format or tape.recipe.weight_dtype
    with tape.scope(name):
        weight = tape.parameter("weight", (shape.experts, features, width), dtype=small or "")
        stored = [weight] if small and small != tape.numbers.product else []
        bias = tape.parameter("bias", (shape.experts, features)) if shape.expert_bias else None
        x, used = tape.for_product(x), tape.for_product(weight)
        out = tape.new((rows, features), x.dtype)
        plain = tape.dequantize(stored, x.dtype) if stored else used
        tape.product_op(
            "aten._grouped_mm", (x, plain), out, batch=active, m=each, n=features, k=width, layout="tn", calls=2
        )

        def backward(g: Value) -> Gradients:
            gw = None
            if used.needs_gradient:
                gw = tape.gradient_like(used)
                tape.product_op(
                    "aten._grouped_mm", (g, x), gw, batch=active, m=features, n=width, k=each, layout="nt", calls=2,
                )  # fmt: skip
            gx = tape.gradient_like(x)
            again = tape.dequantize(stored, x.dtype) if stored else used
            tape.product_op(
                "aten._grouped_mm", (g, again), gx, batch=active, m=each, n=width, k=features, layout="nn", calls=2,
            )  # fmt: skip
            return gx, gw

        tape.register(out, (x, used), backward)
        if bias is None:
            return out
        spread = tape.gather_rows(tape.for_product(bias), rows)
        return tape.add(out, spread)


def run_head(tape: Net, shape: TransformerShape, hidden: Value, table: Value) -> list[Value]:
    """The final norm, the head of the task and its loss (in training)."""
    with tape.scope("head"):
        if shape.pre_norm:
            hidden = normalize(tape, shape, hidden, "norm")
        outputs = _answer_task(tape, shape, hidden, table)
    if not (tape.recipe.trains and tape.recipe.loss) or shape.head == "none":
        return outputs
    in_place = tape.recipe.fused and shape.head == "lm"
    fused = tape.recipe.fused_loss and shape.head == "lm"
    losses = [tape.cross_entropy(value, in_place=in_place, fused=fused) for value in outputs]
    total = losses[0]
    for loss in losses[1:]:
        total = tape.add(total, loss)
    return [total]


def _answer_task(tape: Net, shape: TransformerShape, hidden: Value, table: Value) -> list[Value]:
    """What the head of each task makes of the last hidden states."""
    batch = hidden.shape[0]
    first: Value | None = None
    if shape.pooler:
        first = tape.take(hidden, (batch, shape.hidden))
        first = tape.activation("tanh", tape.linear(first, shape.hidden, name="pooler"))
    outputs = []
    if shape.head in ("lm", "mlm", "pretraining"):
        outputs.append(_predict_tokens(tape, shape, hidden, table))
    if shape.head == "pretraining" and first is not None:
        outputs.append(tape.linear(first, 2, name="next_sentence"))
    if shape.head == "squad":
        both = tape.linear(hidden, 2, name="span")
        outputs += [tape.copy(part) for part in tape.split(both, ((batch, shape.seq), (batch, shape.seq)))]
    if shape.head == "classes":
        first = first if first is not None else tape.take(hidden, (batch, shape.hidden))
        first = tape.dropout(first, tape.recipe.rate(shape.dropout))
        outputs.append(tape.linear(first, shape.num_classes, name="classifier"))
    if shape.head == "none":
        outputs.append(hidden)
    return outputs


def _predict_tokens(tape: Net, shape: TransformerShape, hidden: Value, table: Value) -> Value:
    width = shape.embedding_width or shape.hidden
    if shape.head != "lm":
        if tape.recipe.predicted_share < 1:
            kept = max(1, round(tape.recipe.predicted_share * hidden.shape[1]))
            hidden = tape.take(hidden, (hidden.shape[0], kept, hidden.shape[2]))
        hidden = tape.activation(shape.activation, tape.linear(hidden, width, name="transform"))
        hidden = tape.layer_norm(hidden, name="transform_norm")
    elif width != shape.hidden:
        hidden = tape.linear(hidden, width, name="projection", bias=False)
    biased = shape.head_bias or shape.head != "lm"
    shared = table if shape.tied and not tape.recipe.untied else None
    return tape.linear(hidden, shape.vocab, bias=biased, name="decoder", weight=shared)
