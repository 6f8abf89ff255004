"""Diffusion models: the U-Nets of Stable Diffusion and DiT; latents and text states are inputs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from traincast.catalog._models.attention import attend
from traincast.catalog._models.layers import (
    activation,
    add,
    concat,
    conv,
    copy,
    embedding,
    group_norm,
    layer_norm,
    linear,
    mean_loss,
    multiply,
    shift,
    split,
    upsample,
)
from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.tape import Tape, Value
from traincast.catalog._models.vision import stable
from traincast.spec import Graph

if TYPE_CHECKING:
    from traincast.catalog._workloads import Sizes


def build_diffusion_unet(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """UNet2DConditionModel on latents (Rombach 2022); the text encoder and the VAE are not part of the step."""
    config = entry["config"]
    tape = Tape(recipe)
    tape.assume(
        "latents and text states are computed beforehand: neither the text encoder nor the VAE runs in the step"
    )
    batch = sizes.batch
    side = (sizes.input_size or config.get("image_size", 512)) // 8
    widths, depths = config["widths"], config["depths"]
    text_width, length = config["text_width"], sizes.seq or 77
    latents = tape.input("latents", (batch, 4, side, side), tape.numbers.weight)
    text = tape.input("text", (batch, length, text_width), tape.numbers.weight)
    with tape.scope("time"):
        steps = tape.input("time_features", (batch, widths[0]), tape.numbers.weight)
        time = linear(tape, steps, 4 * widths[0], name="fc1")
        time = linear(tape, activation(tape, "silu", time), 4 * widths[0], name="fc2")
        if config.get("extra_width"):
            extra = tape.input("extra_features", (batch, config["extra_width"]), tape.numbers.weight)
            more = linear(tape, extra, 4 * widths[0], name="extra1")
            time = add(tape, time, linear(tape, activation(tape, "silu", more), 4 * widths[0], name="extra2"))
    unet = Unet(tape, config, text, time)
    x = conv(tape, latents, widths[0], 3, bias=True, name="conv_in")
    skips = [x]
    for number, width in enumerate(widths):
        with tape.scope(f"down{number}"):
            for index in range(2):
                x = unet.resnet(x, width, f"resnet{index}")
                x = unet.transformer(x, depths[number], f"attention{index}")
                skips.append(x)
            if number < len(widths) - 1:
                x = conv(tape, x, width, 3, stride=2, padding=1, bias=True, name="downsample")
                skips.append(x)
    with tape.scope("middle"):
        x = unet.resnet(x, widths[-1], "resnet0")
        x = unet.transformer(
            x, max(1, depths[-1]) if config.get("middle_depth") is None else config["middle_depth"], "attention"
        )
        x = unet.resnet(x, widths[-1], "resnet1")
    for number in range(len(widths) - 1, -1, -1):
        width = widths[number]
        with tape.scope(f"up{number}"):
            for index in range(3):
                skip = skips.pop()
                x = concat(tape, (x, skip), (batch, x.shape[1] + skip.shape[1], *x.shape[2:]))
                x = unet.resnet(x, width, f"resnet{index}")
                x = unet.transformer(x, depths[number], f"attention{index}")
            if number:
                x = conv(tape, upsample(tape, x), width, 3, bias=True, name="upsample")
    with tape.scope("out"):
        x = activation(tape, "silu", group_norm(tape, x))
        x = conv(tape, x, 4, 3, bias=True)
    outputs = [mean_loss(tape, x)] if recipe.trains and recipe.loss else [x]
    return tape.finish(outputs, name=name, batch_size=batch, samples_unit="images", source=entry["source"])


class Unet:
    """The two blocks of a diffusion U-Net, given its text and time states."""

    def __init__(self, tape: Tape, config: Mapping[str, Any], text: Value, time: Value) -> None:
        self.tape = tape
        self.config = config
        self.text = text
        self.time = time

    def resnet(self, x: Value, channels: int, name: str) -> Value:
        tape = self.tape
        with tape.scope(name):
            y = conv(
                tape, activation(tape, "silu", group_norm(tape, x, name="norm1")), channels, 3, bias=True, name="conv1"
            )
            place = linear(tape, activation(tape, "silu", self.time), channels, name="time")
            y = add(tape, y, place)
            y = conv(
                tape, activation(tape, "silu", group_norm(tape, y, name="norm2")), channels, 3, bias=True, name="conv2"
            )
            if x.shape[1] != channels:
                x = conv(tape, x, channels, 1, bias=True, name="shortcut")
            return add(tape, x, y)

    def transformer(self, x: Value, depth: int, name: str) -> Value:
        if not depth:
            return x
        tape = self.tape
        batch, width, *size = x.shape
        tokens = size[0] * size[1]
        heads = width // self.config["head_dim"] if self.config.get("head_dim") else self.config["heads"]
        linear_projection = self.config.get("linear_projection", False)
        with tape.scope(name):
            y = group_norm(tape, x)
            if not linear_projection:
                y = conv(tape, y, width, 1, bias=True, name="proj_in")
            rows = copy(tape, y, (batch, tokens, width), back=True)
            if linear_projection:
                rows = linear(tape, rows, width, name="proj_in")
            rows = stable(tape, rows)

            def block(value: Value) -> Value:
                return self.block(value, heads)

            rows = tape.repeat(depth, rows, block)
            if linear_projection:
                rows = linear(tape, rows, width, name="proj_out")
            y = copy(tape, rows, (batch, width, *size), back=True)
            if not linear_projection:
                y = conv(tape, y, width, 1, bias=True, name="proj_out")
            return add(tape, x, y)

    def block(self, x: Value, heads: int) -> Value:
        tape = self.tape
        batch, tokens, width = x.shape
        for name, memory in (("self", None), ("cross", self.text)):
            with tape.scope(name):
                y = layer_norm(tape, x)
                seen = y if memory is None else memory
                q = linear(tape, y, width, bias=False, name="query")
                k = linear(tape, seen, width, bias=False, name="key")
                v = linear(tape, seen, width, bias=False, name="value")
                y = attend(tape, q, k, v, heads=heads, kv_heads=heads, causal=False)
                x = add(tape, x, linear(tape, y, width, name="output"))
        with tape.scope("mlp"):
            y = linear(tape, layer_norm(tape, x), 8 * width, name="up")
            part = (batch, tokens, 4 * width)
            y, gate = split(tape, y, (part, part))
            y = multiply(tape, y, activation(tape, "gelu", gate))
            return add(tape, x, linear(tape, y, width, name="down"))


def build_dit(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """Diffusion transformer with adaptive norms (Peebles 2022)."""
    config = entry["config"]
    tape = Tape(recipe)
    batch, width, heads = sizes.batch, config["hidden"], config["heads"]
    side = (sizes.input_size or config.get("image_size", 256)) // 8
    patch = config.get("patch", 2)
    tokens = (side // patch) ** 2
    latents = tape.input("latents", (batch, 4, side, side), tape.numbers.weight)
    x = copy(
        tape,
        conv(tape, latents, width, patch, stride=patch, padding=0, bias=True, name="patches"),
        (batch, tokens, width),
        back=True,
    )
    x = stable(tape, add(tape, x, tape.parameter("positions", (1, tokens, width), trained=False)))
    with tape.scope("time"):
        steps = tape.input("time_features", (batch, 256), tape.numbers.weight)
        time = linear(tape, activation(tape, "silu", linear(tape, steps, width, name="fc1")), width, name="fc2")
        labels = tape.input("labels", (batch,), "int64")
        state = add(tape, time, embedding(tape, labels, vocab=1001, width=width, name="classes"))

    def modulate(value: Value, move: Value, factor: Value) -> Value:
        return add(tape, multiply(tape, layer_norm(tape, value, affine=False), shift(tape, factor)), move)

    def block(value: Value) -> Value:
        six = linear(tape, activation(tape, "silu", state), 6 * width, name="modulation")
        parts = split(tape, six, [(batch, 1, width)] * 6)
        with tape.scope("attention"):
            y = modulate(value, parts[0], parts[1])
            shape = (batch, tokens, width)
            q, k, v = split(tape, linear(tape, y, 3 * width, name="qkv"), (shape, shape, shape))
            y = linear(tape, attend(tape, q, k, v, heads=heads, kv_heads=heads, causal=False), width, name="output")
        value = add(tape, value, multiply(tape, y, parts[2]))
        with tape.scope("mlp"):
            y = modulate(value, parts[3], parts[4])
            y = linear(tape, activation(tape, "gelu", linear(tape, y, 4 * width, name="up")), width, name="down")
        return add(tape, value, multiply(tape, y, parts[5]))

    with tape.scope("layers"):
        x = tape.repeat(config["n_layers"], x, block)
    with tape.scope("out"):
        two = linear(tape, activation(tape, "silu", state), 2 * width, name="modulation")
        parts = split(tape, two, [(batch, 1, width)] * 2)
        x = linear(tape, modulate(x, parts[0], parts[1]), patch * patch * 8, name="fc")
    outputs = [mean_loss(tape, x)] if recipe.trains and recipe.loss else [x]
    return tape.finish(outputs, name=name, batch_size=batch, samples_unit="images", source=entry["source"])
