"""Sequence to sequence: T5 and Switch, BART and the original Transformer, Whisper."""

from collections.abc import Mapping
from typing import Any

from traincast.catalog._models.attention import Scores, attend
from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import Sizes
from traincast.catalog._models.tape import Value
from traincast.catalog._models.transformer import TransformerShape, experts, join, mlp, normalize
from traincast.noun import noun
from traincast.spec import Graph


@noun
class Side:
    """One side of an encoder-decoder."""

    shape: TransformerShape
    layers: int
    length: int
    key_bias: bool = True
    position_bias: bool = False
    """Learned biases on the scores, looked up once and shared by all layers (T5)."""
    scaled: bool = True
    sparse_every: int = 0
    """Every so many layers have experts instead of an MLP (Switch)."""


def run_side(tape: Net, stack: Side, hidden: Value, memory: Value | None = None) -> Value:
    """All layers of one side; with a memory each layer reads it by cross attention."""
    bias = position_bias(tape, stack) if stack.position_bias else None

    def layer(value: Value, *, routed: bool = False) -> Value:
        def body() -> Value:
            x = sublayer(tape, stack, value, "attention", lambda y: attention(tape, stack, y, y, bias=bias))
            if memory is not None:
                x = sublayer(tape, stack, x, "cross", lambda y: attention(tape, stack, y, memory, cross=True))
            if routed:
                return sublayer(tape, stack, x, "mlp", lambda y: experts(tape, stack.shape, y))
            return sublayer(tape, stack, x, "mlp", lambda y: mlp(tape, stack.shape, y))

        return tape.checkpoint(body, enabled=tape.recipe.recompute == "full")

    def group(value: Value) -> Value:
        for index in range(stack.sparse_every):
            value = layer(value, routed=index == stack.sparse_every - 1)
        return value

    with tape.scope("layers"):
        if stack.sparse_every:
            return tape.repeat(stack.layers // stack.sparse_every, hidden, group)
        return tape.repeat(stack.layers, hidden, layer)


def sublayer(tape: Net, stack: Side, x: Value, name: str, run: Any) -> Value:
    """Norm before or after, dropout, residual sum."""
    shape = stack.shape
    rate = tape.recipe.rate(shape.dropout)
    y = normalize(tape, shape, x, f"{name}_norm") if shape.pre_norm else x
    y = join(tape, run(y), x, rate, name=name)
    return y if shape.pre_norm else normalize(tape, shape, y, f"{name}_norm")


def attention(
    tape: Net, stack: Side, x: Value, memory: Value, *, bias: Value | None = None, cross: bool = False
) -> Value:
    shape = stack.shape
    width = shape.heads * shape.dim
    with tape.scope("cross_attention" if cross else "attention"):
        q = tape.linear(x, width, bias=shape.bias, name="query")
        k = tape.linear(memory, width, bias=shape.bias and stack.key_bias, name="key")
        v = tape.linear(memory, width, bias=shape.bias, name="value")
        masked = "add" if shape.causal and not cross and bias is None else ""
        mixed = attend(
            tape, q, k, v, heads=shape.heads, kv_heads=shape.heads, causal=shape.causal and not cross,
            scores=Scores(mask=masked, bias=bias, rate=tape.recipe.rate(shape.attention_dropout), scaled=stack.scaled),
        )  # fmt: skip
        return tape.linear(mixed, shape.hidden, bias=shape.bias, name="output")


def position_bias(tape: Net, stack: Side) -> Value:
    """T5's bucketed distances: a small table spread over all pairs."""
    heads, length = stack.shape.heads, stack.length
    with tape.scope("position_bias"):
        ids = tape.input("buckets", (length, length), "int64")
        looked = tape.embedding(ids, vocab=32, width=heads, name="table")
        return tape.copy(looked, (1, heads, length, length), function="permute", back=True)


def build_t5(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """T5 (Raffel 2020), and Switch Transformers (Fedus 2021) where the entry has experts."""
    source_length = sizes.seq or config.get("seq", 512)
    target_length = (
        config.get("target_seq", 128) if sizes.seq is None else max(1, sizes.seq // config.get("target_divisor", 4))
    )
    layers = config["n_layers"]
    encoder = _t5_side(config, layers, source_length, causal=False)
    decoder = _t5_side(config, config.get("decoder_layers", layers), target_length, causal=True)
    with tape.scope("embeddings.tokens"):
        table = tape.parameter("weight", (config["vocab"], config["hidden"]))

    def embed(length: int, kind: str) -> Value:
        ids = tape.input(f"{kind}_ids", (sizes.batch, length), "int64")
        out = tape.embedding(ids, vocab=config["vocab"], width=config["hidden"], name="embeddings.tokens", weight=table)
        return tape.dropout(out, tape.recipe.rate(0.1))

    rate = tape.recipe.rate(0.1)
    with tape.scope("encoder"):
        memory = run_side(tape, encoder, embed(source_length, "encoder"))
        memory = tape.dropout(normalize(tape, encoder.shape, memory, "norm"), rate)
    with tape.scope("decoder"):
        hidden = run_side(tape, decoder, embed(target_length, "decoder"), memory)
        hidden = tape.dropout(normalize(tape, decoder.shape, hidden, "norm"), rate)
    with tape.scope("head"):
        tied = config.get("tied", True)
        hidden = tape.scale(hidden) if tied else hidden
        logits = tape.linear(hidden, config["vocab"], bias=False, name="decoder", weight=table if tied else None)
    tokens = source_length + target_length
    return tape.close(
        [logits], lambda: tape.cross_entropy(logits), tokens_per_sample=tokens, samples_unit="sequence pairs"
    )


def _t5_side(config: Mapping[str, Any], layers: int, length: int, *, causal: bool) -> Side:
    gated = config.get("gated", False)
    routed = config.get("experts", 0)
    shape = TransformerShape(
        n_layers=layers, hidden=config["hidden"], heads=config["heads"], head_dim=config.get("head_dim", 64),
        ffn=config["ffn"], gated=gated, activation="gelu_new" if gated else "relu", vocab=config["vocab"], seq=length,
        norm="rms_norm", bias=False, positions="none", causal=causal, dropout=0.1, attention_dropout=0.1,
        experts=routed, experts_per_token=config.get("experts_per_token", 1) if routed else 0, moe_ffn=config["ffn"],
    )  # fmt: skip
    every = layers // config["sparse_layers"] if routed else 0
    return Side(shape=shape, layers=layers, length=length, position_bias=True, scaled=False, sparse_every=every)


def build_t5_from_shape(tape: Net, shape: Mapping[str, Any], sizes: Sizes) -> Graph:
    """T5 or Switch given as the columns of a case table: encoder and decoder have n_layers and seq each."""
    config = {
        **shape, "head_dim": shape.get("head_dim") or shape["hidden"] // shape["heads"], "target_divisor": 1,
        "ffn": shape.get("ffn") or 4 * shape["hidden"], "sparse_layers": max(1, shape["n_layers"] // 2),
    }  # fmt: skip
    return build_t5(tape, config, sizes)


def build_seq2seq(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """The Transformer of Vaswani 2017, BART and the like: biased products, layer norm, one vocabulary."""
    source_length = sizes.seq or config.get("seq", 128)
    target_length = sizes.seq or config.get("target_seq", source_length)
    learned = config.get("positions", "sinusoidal") == "learned"
    rate = tape.recipe.rate(config.get("dropout", 0.1))

    with tape.scope("embeddings.tokens"):
        table = tape.parameter("weight", (config["vocab"], config["hidden"]))

    def embed(stack: Side, kind: str) -> Value:
        width = config["hidden"]
        ids = tape.input(f"{kind}_ids", (sizes.batch, stack.length), "int64")
        out = tape.embedding(ids, vocab=config["vocab"], width=width, name="embeddings.tokens", weight=table)
        if learned:
            rows = max(config.get("max_positions", 1026), stack.length)
            places = tape.input("position_ids", (stack.length,), "int64")
            out = tape.add(out, tape.embedding(places, vocab=rows, width=width, name="positions"))
            out = normalize(tape, stack.shape, out, "embedding_norm")
        else:
            out = tape.add(tape.scale(out), tape.buffer("positions", (stack.length, width), out.dtype))
        out = tape.dropout(out, rate)
        return tape.cast(out, "fp32") if tape.numbers.autocast else out

    encoder = _seq2seq_side(config, config["n_layers"], source_length, causal=False)
    decoder = _seq2seq_side(config, config.get("decoder_layers", config["n_layers"]), target_length, causal=True)
    with tape.scope("encoder"):
        memory = run_side(tape, encoder, embed(encoder, "encoder"))
    with tape.scope("decoder"):
        hidden = run_side(tape, decoder, embed(decoder, "decoder"), memory)
    with tape.scope("head"):
        logits = tape.linear(hidden, config["vocab"], bias=False, name="decoder", weight=table)
    tokens = source_length + target_length
    return tape.close(
        [logits], lambda: tape.cross_entropy(logits), tokens_per_sample=tokens, samples_unit="sequence pairs"
    )


def _seq2seq_side(config: Mapping[str, Any], layers: int, length: int, *, causal: bool) -> Side:
    drop = config.get("dropout", 0.1)
    shape = TransformerShape(
        n_layers=layers, hidden=config["hidden"], heads=config["heads"], ffn=config["ffn"], vocab=config["vocab"],
        seq=length, causal=causal, pre_norm=config.get("pre_norm", False), activation=config.get("activation", "relu"),
        positions="none", dropout=drop, attention_dropout=drop,
    )  # fmt: skip
    return Side(shape=shape, layers=layers, length=length)


def build_whisper(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """Thirty seconds of log-mel frames to text (Radford 2022)."""
    width, frames = config["hidden"], config.get("frames", 3000)
    target = sizes.seq or config.get("seq", 448)

    def side(layers: int, length: int, *, causal: bool) -> Side:
        shape = TransformerShape(
            n_layers=layers, hidden=width, heads=config["heads"], ffn=4 * width, vocab=config["vocab"], seq=length,
            causal=causal, positions="none", activation="gelu",
        )  # fmt: skip
        return Side(shape=shape, layers=layers, length=length, key_bias=False)

    encoder = side(config["n_layers"], frames // 2, causal=False)
    decoder = side(config.get("decoder_layers", config["n_layers"]), target, causal=True)
    with tape.scope("encoder"):
        mel = tape.input("input_features", (sizes.batch, config["mels"], frames), "fp32")
        x = tape.cast(mel, tape.numbers.compute) if not tape.numbers.autocast else mel
        x = tape.activation("gelu", tape.conv(x, width, 3, bias=True, name="conv1"))
        x = tape.activation("gelu", tape.conv(x, width, 3, stride=2, bias=True, name="conv2"))
        x = tape.view(x, (sizes.batch, frames // 2, width))
        # Fixed sinusoids, kept as a weight without a gradient.
        x = tape.add(x, tape.parameter("positions", (frames // 2, width), trained=False))
        memory = normalize(tape, encoder.shape, run_side(tape, encoder, x), "norm")
    with tape.scope("decoder"):
        ids = tape.input("decoder_ids", (sizes.batch, target), "int64")
        with tape.scope("tokens"):
            table = tape.parameter("weight", (config["vocab"], width))
        hidden = tape.embedding(ids, vocab=config["vocab"], width=width, name="tokens", weight=table)
        places = tape.input("position_ids", (target,), "int64")
        hidden = tape.add(hidden, tape.embedding(places, vocab=max(448, target), width=width, name="positions"))
        hidden = normalize(tape, decoder.shape, run_side(tape, decoder, hidden, memory), "norm")
    with tape.scope("head"):
        logits = tape.linear(hidden, config["vocab"], bias=False, name="decoder", weight=table)
    return tape.close([logits], lambda: tape.cross_entropy(logits), tokens_per_sample=target, samples_unit="clips")
