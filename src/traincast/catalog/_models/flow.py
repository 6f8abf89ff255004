"""What flow and diffusion models are made of beside U-Nets: transformers of two streams, and the encoder of images to latents."""

from collections.abc import Mapping
from typing import Any

from traincast.catalog._models.attention import attend
from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import Sizes
from traincast.catalog._models.tape import Value
from traincast.catalog._models.transformer import rotate
from traincast.spec import Graph


def build_two_streams(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """Image and text tokens with weights of their own that attend together, then as one sequence (Esser 2024; Flux)."""
    tape.assume(
        "latents and text states are computed beforehand: neither the text encoder nor the VAE runs in the step"
    )
    batch, width = sizes.batch, config["hidden"]
    height, breadth = (side // 8 for side in sizes.image(config["image_size"]))
    patch = config["patch"]
    text_tokens = sizes.seq or config["text_tokens"]
    latents = tape.input("latents", (batch, config["channels"], height, breadth), tape.numbers.weight)
    pieces = tape.copy(latents, (batch, (height // patch) * (breadth // patch), config["channels"] * patch * patch))
    text = tape.input("text", (batch, text_tokens, config["text_width"]), tape.numbers.weight)
    bias = config.get("bias", True)
    image = tape.linear(pieces, width, bias=bias, name="image_in")
    words = tape.linear(text, width, bias=bias, name="text_in")
    streams = Streams(
        tape, config, num_text=text_tokens, num_image=pieces.shape[1], state=_condition(tape, batch, config)
    )
    x = tape.concat((words, image), (batch, text_tokens + pieces.shape[1], width))
    with tape.scope("layers"):
        x = tape.repeat(config["double_layers"], x, streams.double)
        x = tape.repeat(config["single_layers"], x, streams.single)
    with tape.scope("out"):
        (move, factor) = streams.modulation(2, "modulation")
        _, image = streams.parts(x)
        image = streams.modulate(image, move, factor)
        image = tape.linear(image, config["channels"] * patch * patch, bias=bias, name="fc")
    return tape.close([image], lambda: tape.mean_loss(image), samples_unit="images")


def _condition(tape: Net, batch: int, config: Mapping[str, Any]) -> Value:
    """Time, guidance and the pooled text, each through two layers, added up."""
    width, bias = config["hidden"], config.get("bias", True)
    total: Value | None = None
    for name, size in config["conditions"].items():
        with tape.scope(name):
            x = tape.input(f"{name}_features", (batch, size), tape.numbers.weight)
            x = tape.activation("silu", tape.linear(x, width, bias=bias, name="fc1"))
            x = tape.linear(x, width, bias=bias, name="fc2")
        total = x if total is None else tape.add(total, x)
    if total is None:
        return tape.input("condition", (batch, width), tape.numbers.weight)
    return tape.activation("silu", total)


def rotate_pairs(tape: Net, x: Value, *, dim: int) -> Value:
    """Rotary positions of neighbouring numbers, in fp32 as diffusers writes them; the tables are made once per step."""
    tables = [tape.buffer(name, (x.shape[1], 1, dim)) for name in ("cos", "sin")]
    if tape.recipe.fused:
        return rotate(tape, x, tuple(tables), dim=dim, share=1.0)
    half = (*x.shape[:-1], x.shape[-1] // 2)
    first, second = tape.split(x, (half, half))
    turned = tape.concat((tape.scale(second, "neg"), first), x.shape)
    parts = [tape.multiply(tape.cast(y, "fp32"), table) for y, table in zip((x, turned), tables, strict=True)]
    return tape.cast(tape.add(*parts), x.dtype)


class Streams:
    """The two sorts of layers, given the state that scales and shifts them. In some all layers of a sort share what the state
    says (`shared_modulation`), MLPs are gated (`gated`) and positions are turned (`rotary`)."""

    def __init__(self, tape: Net, config: Mapping[str, Any], *, num_text: int, num_image: int, state: Value) -> None:
        self.tape = tape
        self.width = config["hidden"]
        self.heads = config["heads"]
        self.num_text = num_text
        self.num_image = num_image
        self.state = state
        self.bias, self.gated, self.rotary = (
            config.get("bias", True),
            config.get("gated", False),
            config.get("rotary", False),
        )
        self.ffn = int(config.get("mlp_ratio", 4) * self.width)
        self.shared: dict[str, list[Value]] = {}
        if config.get("shared_modulation"):
            for sort, count in (("text", 6), ("image", 6), ("single", 3)):
                self.shared[sort] = self.modulation(count, f"{sort}_modulation")

    def parts(self, x: Value) -> tuple[Value, Value]:
        batch = x.shape[0]
        text, image = self.tape.split(x, ((batch, self.num_text, self.width), (batch, self.num_image, self.width)))
        return text, image

    def modulation(self, count: int, name: str) -> list[Value]:
        batch = self.state.shape[0]
        wide = self.tape.linear(self.state, count * self.width, bias=self.bias, name=name)
        return self.tape.split(wide, [(batch, 1, self.width)] * count)

    def modulate(self, x: Value, move: Value, factor: Value) -> Value:
        tape = self.tape
        return tape.add(tape.multiply(tape.layer_norm(x, affine=False), tape.shift(factor)), move)

    def normed(self, q: Value, k: Value, v: Value) -> tuple[Value, Value, Value]:
        """Of every head, by PyTorch's own kernel."""
        dim = self.width // self.heads
        q, k = (
            self.tape.rms_norm(x, name=name, fused=True, width=dim) for x, name in ((q, "query_norm"), (k, "key_norm"))
        )
        return q, k, v

    def projected(self, y: Value) -> tuple[Value, Value, Value]:
        """Queries, keys and values: one product, or three where there is no bias."""
        tape, width = self.tape, self.width
        if not self.bias:
            q, k, v = (tape.linear(y, width, bias=False, name=name) for name in ("query", "key", "value"))
        else:
            q, k, v = tape.split(tape.linear(y, 3 * width, name="qkv"), [y.shape] * 3)
        return self.normed(q, k, v)

    def attend(self, q: Value, k: Value, v: Value) -> Value:
        if self.rotary:
            q, k = (rotate_pairs(self.tape, x, dim=self.width // self.heads) for x in (q, k))
        return attend(self.tape, q, k, v, heads=self.heads, kv_heads=self.heads, causal=False)

    def inner(self, wide: Value) -> Value:
        """What an MLP does between its two products."""
        if not self.gated:
            return self.tape.activation("gelu", wide)
        half = (*wide.shape[:-1], self.ffn)
        gate, up = (self.tape.take(wide, half) for _ in range(2))
        return self.tape.multiply(self.tape.activation("silu", gate), up)

    def double(self, x: Value) -> Value:
        """Both streams attend together; everything else is each one's own."""
        tape, width = self.tape, self.width
        batch, tokens, _ = x.shape

        def body() -> Value:
            inputs, made, gates = self.parts(x), [], []
            for stream, name in zip(inputs, ("text", "image"), strict=True):
                with tape.scope(name):
                    six = self.shared.get(name) or self.modulation(6, "modulation")
                    made.append(self.projected(self.modulate(stream, six[0], six[1])))
                    gates.append(six)
            joined = [tape.concat(pair, (batch, tokens, width)) for pair in zip(*made, strict=True)]
            mixed = self.parts(self.attend(*joined))
            results = []
            for stream, name, six, y in zip(inputs, ("text", "image"), gates, mixed, strict=True):
                with tape.scope(name):
                    y = tape.linear(y, width, bias=self.bias, name="output")
                    out = tape.add(stream, tape.multiply(y, six[2]))
                    y = self.modulate(out, six[3], six[4])
                    y = self.inner(tape.linear(y, self.ffn * (1 + self.gated), bias=self.bias, name="up"))
                    y = tape.linear(y, width, bias=self.bias, name="down")
                    results.append(tape.add(out, tape.multiply(y, six[5])))
            return tape.concat(results, (batch, tokens, width))

        return tape.checkpoint(body, enabled=tape.recipe.recompute == "full")

    def single(self, x: Value) -> Value:
        """One sequence; attention and MLP side by side, in two products."""
        tape, width = self.tape, self.width
        batch, tokens, _ = x.shape

        def body() -> Value:
            move, factor, gate = self.shared.get("single") or self.modulation(3, "modulation")
            y = self.modulate(x, move, factor)
            part, up = (batch, tokens, width), self.ffn * (1 + self.gated)
            wide = tape.linear(y, 3 * width + up, bias=self.bias, name="qkv_up")
            q, k, v, inner = tape.split(wide, (part, part, part, (batch, tokens, up)))
            mixed = self.attend(*self.normed(q, k, v))
            both = tape.concat((mixed, self.inner(inner)), (batch, tokens, width + self.ffn))
            y = tape.linear(both, width, bias=self.bias, name="output_down")
            return tape.add(x, tape.multiply(y, gate))

        return tape.checkpoint(body, enabled=tape.recipe.recompute == "full")


def build_image_encoder(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """The encoder of an AutoencoderKL: images to the mean and variance of latents (Kingma 2013, Rombach 2022)."""
    size, widths = sizes.image(config["image_size"]), config["widths"]
    images = tape.input("images", (sizes.batch, 3, *size), tape.numbers.weight)
    x = tape.conv(images, widths[0], 3, bias=True, name="conv_in")
    for number, width in enumerate(widths):
        with tape.scope(f"down{number}"):
            for index in range(2):
                x = _resnet(tape, x, width, f"resnet{index}")
            if number < len(widths) - 1:
                x = tape.conv(x, width, 3, stride=2, padding=1, bias=True, name="downsample")
    with tape.scope("middle"):
        x = _resnet(tape, x, widths[-1], "resnet0")
        x = _attend_pixels(tape, x)
        x = _resnet(tape, x, widths[-1], "resnet1")
    with tape.scope("out"):
        x = tape.activation("silu", tape.group_norm(x))
        x = tape.conv(x, 2 * config["channels"], 3, bias=True)
        if config.get("quant_conv", True):
            x = tape.conv(x, 2 * config["channels"], 1, bias=True, name="quant")
    return tape.close([x], lambda: tape.mean_loss(x), samples_unit="images")


def _resnet(tape: Net, x: Value, channels: int, name: str) -> Value:
    with tape.scope(name):
        y = tape.conv(tape.activation("silu", tape.group_norm(x, name="norm1")), channels, 3, bias=True, name="conv1")
        y = tape.conv(tape.activation("silu", tape.group_norm(y, name="norm2")), channels, 3, bias=True, name="conv2")
        if x.shape[1] != channels:
            x = tape.conv(x, channels, 1, bias=True, name="shortcut")
        return tape.add(x, y)


def _attend_pixels(tape: Net, x: Value) -> Value:
    """One head as wide as the channels, over all places of the smallest map."""
    batch, width, *size = x.shape
    tokens = size[0] * size[1]
    with tape.scope("attention"):
        rows = tape.copy(tape.group_norm(x), (batch, tokens, width), back=True)
        q, k, v = (tape.linear(rows, width, name=part) for part in ("query", "key", "value"))
        y = attend(tape, q, k, v, heads=1, kv_heads=1, causal=False)
        return tape.add(x, tape.copy(tape.linear(y, width, name="output"), (batch, width, *size), back=True))
