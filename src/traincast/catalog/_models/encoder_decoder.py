"""Sequence to sequence: T5 and Switch, BART and the original Transformer, Whisper, GNMT, Transformer-XL."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from traincast.catalog._models.attention import Scores, attend
from traincast.catalog._models.layers import (
    activation,
    add,
    concat,
    conv,
    copy,
    cross_entropy,
    dropout,
    embedding,
    gather_rows,
    kernel,
    linear,
    matmul,
    pointwise,
    rnn,
    scale,
    softmax,
    sum_to,
    take,
)
from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.tape import Tape, Value
from traincast.catalog._models.transformer import TransformerShape, experts, join, mlp, normalize
from traincast.spec import Graph

if TYPE_CHECKING:
    from traincast.catalog._workloads import Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
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


def run_side(tape: Tape, stack: Side, hidden: Value, memory: Value | None = None) -> Value:
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


def sublayer(tape: Tape, stack: Side, x: Value, name: str, run: Any) -> Value:
    """Norm before or after, dropout, residual sum."""
    shape = stack.shape
    rate = tape.recipe.rate(shape.dropout)
    y = normalize(tape, shape, x, f"{name}_norm") if shape.pre_norm else x
    y = join(tape, run(y), x, rate, name=name)
    return y if shape.pre_norm else normalize(tape, shape, y, f"{name}_norm")


def attention(
    tape: Tape, stack: Side, x: Value, memory: Value, *, bias: Value | None = None, cross: bool = False
) -> Value:
    shape = stack.shape
    width = shape.heads * shape.dim
    with tape.scope("cross_attention" if cross else "attention"):
        q = linear(tape, x, width, bias=shape.bias, name="query")
        k = linear(tape, memory, width, bias=shape.bias and stack.key_bias, name="key")
        v = linear(tape, memory, width, bias=shape.bias, name="value")
        masked = "add" if shape.causal and not cross and bias is None else ""
        mixed = attend(
            tape,
            q,
            k,
            v,
            heads=shape.heads,
            kv_heads=shape.heads,
            causal=shape.causal and not cross,
            scores=Scores(mask=masked, bias=bias, rate=tape.recipe.rate(shape.attention_dropout), scaled=stack.scaled),
        )
        return linear(tape, mixed, shape.hidden, bias=shape.bias, name="output")


def position_bias(tape: Tape, stack: Side) -> Value:
    """T5's bucketed distances: a small table spread over all pairs."""
    heads, length = stack.shape.heads, stack.length
    with tape.scope("position_bias"):
        ids = tape.input("buckets", (length, length), "int64")
        looked = embedding(tape, ids, vocab=32, width=heads, name="table")
        return copy(tape, looked, (1, heads, length, length), function="permute", back=True)


def _finish(
    tape: Tape, logits: Value, name: str, entry: Mapping[str, Any], *, batch: int, tokens: int, unit: str
) -> Graph:
    """The loss over the vocabulary where the step trains, and the graph of it all."""
    outputs = [cross_entropy(tape, logits)] if tape.recipe.trains and tape.recipe.loss else [logits]
    return tape.finish(
        outputs, name=name, batch_size=batch, tokens_per_sample=tokens, samples_unit=unit, source=entry["source"]
    )


def build_t5(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """T5 (Raffel 2020), and Switch Transformers (Fedus 2021) where the entry has experts."""
    config = entry["config"]
    tape = Tape(recipe)
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
        out = embedding(
            tape, ids, vocab=config["vocab"], width=config["hidden"], name="embeddings.tokens", weight=table
        )
        return dropout(tape, out, recipe.rate(0.1))

    rate = recipe.rate(0.1)
    with tape.scope("encoder"):
        memory = run_side(tape, encoder, embed(source_length, "encoder"))
        memory = dropout(tape, normalize(tape, encoder.shape, memory, "norm"), rate)
    with tape.scope("decoder"):
        hidden = run_side(tape, decoder, embed(target_length, "decoder"), memory)
        hidden = dropout(tape, normalize(tape, decoder.shape, hidden, "norm"), rate)
    with tape.scope("head"):
        tied = config.get("tied", True)
        hidden = scale(tape, hidden) if tied else hidden
        logits = linear(tape, hidden, config["vocab"], bias=False, name="decoder", weight=table if tied else None)
    tokens = source_length + target_length
    return _finish(tape, logits, name, entry, batch=sizes.batch, tokens=tokens, unit="sequence pairs")


def _t5_side(config: Mapping[str, Any], layers: int, length: int, *, causal: bool) -> Side:
    gated = config.get("gated", False)
    routed = config.get("experts", 0)
    shape = TransformerShape(
        n_layers=layers,
        hidden=config["hidden"],
        heads=config["heads"],
        head_dim=config.get("head_dim", 64),
        ffn=config["ffn"],
        gated=gated,
        activation="gelu_new" if gated else "relu",
        vocab=config["vocab"],
        seq=length,
        norm="rms_norm",
        bias=False,
        positions="none",
        causal=causal,
        dropout=0.1,
        attention_dropout=0.1,
        experts=routed,
        experts_per_token=config.get("experts_per_token", 1) if routed else 0,
        moe_ffn=config["ffn"],
    )
    every = layers // config["sparse_layers"] if routed else 0
    return Side(shape=shape, layers=layers, length=length, position_bias=True, scaled=False, sparse_every=every)


def build_t5_from_shape(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """T5 or Switch given as the columns of a case table: encoder and decoder have n_layers and seq each."""
    shape = entry["shape"]
    config = {
        "hidden": shape["hidden"],
        "heads": shape["heads"],
        "head_dim": shape.get("head_dim") or shape["hidden"] // shape["heads"],
        "ffn": shape.get("ffn") or 4 * shape["hidden"],
        "vocab": shape["vocab"],
        "n_layers": shape["n_layers"],
        "gated": shape.get("gated", False),
        "tied": shape.get("tied", True),
        "seq": shape["seq"],
        "target_divisor": 1,
        "experts": shape.get("experts", 0),
        "experts_per_token": shape.get("experts_per_token", 1),
        "sparse_layers": max(1, shape["n_layers"] // 2),
    }
    return build_t5(name, {"config": config, "source": f"shape of architecture {entry['arch']}"}, recipe, sizes)


def build_seq2seq(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """The Transformer of Vaswani 2017, BART and the like: biased products, layer norm, one vocabulary."""
    config = entry["config"]
    tape = Tape(recipe)
    source_length = sizes.seq or config.get("seq", 128)
    target_length = sizes.seq or config.get("target_seq", source_length)
    learned = config.get("positions", "sinusoidal") == "learned"
    rate = recipe.rate(config.get("dropout", 0.1))

    with tape.scope("embeddings.tokens"):
        table = tape.parameter("weight", (config["vocab"], config["hidden"]))

    def embed(stack: Side, kind: str) -> Value:
        width = config["hidden"]
        ids = tape.input(f"{kind}_ids", (sizes.batch, stack.length), "int64")
        out = embedding(tape, ids, vocab=config["vocab"], width=width, name="embeddings.tokens", weight=table)
        if learned:
            rows = max(config.get("max_positions", 1026), stack.length)
            places = tape.input("position_ids", (stack.length,), "int64")
            out = add(tape, out, embedding(tape, places, vocab=rows, width=width, name="positions"))
            out = normalize(tape, stack.shape, out, "embedding_norm")
        else:
            out = add(tape, scale(tape, out), tape.buffer("positions", (stack.length, width), out.dtype))
        out = dropout(tape, out, rate)
        return tape.cast(out, "fp32") if tape.numbers.autocast else out

    encoder = _seq2seq_side(config, config["n_layers"], source_length, causal=False)
    decoder = _seq2seq_side(config, config.get("decoder_layers", config["n_layers"]), target_length, causal=True)
    with tape.scope("encoder"):
        memory = run_side(tape, encoder, embed(encoder, "encoder"))
    with tape.scope("decoder"):
        hidden = run_side(tape, decoder, embed(decoder, "decoder"), memory)
    with tape.scope("head"):
        logits = linear(tape, hidden, config["vocab"], bias=False, name="decoder", weight=table)
    tokens = source_length + target_length
    return _finish(tape, logits, name, entry, batch=sizes.batch, tokens=tokens, unit="sequence pairs")


def _seq2seq_side(config: Mapping[str, Any], layers: int, length: int, *, causal: bool) -> Side:
    drop = config.get("dropout", 0.1)
    shape = TransformerShape(
        n_layers=layers,
        hidden=config["hidden"],
        heads=config["heads"],
        ffn=config["ffn"],
        vocab=config["vocab"],
        seq=length,
        causal=causal,
        pre_norm=config.get("pre_norm", False),
        activation=config.get("activation", "relu"),
        positions="none",
        dropout=drop,
        attention_dropout=drop,
    )
    return Side(shape=shape, layers=layers, length=length)


def build_whisper(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """Thirty seconds of log-mel frames to text (Radford 2022)."""
    config = entry["config"]
    tape = Tape(recipe)
    width, frames = config["hidden"], config.get("frames", 3000)
    target = sizes.seq or config.get("seq", 448)

    def side(layers: int, length: int, *, causal: bool) -> Side:
        shape = TransformerShape(
            n_layers=layers,
            hidden=width,
            heads=config["heads"],
            ffn=4 * width,
            vocab=config["vocab"],
            seq=length,
            causal=causal,
            positions="none",
            activation="gelu",
        )
        return Side(shape=shape, layers=layers, length=length, key_bias=False)

    encoder = side(config["n_layers"], frames // 2, causal=False)
    decoder = side(config.get("decoder_layers", config["n_layers"]), target, causal=True)
    with tape.scope("encoder"):
        mel = tape.input("input_features", (sizes.batch, config["mels"], frames), "fp32")
        x = tape.cast(mel, tape.numbers.compute) if not tape.numbers.autocast else mel
        x = activation(tape, "gelu", conv(tape, x, width, 3, bias=True, name="conv1"))
        x = activation(tape, "gelu", conv(tape, x, width, 3, stride=2, bias=True, name="conv2"))
        x = tape.view(x, (sizes.batch, frames // 2, width))
        # Fixed sinusoids, kept as a weight without a gradient.
        x = add(tape, x, tape.parameter("positions", (frames // 2, width), trained=False))
        memory = normalize(tape, encoder.shape, run_side(tape, encoder, x), "norm")
    with tape.scope("decoder"):
        ids = tape.input("decoder_ids", (sizes.batch, target), "int64")
        with tape.scope("tokens"):
            table = tape.parameter("weight", (config["vocab"], width))
        hidden = embedding(tape, ids, vocab=config["vocab"], width=width, name="tokens", weight=table)
        places = tape.input("position_ids", (target,), "int64")
        hidden = add(tape, hidden, embedding(tape, places, vocab=max(448, target), width=width, name="positions"))
        hidden = normalize(tape, decoder.shape, run_side(tape, decoder, hidden, memory), "norm")
    with tape.scope("head"):
        logits = linear(tape, hidden, config["vocab"], bias=False, name="decoder", weight=table)
    return _finish(tape, logits, name, entry, batch=sizes.batch, tokens=target, unit="clips")


def build_gnmt(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """Stacked LSTMs with additive attention (Wu 2016), in the form of MLPerf and NVIDIA's examples."""
    config = entry["config"]
    tape = Tape(recipe)
    batch, width, vocab = sizes.batch, config["hidden"], config["vocab"]
    length = sizes.seq or config.get("seq", 50)
    rate = recipe.rate(config.get("dropout", 0.2))
    with tape.scope("embeddings"):
        table = tape.parameter("weight", (vocab, width))

    def embed(kind: str) -> Value:
        ids = tape.input(f"{kind}_ids", (length, batch), "int64")
        return embedding(tape, ids, vocab=vocab, width=width, name="embeddings", weight=table)

    with tape.scope("encoder"):
        x = rnn(tape, dropout(tape, embed("encoder"), rate), width, directions=2, name="layer0")
        x = rnn(tape, dropout(tape, x, rate), width, name="layer1")
        for index in (2, 3):
            x = add(tape, rnn(tape, dropout(tape, x, rate), width, name=f"layer{index}"), x)
        memory = x
    with tape.scope("decoder"):
        x = rnn(tape, dropout(tape, embed("decoder"), rate), width, name="layer0")
        context = additive_attention(tape, x, memory)
        wide = (length, batch, 2 * width)
        x = rnn(tape, dropout(tape, concat(tape, (x, context), wide), rate), width, name="layer1")
        for index in (2, 3):
            y = dropout(tape, concat(tape, (x, context), wide), rate)
            x = add(tape, rnn(tape, y, width, name=f"layer{index}"), x)
        logits = linear(tape, x, vocab, name="classifier")
    return _finish(tape, logits, name, entry, batch=batch, tokens=2 * length, unit="sentence pairs")


def additive_attention(tape: Tape, queries: Value, keys: Value) -> Value:
    """v . tanh(W q + U k) for every pair of positions (Bahdanau 2014); the sums of all pairs are kept."""
    q_len, batch, width = queries.shape
    k_len = keys.shape[0]
    with tape.scope("attention"):
        q = linear(tape, queries, width, bias=False, name="query")
        k = linear(tape, keys, width, bias=False, name="key")
        pairs = pointwise(
            tape,
            "add",
            q,
            k,
            shape=(batch, q_len, k_len, width),
            backward=lambda g, out: (sum_to(tape, g, q), sum_to(tape, g, k)),
        )
        scores = linear(tape, activation(tape, "tanh", pairs), 1, bias=False, name="score")
        weights = softmax(tape, tape.view(scores, (batch, q_len, k_len)))
        mixed = matmul(
            tape,
            weights,
            tape.cast(keys, weights.dtype) if not tape.numbers.autocast else keys,
            batch=batch,
            m=q_len,
            n=width,
            k=k_len,
            layout="nn",
            shape=(batch, q_len, width),
        )
        return copy(tape, mixed, (q_len, batch, width), back=True)


def build_transformer_xl(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """Segments with memory and relative positions (Dai 2019), adaptive softmax over a large vocabulary."""
    config = entry["config"]
    tape = Tape(recipe)
    batch, width, heads = sizes.batch, config["hidden"], config["heads"]
    length = sizes.seq or config.get("seq", 192)
    memory_length = config.get("memory", length)
    rate = recipe.rate(config.get("dropout", 0.1))
    keys = length + memory_length
    dim = width // heads
    shape = TransformerShape(
        n_layers=config["n_layers"],
        hidden=width,
        heads=heads,
        ffn=config["ffn"],
        vocab=config["vocab"],
        seq=length,
        positions="none",
        activation="relu",
        pre_norm=False,
        dropout=0.1,
    )
    tape.assume("adaptive softmax: words are as frequent as one over their rank (Zipf)")
    with tape.scope("embeddings"):
        ids = tape.input("input_ids", (batch, length), "int64")
        tables, found = adaptive_embedding(
            tape, ids, width, config["cutoffs"], config["vocab"], config.get("narrow", 1)
        )
        hidden = scale(tape, found)
        hidden = dropout(tape, hidden, rate)
        hidden = tape.cast(hidden, "fp32") if tape.numbers.autocast else hidden
        positions = dropout(tape, tape.buffer("positions", (keys, width), tape.numbers.compute), rate)
        content = tape.parameter("r_w_bias", (heads * dim,))
        place = tape.parameter("r_r_bias", (heads * dim,))

    def layer(value: Value) -> Value:
        y = _relative_attention(tape, value, positions, (content, place), heads=heads)
        x = normalize(tape, shape, join(tape, y, value, rate, name="attention"), "attention_norm")
        return normalize(tape, shape, join(tape, mlp(tape, shape, x), x, rate, name="mlp"), "mlp_norm")

    with tape.scope("layers"):
        hidden = tape.repeat(config["n_layers"], hidden, layer)
    outputs = [hidden]
    if recipe.trains and recipe.loss:
        outputs = [
            adaptive_loss(tape, tape.view(hidden, (batch * length, width)), tables, config["cutoffs"], config["vocab"])
        ]
    return tape.finish(
        outputs, name=name, batch_size=batch, tokens_per_sample=length, samples_unit="segments", source=entry["source"]
    )


def _relative_attention(
    tape: Tape, value: Value, positions: Value, biases: tuple[Value, Value], *, heads: int
) -> Value:
    """A segment attends to itself and the one before it: one product by content, one by relative position (Dai 2019)."""
    batch, length, width = value.shape
    keys, dim = positions.shape[0], width // heads
    content, place = biases
    with tape.scope("attention"):
        remembered = tape.input("memory", (batch, keys - length, width), value.dtype)
        seen = concat(tape, (remembered, value), (batch, keys, width))
        qkv = linear(tape, seen, 3 * width, bias=False, name="qkv")
        q = take(tape, qkv, (batch, length, width))
        k, v = take(tape, qkv, (batch, keys, width)), take(tape, qkv, (batch, keys, width))
        r = linear(tape, positions, width, bias=False, name="relative")
        pairs = (batch, heads, length, keys)
        count = batch * heads
        by_content = matmul(
            tape, add(tape, q, content), k, batch=count, m=length, n=keys, k=dim, layout="tn", shape=pairs
        )
        by_place = matmul(
            tape, add(tape, q, place), r, batch=heads, m=batch * length, n=keys, k=dim, layout="tn", shape=pairs
        )
        by_place = copy(tape, by_place, function="shift", back=True)
        scores = scale(tape, add(tape, by_content, by_place))
        scores = pointwise(
            tape, "masked_fill", scores, backward=lambda g, out: (kernel(tape, "masked_fill", (g,), scores),)
        )
        weights = tape.cast(softmax(tape, scores), v.dtype)
        weights = dropout(tape, weights, tape.recipe.rate(0.0))
        mixed = matmul(
            tape, weights, v, batch=count, m=length, n=dim, k=keys, layout="nn", shape=(batch, heads, length, dim)
        )
        mixed = copy(tape, mixed, (batch, length, width), back=True)
        return linear(tape, mixed, width, bias=False, name="output")


def adaptive_embedding(
    tape: Tape, ids: Value, width: int, cutoffs: list[int], vocab: int, narrow: int
) -> tuple[list[Value], Value]:
    """The tables and the embedded words. Each cluster of rarer words may be `narrow` times as narrow (Baevski 2018)."""
    if narrow == 1:
        with tape.scope("tokens"):
            table = tape.parameter("weight", (vocab, width))
        return [table], embedding(tape, ids, vocab=vocab, width=width, name="tokens", weight=table)
    tables, parts = [], []
    left = ids.numel
    for index, (low, high) in enumerate(pairwise((0, *cutoffs, vocab))):
        rows = min(left, _cluster_rows(ids.numel, low, high, vocab)) if high < vocab else left
        left -= rows
        narrower = width // narrow**index
        with tape.scope(f"tokens{index}"):
            table = tape.parameter("weight", (high - low, narrower))
            chosen = tape.part(ids, (rows,))
            part = embedding(tape, chosen, vocab=high - low, width=narrower, name="words", weight=table)
            tables.append(table)
            parts.append(linear(tape, part, width, bias=False, name="projection"))
    return tables, tape.view(concat(tape, tuple(parts), (ids.numel, width)), (*ids.shape, width))


def _cluster_rows(tokens: int, low: int, high: int, vocab: int) -> int:
    """Word frequencies fall about as one over the rank, so a cluster holds the logarithm of its bounds' ratio."""
    return max(1, round(tokens * math.log(high / max(1, low)) / math.log(vocab)))


def adaptive_loss(tape: Tape, hidden: Value, tables: list[Value], cutoffs: list[int], vocab: int) -> Value:
    """A head over the frequent words and clusters, and a tail for the tokens of each cluster (Grave 2017)."""
    tokens, width = hidden.shape
    with tape.scope("adaptive"):
        clusters = tape.parameter("cluster_weight", (len(cutoffs), width))
        frequent = take(tape, tables[0], (cutoffs[0], width)) if len(tables) == 1 else tables[0]
        head = concat(tape, (frequent, clusters), (cutoffs[0] + len(cutoffs), width))
        total = cross_entropy(tape, _against(tape, hidden, head))
        for index, (low, high) in enumerate(pairwise((*cutoffs, vocab))):
            with tape.scope(f"tail{index}"):
                part = gather_rows(tape, hidden, _cluster_rows(tokens, low, high, vocab))
                if len(tables) == 1:
                    words = take(tape, tables[0], (high - low, width))
                else:
                    words = tables[index + 1]
                    part = linear(tape, part, words.shape[1], bias=False, name="projection")
                total = add(tape, total, cross_entropy(tape, _against(tape, part, words)))
    return total


def _against(tape: Tape, x: Value, words: Value) -> Value:
    rows, width = x.shape
    count = words.shape[0]
    return matmul(tape, x, words, batch=1, m=rows, n=count, k=width, layout="tn", shape=(rows, count))
