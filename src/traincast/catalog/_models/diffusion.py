"""Diffusion models: the U-Nets of Stable Diffusion and DiT; latents and text states are inputs."""

from collections.abc import Mapping
from typing import Any

from traincast.catalog._models.attention import attend
from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import Sizes
from traincast.catalog._models.tape import Value
from traincast.catalog._models.vision import stable
from traincast.spec import Graph


def build_diffusion_unet(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """UNet2DConditionModel on latents (Rombach 2022); the text encoder and the VAE are not part of the step."""
    tape.assume(
        "latents and text states are computed beforehand: neither the text encoder nor the VAE runs in the step"
    )
    batch = sizes.batch
    height, breadth = (side // 8 for side in sizes.image(config.get("image_size", 512)))
    widths, depths = config["widths"], config["depths"]
    text_width, length = config["text_width"], sizes.seq or 77
    latents = tape.input("latents", (batch, 4, height, breadth), tape.numbers.weight)
    text = tape.input("text", (batch, length, text_width), tape.numbers.weight)
    with tape.scope("time"):
        steps = tape.input("time_features", (batch, widths[0]), tape.numbers.weight)
        time = tape.linear(steps, 4 * widths[0], name="fc1")
        time = tape.linear(tape.activation("silu", time), 4 * widths[0], name="fc2")
        if config.get("extra_width"):
            extra = tape.input("extra_features", (batch, config["extra_width"]), tape.numbers.weight)
            more = tape.linear(extra, 4 * widths[0], name="extra1")
            time = tape.add(time, tape.linear(tape.activation("silu", more), 4 * widths[0], name="extra2"))
    unet = Unet(tape, config, text, time)
    x = tape.conv(latents, widths[0], 3, bias=True, name="conv_in")
    skips = [x]
    for number, width in enumerate(widths):
        with tape.scope(f"down{number}"):
            for index in range(2):
                x = unet.resnet(x, width, f"resnet{index}")
                x = unet.transformer(x, depths[number], f"attention{index}")
                skips.append(x)
            if number < len(widths) - 1:
                x = tape.conv(x, width, 3, stride=2, padding=1, bias=True, name="downsample")
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
                x = tape.concat((x, skip), (batch, x.shape[1] + skip.shape[1], *x.shape[2:]))
                x = unet.resnet(x, width, f"resnet{index}")
                x = unet.transformer(x, depths[number], f"attention{index}")
            if number:
                x = tape.conv(tape.upsample(x), width, 3, bias=True, name="upsample")
    with tape.scope("out"):
        x = tape.activation("silu", tape.group_norm(x))
        x = tape.conv(x, 4, 3, bias=True)
    return tape.close([x], lambda: tape.mean_loss(x), samples_unit="images")


class Unet:
    """The two blocks of a diffusion U-Net, given its text and time states."""

    def __init__(self, tape: Net, config: Mapping[str, Any], text: Value, time: Value) -> None:
        self.tape = tape
        self.config = config
        self.text = text
        self.time = time

    def resnet(self, x: Value, channels: int, name: str) -> Value:
        tape = self.tape
        with tape.scope(name):
            y = tape.conv(
                tape.activation("silu", tape.group_norm(x, name="norm1")), channels, 3, bias=True, name="conv1"
            )
            place = tape.linear(tape.activation("silu", self.time), channels, name="time")
            y = tape.add(y, place)
            y = tape.conv(
                tape.activation("silu", tape.group_norm(y, name="norm2")), channels, 3, bias=True, name="conv2"
            )
            if x.shape[1] != channels:
                x = tape.conv(x, channels, 1, bias=True, name="shortcut")
            return tape.add(x, y)

    def transformer(self, x: Value, depth: int, name: str) -> Value:
        if not depth:
            return x
        tape = self.tape
        batch, width, *size = x.shape
        tokens = size[0] * size[1]
        heads = width // self.config["head_dim"] if self.config.get("head_dim") else self.config["heads"]
        linear_projection = self.config.get("linear_projection", False)
        with tape.scope(name):
            y = tape.group_norm(x)
            if not linear_projection:
                y = tape.conv(y, width, 1, bias=True, name="proj_in")
            rows = tape.copy(y, (batch, tokens, width), back=True)
            if linear_projection:
                rows = tape.linear(rows, width, name="proj_in")
            rows = stable(tape, rows)

            def block(value: Value) -> Value:
                return self.block(value, heads)

            rows = tape.repeat(depth, rows, block)
            if linear_projection:
                rows = tape.linear(rows, width, name="proj_out")
            y = tape.copy(rows, (batch, width, *size), back=True)
            if not linear_projection:
                y = tape.conv(y, width, 1, bias=True, name="proj_out")
            return tape.add(x, y)

    def block(self, x: Value, heads: int) -> Value:
        tape = self.tape
        batch, tokens, width = x.shape
        for name, memory in (("self", None), ("cross", self.text)):
            with tape.scope(name):
                y = tape.layer_norm(x)
                seen = y if memory is None else memory
                q = tape.linear(y, width, bias=False, name="query")
                k = tape.linear(seen, width, bias=False, name="key")
                v = tape.linear(seen, width, bias=False, name="value")
                y = attend(tape, q, k, v, heads=heads, kv_heads=heads, causal=False)
                x = tape.add(x, tape.linear(y, width, name="output"))
        with tape.scope("mlp"):
            y = tape.linear(tape.layer_norm(x), 8 * width, name="up")
            part = (batch, tokens, 4 * width)
            y, gate = tape.split(y, (part, part))
            y = tape.multiply(y, tape.activation("gelu", gate))
            return tape.add(x, tape.linear(y, width, name="down"))


def build_dit(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """Diffusion transformer with adaptive norms (Peebles 2022)."""
    batch, width, heads = sizes.batch, config["hidden"], config["heads"]
    height, breadth = (side // 8 for side in sizes.image(config.get("image_size", 256)))
    patch = config.get("patch", 2)
    tokens = (height // patch) * (breadth // patch)
    latents = tape.input("latents", (batch, 4, height, breadth), tape.numbers.weight)
    x = tape.copy(
        tape.conv(latents, width, patch, stride=patch, padding=0, bias=True, name="patches"),
        (batch, tokens, width),
        back=True,
    )
    x = stable(tape, tape.add(x, tape.parameter("positions", (1, tokens, width), trained=False)))
    with tape.scope("time"):
        steps = tape.input("time_features", (batch, 256), tape.numbers.weight)
        time = tape.linear(tape.activation("silu", tape.linear(steps, width, name="fc1")), width, name="fc2")
        labels = tape.input("labels", (batch,), "int64")
        state = tape.add(time, tape.embedding(labels, vocab=1001, width=width, name="classes"))

    def modulate(value: Value, move: Value, factor: Value) -> Value:
        return tape.add(tape.multiply(tape.layer_norm(value, affine=False), tape.shift(factor)), move)

    def block(value: Value) -> Value:
        six = tape.linear(tape.activation("silu", state), 6 * width, name="modulation")
        parts = tape.split(six, [(batch, 1, width)] * 6)
        with tape.scope("attention"):
            y = modulate(value, parts[0], parts[1])
            shape = (batch, tokens, width)
            q, k, v = tape.split(tape.linear(y, 3 * width, name="qkv"), (shape, shape, shape))
            y = tape.linear(attend(tape, q, k, v, heads=heads, kv_heads=heads, causal=False), width, name="output")
        value = tape.add(value, tape.multiply(y, parts[2]))
        with tape.scope("mlp"):
            y = modulate(value, parts[3], parts[4])
            y = tape.linear(tape.activation("gelu", tape.linear(y, 4 * width, name="up")), width, name="down")
        return tape.add(value, tape.multiply(y, parts[5]))

    with tape.scope("layers"):
        x = tape.repeat(config["n_layers"], x, block)
    with tape.scope("out"):
        two = tape.linear(tape.activation("silu", state), 2 * width, name="modulation")
        parts = tape.split(two, [(batch, 1, width)] * 2)
        x = tape.linear(modulate(x, parts[0], parts[1]), patch * patch * 8, name="fc")
    return tape.close([x], lambda: tape.mean_loss(x), samples_unit="images")
