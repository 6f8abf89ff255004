"""Transformers on images: ViT, Swin, CLIP."""

import math
from collections.abc import Mapping
from typing import Any

from traincast.catalog._models.attention import Scores, attend
from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import Sizes
from traincast.catalog._models.tape import Gradients, Value
from traincast.catalog._models.transformer import TransformerShape, run_stack
from traincast.catalog._models.vision import half_input, stable
from traincast.errors import InvalidInput
from traincast.spec import Attr, Graph


def image_shape(config: Mapping[str, Any], tokens: int) -> TransformerShape:
    return TransformerShape(
        n_layers=config["n_layers"], hidden=config["hidden"], heads=config["heads"], ffn=config.get("ffn", 0), vocab=1,
        seq=tokens, causal=False, mask="", positions="none", activation=config.get("activation", "gelu"),
        dropout=config.get("dropout", 0.0), attention_dropout=config.get("dropout", 0.0),
        merged_qkv=config.get("merged_qkv", True),
    )  # fmt: skip


def embed_patches(tape: Net, images: Value, config: Mapping[str, Any], *, bias: bool = True) -> Value:
    """Patches, a class token and learned positions: (batch, tokens, hidden)."""
    batch, hidden = images.shape[0], config["hidden"]
    with tape.scope("embeddings"):
        patches = tape.conv(
            images, hidden, config["patch"], stride=config["patch"], padding=0, bias=bias, name="patches"
        )
        count = patches.shape[2] * patches.shape[3]
        rows = tape.copy(patches, (batch, count, hidden), back=True)
        token = tape.for_product(tape.parameter("class_token", (1, 1, hidden)))
        spread = tape.new((batch, 1, hidden), token.dtype)
        tape.op("aten.expand", "copy", (token,), (spread,), {"function": "expand", "numel": spread.numel})
        tape.register(spread, (token,), lambda g: (tape.sum_to(g, token),))
        tokens = tape.concat((spread, rows), (batch, count + 1, hidden))
        tokens = tape.add(tokens, tape.parameter("positions", (1, count + 1, hidden)))
        return tape.dropout(tokens, tape.recipe.rate(config.get("dropout", 0.0)))


def build_vit(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """A vision transformer with a class token (Dosovitskiy 2020)."""
    size = sizes.image(config.get("image_size", 224))
    classes = sizes.num_classes or config.get("num_classes", 1000)
    images = half_input(tape, tape.input("images", (sizes.batch, 3, *size), "fp32"))
    hidden = embed_patches(tape, images, config)
    hidden = run_stack(tape, image_shape(config, hidden.shape[1]), hidden)
    with tape.scope("head"):
        hidden = tape.layer_norm(hidden)
        first = tape.take(hidden, (sizes.batch, config["hidden"]))
        logits = tape.linear(first, classes, name="fc")
    return tape.close([logits], lambda: tape.cross_entropy(logits), samples_unit="images")


def build_vit_from_shape(tape: Net, shape: Mapping[str, Any], sizes: Sizes) -> Graph:
    """A ViT given as the columns of a case table: `seq` tokens make the image."""
    side = max(1, round((max(2, shape["seq"]) - 1) ** 0.5))
    config = {**shape, "patch": 16, "image_size": 16 * side, "num_classes": max(2, shape.get("vocab", 1000))}
    return build_vit(tape, config, sizes)


def build_swin(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """Shifted windows (Liu 2021): pairs of blocks, the second on a rolled image."""
    size = sizes.image(config.get("image_size", 224))
    classes = sizes.num_classes or config.get("num_classes", 1000)
    window, width = config["window"], config["hidden"]
    images = half_input(tape, tape.input("images", (sizes.batch, 3, *size), "fp32"))
    with tape.scope("embeddings"):
        patches = tape.conv(images, width, 4, stride=4, padding=0, bias=True, name="patches")
        sides = patches.shape[2:]
        x = tape.layer_norm(tape.copy(patches, (sizes.batch, math.prod(sides), width), back=True))
    for number, (depth, heads) in enumerate(zip(config["depths"], config["heads"], strict=True)):
        with tape.scope(f"stage{number + 1}"):
            if number:
                x = merge_patches(tape, x)
                sides, width = tuple(side // 2 for side in sides), 2 * width
            if any(side % window for side in sides):
                raise InvalidInput(
                    f"input size {size[0]}x{size[1]} gives {sides[0]}x{sides[1]} patches, no multiples of the window {window}; "
                    "use multiples of 224"
                )
            x = stable(tape, x)

            def pair(value: Value, heads: int = heads, most: int = max(sides)) -> Value:
                for shifted in (False, True):
                    with tape.scope("shifted" if shifted else "plain"):
                        value = swin_block(tape, value, heads=heads, window=window, shifted=shifted and most > window)
                return value

            x = tape.repeat(depth // 2, x, pair)
    with tape.scope("head"):
        x = tape.layer_norm(x)
        rows = tape.view(tape.copy(x), (sizes.batch, width, math.prod(sides)))
        logits = tape.linear(tape.global_pool(rows), classes, name="fc")
    return tape.close([logits], lambda: tape.cross_entropy(logits), samples_unit="images")


def merge_patches(tape: Net, x: Value) -> Value:
    batch, tokens, width = x.shape
    quarter = (batch, tokens // 4, width)
    with tape.scope("merge"):
        parts = [tape.take(x, quarter) for _ in range(4)]
        x = tape.concat(parts, (batch, tokens // 4, 4 * width))
        return tape.linear(tape.layer_norm(x), 2 * width, bias=False, name="reduce")


def swin_block(tape: Net, x: Value, *, heads: int, window: int, shifted: bool) -> Value:
    batch, tokens, width = x.shape
    area = window * window
    windows = batch * tokens // area
    y = tape.layer_norm(x, name="attention_norm")
    if shifted:
        y = tape.copy(y, function="roll", back=True)
    y = tape.copy(y, (windows, area, width), function="windows", back=True)
    with tape.scope("attention"):
        qkv = tape.linear(y, 3 * width, name="qkv")
        part = (windows, area, width)
        q, k, v = tape.split(qkv, (part, part, part))
        table = tape.parameter("position_table", ((2 * window - 1) ** 2, heads))
        bias = window_bias(tape, table, area=area, heads=heads)
        if shifted:
            mask = tape.buffer("window_mask", (tokens // area, 1, area, area))
            bias = tape.add(spread_bias(tape, bias, tokens // area), mask)
        y = attend(tape, q, k, v, heads=heads, kv_heads=heads, causal=False, scores=Scores(bias=bias))
        y = tape.linear(y, width, name="output")
    y = tape.copy(y, (batch, tokens, width), function="windows", back=True)
    if shifted:
        y = tape.copy(y, function="roll", back=True)
    x = tape.add(x, y)
    with tape.scope("mlp"):
        y = tape.layer_norm(x)
        y = tape.activation("gelu", tape.linear(y, 4 * width, name="up"))
        return tape.add(x, tape.linear(y, width, name="down"))


def window_bias(tape: Net, table: Value, *, area: int, heads: int) -> Value:
    """Relative positions looked up for every pair in a window; backward adds them up."""
    out = tape.new((1, heads, area, area), table.dtype)
    attrs: dict[str, Attr] = {"function": "index_select", "numel": out.numel}
    tape.op("aten.index", "index", (table,), (out,), attrs, kernels=2, calls=4)

    def backward(g: Value) -> Gradients:
        given = tape.gradient_like(table)
        tape.op("aten.index_put_", "index", (g,), (given,), attrs, flop=g.numel, kernels=4, calls=4)
        return (given,)

    return tape.register(out, (table,), backward)


def spread_bias(tape: Net, bias: Value, count: int) -> Value:
    out = tape.new((count, *bias.shape[1:]), bias.dtype)
    tape.op("aten.expand", "copy", (bias,), (out,), {"function": "expand", "numel": out.numel})
    return tape.register(out, (bias,), lambda g: (tape.sum_to(g, bias),))


def build_clip(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """Image and text towers and a contrastive loss over the batch of one device (Radford 2021)."""
    vision, text = config["vision"], config["text"]
    size = sizes.image(vision.get("image_size", 224))
    batch, width = sizes.batch, config["projection"]
    tape.assume("the contrastive loss compares the samples of one device only")
    images = half_input(tape, tape.input("images", (batch, 3, *size), "fp32"))
    with tape.scope("vision"):
        hidden = embed_patches(tape, images, vision, bias=False)
        hidden = tape.layer_norm(hidden, name="pre_norm")
        shape = image_shape({**vision, "activation": "gelu", "merged_qkv": False}, hidden.shape[1])
        hidden = run_stack(tape, shape, hidden)
        pooled = tape.layer_norm(tape.take(hidden, (batch, vision["hidden"])), name="post_norm")
        seen = tape.linear(pooled, width, bias=False, name="projection")
    with tape.scope("text"):
        length = sizes.seq or text.get("seq", 77)
        ids = tape.input("input_ids", (batch, length), "int64")
        hidden = tape.embedding(ids, vocab=text["vocab"], width=text["hidden"], name="tokens")
        hidden = tape.add(hidden, tape.parameter("positions", (1, length, text["hidden"])))
        shape = TransformerShape(
            n_layers=text["n_layers"], hidden=text["hidden"], heads=text["heads"], ffn=text.get("ffn", 0),
            vocab=text["vocab"], seq=length, positions="none", mask="add",
        )  # fmt: skip
        hidden = tape.layer_norm(run_stack(tape, shape, hidden), name="norm")
        read = tape.linear(tape.take(hidden, (batch, text["hidden"])), width, bias=False, name="projection")
    with tape.scope("contrast"):
        scores = tape.matmul(seen, read, batch=1, m=batch, n=batch, k=width, layout="tn", shape=(batch, batch))
        scores = tape.multiply(scores, tape.parameter("logit_scale", (1,)))
    outputs = [scores]
    if tape.recipe.has_loss:
        outputs = [tape.add(tape.cross_entropy(scores), tape.cross_entropy(tape.copy(scores, back=True)))]
    return tape.close(outputs, samples_unit="image-text pairs")
