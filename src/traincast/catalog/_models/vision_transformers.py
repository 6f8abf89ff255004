"""Transformers on images: ViT, Swin, CLIP."""

from collections.abc import Mapping
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
    global_pool,
    layer_norm,
    linear,
    matmul,
    multiply,
    split,
    sum_to,
    take,
)
from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.tape import Gradients, Tape, Value
from traincast.catalog._models.transformer import TransformerShape, run_stack
from traincast.catalog._models.vision import half_input, stable
from traincast.errors import InvalidInput
from traincast.spec import Attr, Graph

if TYPE_CHECKING:
    from traincast.catalog._workloads import Sizes


def image_shape(config: Mapping[str, Any], tokens: int) -> TransformerShape:
    return TransformerShape(
        n_layers=config["n_layers"],
        hidden=config["hidden"],
        heads=config["heads"],
        ffn=config.get("ffn", 0),
        vocab=1,
        seq=tokens,
        causal=False,
        mask="",
        positions="none",
        activation=config.get("activation", "gelu"),
        dropout=config.get("dropout", 0.0),
        attention_dropout=config.get("dropout", 0.0),
        merged_qkv=config.get("merged_qkv", True),
    )


def embed_patches(tape: Tape, images: Value, config: Mapping[str, Any], *, bias: bool = True) -> Value:
    """Patches, a class token and learned positions: (batch, tokens, hidden)."""
    batch, hidden = images.shape[0], config["hidden"]
    with tape.scope("embeddings"):
        patches = conv(
            tape, images, hidden, config["patch"], stride=config["patch"], padding=0, bias=bias, name="patches"
        )
        count = patches.shape[2] * patches.shape[3]
        rows = copy(tape, patches, (batch, count, hidden), back=True)
        token = tape.for_product(tape.parameter("class_token", (1, 1, hidden)))
        spread = tape.new((batch, 1, hidden), token.dtype)
        tape.op("aten.expand", "copy", (token,), (spread,), {"function": "expand", "numel": spread.numel})
        tape.register(spread, (token,), lambda g: (sum_to(tape, g, token),))
        tokens = concat(tape, (spread, rows), (batch, count + 1, hidden))
        tokens = add(tape, tokens, tape.parameter("positions", (1, count + 1, hidden)))
        return dropout(tape, tokens, tape.recipe.rate(config.get("dropout", 0.0)))


def build_vit(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """A vision transformer with a class token (Dosovitskiy 2020)."""
    config = entry["config"]
    size = sizes.input_size or config.get("image_size", 224)
    classes = sizes.num_classes or config.get("num_classes", 1000)
    tape = Tape(recipe)
    images = half_input(tape, tape.input("images", (sizes.batch, 3, size, size), "fp32"))
    hidden = embed_patches(tape, images, config)
    hidden = run_stack(tape, image_shape(config, hidden.shape[1]), hidden)
    with tape.scope("head"):
        hidden = layer_norm(tape, hidden)
        first = take(tape, hidden, (sizes.batch, config["hidden"]))
        logits = linear(tape, first, classes, name="fc")
    outputs = [cross_entropy(tape, logits)] if recipe.trains and recipe.loss else [logits]
    return tape.finish(outputs, name=name, batch_size=sizes.batch, samples_unit="images", source=entry["source"])


def build_vit_from_shape(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """A ViT given as the columns of a case table: `seq` tokens make the image."""
    shape = entry["shape"]
    tokens = max(2, shape["seq"])
    side = max(1, round((tokens - 1) ** 0.5))
    config = {
        "n_layers": shape["n_layers"],
        "hidden": shape["hidden"],
        "heads": shape["heads"],
        "ffn": shape.get("ffn", 0),
        "patch": 16,
        "image_size": 16 * side,
        "num_classes": max(2, shape.get("vocab", 1000)),
    }
    return build_vit(name, {"config": config, "source": "shape of architecture vit"}, recipe, sizes)


def build_swin(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """Shifted windows (Liu 2021): pairs of blocks, the second on a rolled image."""
    config = entry["config"]
    size = sizes.input_size or config.get("image_size", 224)
    classes = sizes.num_classes or config.get("num_classes", 1000)
    window, width = config["window"], config["hidden"]
    tape = Tape(recipe)
    images = half_input(tape, tape.input("images", (sizes.batch, 3, size, size), "fp32"))
    with tape.scope("embeddings"):
        patches = conv(tape, images, width, 4, stride=4, padding=0, bias=True, name="patches")
        side = patches.shape[2]
        x = layer_norm(tape, copy(tape, patches, (sizes.batch, side * side, width), back=True))
    for number, (depth, heads) in enumerate(zip(config["depths"], config["heads"], strict=True)):
        with tape.scope(f"stage{number + 1}"):
            if number:
                x = merge_patches(tape, x, side)
                side, width = side // 2, 2 * width
            if side % window:
                raise InvalidInput(
                    f"input size {size} gives {side} patches, not a multiple of the window {window}; use a multiple of 224"
                )
            x = stable(tape, x)

            def pair(value: Value, heads: int = heads, side: int = side) -> Value:
                for shifted in (False, True):
                    with tape.scope("shifted" if shifted else "plain"):
                        value = swin_block(tape, value, heads=heads, window=window, shifted=shifted and side > window)
                return value

            x = tape.repeat(depth // 2, x, pair)
    with tape.scope("head"):
        x = layer_norm(tape, x)
        rows = tape.view(copy(tape, x), (sizes.batch, width, side * side))
        logits = linear(tape, global_pool(tape, rows), classes, name="fc")
    outputs = [cross_entropy(tape, logits)] if recipe.trains and recipe.loss else [logits]
    return tape.finish(outputs, name=name, batch_size=sizes.batch, samples_unit="images", source=entry["source"])


def merge_patches(tape: Tape, x: Value, side: int) -> Value:
    batch, _, width = x.shape
    quarter = (batch, side * side // 4, width)
    with tape.scope("merge"):
        parts = [take(tape, x, quarter) for _ in range(4)]
        x = concat(tape, parts, (batch, side * side // 4, 4 * width))
        return linear(tape, layer_norm(tape, x), 2 * width, bias=False, name="reduce")


def swin_block(tape: Tape, x: Value, *, heads: int, window: int, shifted: bool) -> Value:
    batch, tokens, width = x.shape
    area = window * window
    windows = batch * tokens // area
    y = layer_norm(tape, x, name="attention_norm")
    if shifted:
        y = copy(tape, y, function="roll", back=True)
    y = copy(tape, y, (windows, area, width), function="windows", back=True)
    with tape.scope("attention"):
        qkv = linear(tape, y, 3 * width, name="qkv")
        part = (windows, area, width)
        q, k, v = split(tape, qkv, (part, part, part))
        table = tape.parameter("position_table", ((2 * window - 1) ** 2, heads))
        bias = window_bias(tape, table, area=area, heads=heads)
        if shifted:
            mask = tape.buffer("window_mask", (tokens // area, 1, area, area))
            bias = add(tape, spread_bias(tape, bias, tokens // area), mask)
        y = attend(tape, q, k, v, heads=heads, kv_heads=heads, causal=False, scores=Scores(bias=bias))
        y = linear(tape, y, width, name="output")
    y = copy(tape, y, (batch, tokens, width), function="windows", back=True)
    if shifted:
        y = copy(tape, y, function="roll", back=True)
    x = add(tape, x, y)
    with tape.scope("mlp"):
        y = layer_norm(tape, x)
        y = activation(tape, "gelu", linear(tape, y, 4 * width, name="up"))
        return add(tape, x, linear(tape, y, width, name="down"))


def window_bias(tape: Tape, table: Value, *, area: int, heads: int) -> Value:
    """Relative positions looked up for every pair in a window; backward adds them up."""
    out = tape.new((1, heads, area, area), table.dtype)
    attrs: dict[str, Attr] = {"function": "index_select", "numel": out.numel}
    tape.op("aten.index", "index", (table,), (out,), attrs, kernels=2, calls=4)

    def backward(g: Value) -> Gradients:
        given = tape.gradient_like(table)
        tape.op("aten.index_put_", "index", (g,), (given,), attrs, flop=g.numel, kernels=4, calls=4)
        return (given,)

    return tape.register(out, (table,), backward)


def spread_bias(tape: Tape, bias: Value, count: int) -> Value:
    out = tape.new((count, *bias.shape[1:]), bias.dtype)
    tape.op("aten.expand", "copy", (bias,), (out,), {"function": "expand", "numel": out.numel})
    return tape.register(out, (bias,), lambda g: (sum_to(tape, g, bias),))


def build_clip(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """Image and text towers and a contrastive loss over the batch of one device (Radford 2021)."""
    config = entry["config"]
    vision, text = config["vision"], config["text"]
    size = sizes.input_size or vision.get("image_size", 224)
    batch, width = sizes.batch, config["projection"]
    tape = Tape(recipe)
    tape.assume("the contrastive loss compares the samples of one device only")
    images = half_input(tape, tape.input("images", (batch, 3, size, size), "fp32"))
    with tape.scope("vision"):
        hidden = embed_patches(tape, images, vision, bias=False)
        hidden = layer_norm(tape, hidden, name="pre_norm")
        shape = image_shape({**vision, "activation": "gelu", "merged_qkv": False}, hidden.shape[1])
        hidden = run_stack(tape, shape, hidden)
        pooled = layer_norm(tape, take(tape, hidden, (batch, vision["hidden"])), name="post_norm")
        seen = linear(tape, pooled, width, bias=False, name="projection")
    with tape.scope("text"):
        length = sizes.seq or text.get("seq", 77)
        ids = tape.input("input_ids", (batch, length), "int64")
        hidden = embedding(tape, ids, vocab=text["vocab"], width=text["hidden"], name="tokens")
        hidden = add(tape, hidden, tape.parameter("positions", (1, length, text["hidden"])))
        shape = TransformerShape(
            n_layers=text["n_layers"],
            hidden=text["hidden"],
            heads=text["heads"],
            ffn=text.get("ffn", 0),
            vocab=text["vocab"],
            seq=length,
            positions="none",
            mask="add",
        )
        hidden = layer_norm(tape, run_stack(tape, shape, hidden), name="norm")
        read = linear(tape, take(tape, hidden, (batch, text["hidden"])), width, bias=False, name="projection")
    with tape.scope("contrast"):
        scores = matmul(tape, seen, read, batch=1, m=batch, n=batch, k=width, layout="tn", shape=(batch, batch))
        scores = multiply(tape, scores, tape.parameter("logit_scale", (1,)))
    outputs = [scores]
    if recipe.trains and recipe.loss:
        outputs = [add(tape, cross_entropy(tape, scores), cross_entropy(tape, copy(tape, scores, back=True)))]
    return tape.finish(outputs, name=name, batch_size=batch, samples_unit="image-text pairs", source=entry["source"])
