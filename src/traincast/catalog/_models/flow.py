"""What flow and diffusion models are made of beside U-Nets: transformers of two streams, and the encoder of images to latents."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from traincast.catalog._models.attention import attend
from traincast.catalog._models.layers import (
    activation,
    add,
    concat,
    conv,
    copy,
    group_norm,
    layer_norm,
    linear,
    mean_loss,
    multiply,
    rms_norm,
    shift,
    split,
)
from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.tape import Tape, Value
from traincast.spec import Graph

if TYPE_CHECKING:
    from traincast.catalog._workloads import Sizes


def build_two_streams(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """Image and text tokens with weights of their own that attend together, then as one sequence (Esser 2024; Flux)."""
    config = entry["config"]
    tape = Tape(recipe)
    tape.assume(
        "latents and text states are computed beforehand: neither the text encoder nor the VAE runs in the step"
    )
    batch, width = sizes.batch, config["hidden"]
    side = (sizes.input_size or config["image_size"]) // 8
    patch = config["patch"]
    text_tokens = sizes.seq or config["text_tokens"]
    latents = tape.input("latents", (batch, config["channels"], side, side), tape.numbers.weight)
    pieces = copy(tape, latents, (batch, (side // patch) ** 2, config["channels"] * patch * patch))
    text = tape.input("text", (batch, text_tokens, config["text_width"]), tape.numbers.weight)
    image = linear(tape, pieces, width, name="image_in")
    words = linear(tape, text, width, name="text_in")
    streams = Streams(
        tape, config, num_text=text_tokens, num_image=pieces.shape[1], state=_condition(tape, batch, config)
    )
    x = concat(tape, (words, image), (batch, text_tokens + pieces.shape[1], width))
    with tape.scope("layers"):
        x = tape.repeat(config["double_layers"], x, streams.double)
        x = tape.repeat(config["single_layers"], x, streams.single)
    with tape.scope("out"):
        (move, factor) = streams.modulation(2, "modulation")
        _, image = streams.parts(x)
        image = streams.modulate(image, move, factor)
        image = linear(tape, image, config["channels"] * patch * patch, name="fc")
    outputs = [mean_loss(tape, image)] if recipe.trains and recipe.loss else [image]
    return tape.finish(outputs, name=name, batch_size=batch, samples_unit="images", source=entry["source"])


def _condition(tape: Tape, batch: int, config: Mapping[str, Any]) -> Value:
    """Time, guidance and the pooled text, each through two layers, added up."""
    width = config["hidden"]
    total: Value | None = None
    for name, size in config["conditions"].items():
        with tape.scope(name):
            x = tape.input(f"{name}_features", (batch, size), tape.numbers.weight)
            x = linear(tape, activation(tape, "silu", linear(tape, x, width, name="fc1")), width, name="fc2")
        total = x if total is None else add(tape, total, x)
    if total is None:
        return tape.input("condition", (batch, width), tape.numbers.weight)
    return activation(tape, "silu", total)


class Streams:
    """The two sorts of layers, given the state that scales and shifts them."""

    def __init__(self, tape: Tape, config: Mapping[str, Any], *, num_text: int, num_image: int, state: Value) -> None:
        self.tape = tape
        self.width = config["hidden"]
        self.heads = config["heads"]
        self.num_text = num_text
        self.num_image = num_image
        self.state = state

    def parts(self, x: Value) -> tuple[Value, Value]:
        batch = x.shape[0]
        text, image = split(self.tape, x, ((batch, self.num_text, self.width), (batch, self.num_image, self.width)))
        return text, image

    def modulation(self, count: int, name: str) -> list[Value]:
        batch = self.state.shape[0]
        wide = linear(self.tape, self.state, count * self.width, name=name)
        return split(self.tape, wide, [(batch, 1, self.width)] * count)

    def modulate(self, x: Value, move: Value, factor: Value) -> Value:
        tape = self.tape
        return add(tape, multiply(tape, layer_norm(tape, x, affine=False), shift(tape, factor)), move)

    def normed(self, q: Value, k: Value, v: Value) -> tuple[Value, Value, Value]:
        dim, fused = self.width // self.heads, self.tape.recipe.fused
        return (
            rms_norm(self.tape, q, name="query_norm", fused=fused, width=dim),
            rms_norm(self.tape, k, name="key_norm", fused=fused, width=dim),
            v,
        )

    def double(self, x: Value) -> Value:
        """Both streams attend together; everything else is each one's own."""
        tape, width = self.tape, self.width
        batch, tokens, _ = x.shape

        def body() -> Value:
            inputs, made, gates = self.parts(x), [], []
            for stream, name in zip(inputs, ("text", "image"), strict=True):
                with tape.scope(name):
                    six = self.modulation(6, "modulation")
                    y = self.modulate(stream, six[0], six[1])
                    shape = (batch, stream.shape[1], width)
                    q, k, v = split(tape, linear(tape, y, 3 * width, name="qkv"), (shape, shape, shape))
                    made.append(self.normed(q, k, v))
                    gates.append(six)
            joined = [concat(tape, pair, (batch, tokens, width)) for pair in zip(*made, strict=True)]
            mixed = self.parts(attend(tape, *joined, heads=self.heads, kv_heads=self.heads, causal=False))
            results = []
            for stream, name, six, y in zip(inputs, ("text", "image"), gates, mixed, strict=True):
                with tape.scope(name):
                    out = add(tape, stream, multiply(tape, linear(tape, y, width, name="output"), six[2]))
                    y = self.modulate(out, six[3], six[4])
                    y = linear(
                        tape, activation(tape, "gelu", linear(tape, y, 4 * width, name="up")), width, name="down"
                    )
                    results.append(add(tape, out, multiply(tape, y, six[5])))
            return concat(tape, results, (batch, tokens, width))

        return tape.checkpoint(body, enabled=tape.recipe.recompute == "full")

    def single(self, x: Value) -> Value:
        """One sequence; attention and MLP side by side, in two products."""
        tape, width = self.tape, self.width
        batch, tokens, _ = x.shape

        def body() -> Value:
            move, factor, gate = self.modulation(3, "modulation")
            y = self.modulate(x, move, factor)
            part = (batch, tokens, width)
            wide = linear(tape, y, 7 * width, name="qkv_up")
            q, k, v, inner = split(tape, wide, (part, part, part, (batch, tokens, 4 * width)))
            q, k, v = self.normed(q, k, v)
            mixed = attend(tape, q, k, v, heads=self.heads, kv_heads=self.heads, causal=False)
            both = concat(tape, (mixed, activation(tape, "gelu", inner)), (batch, tokens, 5 * width))
            return add(tape, x, multiply(tape, linear(tape, both, width, name="output_down"), gate))

        return tape.checkpoint(body, enabled=tape.recipe.recompute == "full")


def build_image_encoder(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """The encoder of an AutoencoderKL: images to the mean and variance of latents (Kingma 2013, Rombach 2022)."""
    config = entry["config"]
    tape = Tape(recipe)
    side, widths = sizes.input_size or config["image_size"], config["widths"]
    images = tape.input("images", (sizes.batch, 3, side, side), tape.numbers.weight)
    x = conv(tape, images, widths[0], 3, bias=True, name="conv_in")
    for number, width in enumerate(widths):
        with tape.scope(f"down{number}"):
            for index in range(2):
                x = _resnet(tape, x, width, f"resnet{index}")
            if number < len(widths) - 1:
                x = conv(tape, x, width, 3, stride=2, padding=1, bias=True, name="downsample")
    with tape.scope("middle"):
        x = _resnet(tape, x, widths[-1], "resnet0")
        x = _attend_pixels(tape, x)
        x = _resnet(tape, x, widths[-1], "resnet1")
    with tape.scope("out"):
        x = activation(tape, "silu", group_norm(tape, x))
        x = conv(tape, x, 2 * config["channels"], 3, bias=True)
        if config.get("quant_conv", True):
            x = conv(tape, x, 2 * config["channels"], 1, bias=True, name="quant")
    outputs = [mean_loss(tape, x)] if recipe.trains and recipe.loss else [x]
    return tape.finish(outputs, name=name, batch_size=sizes.batch, samples_unit="images", source=entry["source"])


def _resnet(tape: Tape, x: Value, channels: int, name: str) -> Value:
    with tape.scope(name):
        y = conv(
            tape, activation(tape, "silu", group_norm(tape, x, name="norm1")), channels, 3, bias=True, name="conv1"
        )
        y = conv(
            tape, activation(tape, "silu", group_norm(tape, y, name="norm2")), channels, 3, bias=True, name="conv2"
        )
        if x.shape[1] != channels:
            x = conv(tape, x, channels, 1, bias=True, name="shortcut")
        return add(tape, x, y)


def _attend_pixels(tape: Tape, x: Value) -> Value:
    """One head as wide as the channels, over all places of the smallest map."""
    batch, width, *size = x.shape
    tokens = size[0] * size[1]
    with tape.scope("attention"):
        rows = copy(tape, group_norm(tape, x), (batch, tokens, width), back=True)
        q, k, v = (linear(tape, rows, width, name=part) for part in ("query", "key", "value"))
        y = attend(tape, q, k, v, heads=1, kv_heads=1, causal=False)
        return add(tape, x, copy(tape, linear(tape, y, width, name="output"), (batch, width, *size), back=True))
