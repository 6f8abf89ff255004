"""Diffusion transformers of videos: patches of latents over space and time that see a text beside them, or attend to it."""

from collections.abc import Mapping
from typing import Any

from traincast.catalog._models.attention import attend
from traincast.catalog._models.flow import rotate_pairs
from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import Sizes
from traincast.catalog._models.tape import Value
from traincast.spec import Graph


def build_video_transformer(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """Text is part of the sequence (`text` "joint", Yang 2024) or attended to by it (`text` "cross", Wan 2025)."""
    tape.assume(
        "latents and text states are computed beforehand: neither the text encoder nor the VAE runs in the step"
    )
    batch, width, patch = sizes.batch, config["hidden"], config["patch"]
    pixels = sizes.input_size or config["image_size"]
    tape.assume(f"a sample is {config['frames']} frames of {pixels[0]} x {pixels[1]} pixels")
    # The first frame is a latent of its own; a number that patches do not divide is filled up.
    num_latents = -(-((config["frames"] - 1) // 4 + 1) // patch[0]) * patch[0]
    size = (num_latents, *(side // config["compression"] for side in pixels))
    latents = tape.input("latents", (batch, config["channels"], *size), tape.numbers.weight)
    x = tape.conv(latents, width, patch, stride=patch, padding=0, bias=True, name="patches")
    x = tape.copy(x, (batch, x.numel // (batch * width), width), back=True)
    text = tape.input("text", (batch, sizes.seq or config["text_tokens"], config["text_width"]), tape.numbers.weight)
    blocks = (Joint if config["text"] == "joint" else Crossed)(tape, config, text)
    x = blocks.enter(x)
    with tape.scope("layers"):
        x = tape.repeat(
            config["n_layers"], x,
            lambda value: tape.checkpoint(lambda: blocks.layer(value), enabled=tape.recipe.recompute == "full"),
        )  # fmt: skip
    with tape.scope("out"):
        x = tape.linear(blocks.leave(x), config["channels"] * patch[0] * patch[1] * patch[2], name="fc")
    return tape.close([x], lambda: tape.mean_loss(x), samples_unit="videos")


class Crossed:
    """All layers share one projection of the time and add a table of their own to it; norms and gates run in fp32."""

    def __init__(self, tape: Net, config: Mapping[str, Any], text: Value) -> None:
        self.tape, self.config = tape, config
        self.width, self.heads = config["hidden"], config["heads"]
        batch = text.shape[0]
        with tape.scope("condition"):
            time = tape.input("time_features", (batch, config["time_width"]), tape.numbers.weight)
            time = tape.linear(
                tape.activation("silu", tape.linear(time, self.width, name="fc1")), self.width, name="fc2"
            )
            self.time = tape.view(time, (batch, 1, self.width))
            six = tape.linear(tape.activation("silu", time), 6 * self.width, name="projection")
            self.six = tape.cast(tape.view(six, (batch, 6, self.width)), "fp32")
            text = tape.activation("gelu", tape.linear(text, self.width, name="text1"))
            self.text = tape.linear(text, self.width, name="text2")

    def enter(self, x: Value) -> Value:
        return x

    def modulation(self, state: Value, count: int) -> list[Value]:
        added = self.tape.add(state, self.tape.parameter("table", (1, count, self.width)))
        return self.tape.split(added, [(state.shape[0], 1, self.width)] * count)

    def norm(self, x: Value, move: Value, factor: Value) -> Value:
        tape = self.tape
        y = tape.layer_norm(tape.cast(x, "fp32"), affine=False)
        return tape.cast(tape.add(tape.multiply(y, tape.shift(factor)), move), x.dtype)

    def join(self, x: Value, y: Value, gate: Value) -> Value:
        tape = self.tape
        return tape.cast(tape.add(tape.cast(x, "fp32"), tape.multiply(y, gate)), x.dtype)

    def attention(self, x: Value, seen: Value, *, rotary: bool) -> Value:
        tape = self.tape
        q, k, v = (tape.linear(y, self.width, name=name) for y, name in ((x, "query"), (seen, "key"), (seen, "value")))
        q, k = (tape.rms_norm(y, name=f"{name}_norm", fused=True) for y, name in ((q, "query"), (k, "key")))
        if rotary:
            q, k = (rotate_pairs(tape, y, dim=self.width // self.heads) for y in (q, k))
        y = attend(tape, q, k, v, heads=self.heads, kv_heads=self.heads, causal=False)
        return tape.linear(y, self.width, name="output")

    def layer(self, x: Value) -> Value:
        tape = self.tape
        six = self.modulation(self.six, 6)
        with tape.scope("self"):
            y = self.norm(x, six[0], six[1])
            x = self.join(x, self.attention(y, y, rotary=True), six[2])
        with tape.scope("cross"):
            y = tape.cast(tape.layer_norm(tape.cast(x, "fp32")), x.dtype)
            x = tape.add(x, self.attention(y, self.text, rotary=False))
        with tape.scope("mlp"):
            y = tape.linear(self.norm(x, six[3], six[4]), self.config["ffn"], name="up")
            y = tape.linear(tape.activation("gelu", y), self.width, name="down")
            return self.join(x, tape.cast(y, "fp32"), six[5])

    def leave(self, x: Value) -> Value:
        move, factor = self.modulation(self.time, 2)
        return self.norm(x, move, factor)


class Joint:
    """One sequence of text and video with the same weights; each part has its own shifts, scales and gates."""

    def __init__(self, tape: Net, config: Mapping[str, Any], text: Value) -> None:
        self.tape, self.config = tape, config
        self.width, self.heads = config["hidden"], config["heads"]
        self.num_text = text.shape[1]
        with tape.scope("condition"):
            time = tape.input("time_features", (text.shape[0], self.width), tape.numbers.weight)
            time = tape.linear(time, config["time_width"], name="fc1")
            self.time = tape.linear(tape.activation("silu", time), config["time_width"], name="fc2")
            self.text = tape.linear(text, self.width, name="text")

    def enter(self, x: Value) -> Value:
        joined = self.tape.concat((self.text, x), (x.shape[0], self.num_text + x.shape[1], self.width))
        if self.config.get("rotary", False):
            return joined
        return self.tape.add(joined, self.tape.buffer("positions", (1, *joined.shape[1:]), self.tape.numbers.weight))

    def parts(self, x: Value) -> list[Value]:
        batch, tokens, width = x.shape
        return self.tape.split(x, ((batch, self.num_text, width), (batch, tokens - self.num_text, width)))

    def normed(self, x: Value, name: str) -> tuple[Value, list[Value]]:
        """The modulated sequence, and the gates of its two parts."""
        tape = self.tape
        with tape.scope(name):
            six = tape.linear(tape.activation("silu", self.time), 6 * self.width, name="modulation")
            given = tape.split(six, [(x.shape[0], 1, self.width)] * 6)
            made = [
                tape.add(tape.multiply(part, tape.shift(given[at + 1])), given[at])
                for part, at in zip(self.parts(tape.layer_norm(x)), (3, 0), strict=True)
            ]
            return tape.concat(made, x.shape), [given[5], given[2]]

    def joined(self, x: Value, y: Value, gates: list[Value]) -> Value:
        tape = self.tape
        pairs = zip(self.parts(x), self.parts(y), gates, strict=True)
        return tape.concat([tape.add(old, tape.multiply(new, gate)) for old, new, gate in pairs], x.shape)

    def turned(self, x: Value) -> Value:
        text, video = self.parts(x)
        return self.tape.concat((text, rotate_pairs(self.tape, video, dim=self.width // self.heads)), x.shape)

    def layer(self, x: Value) -> Value:
        tape, dim = self.tape, self.width // self.heads
        y, gates = self.normed(x, "norm1")
        with tape.scope("attention"):
            q, k, v = (tape.linear(y, self.width, name=name) for name in ("query", "key", "value"))
            q, k = (tape.view(y, (*y.shape[:2], self.heads, dim)) for y in (q, k))
            q, k = (tape.layer_norm(y, name=f"{name}_norm") for y, name in ((q, "query"), (k, "key")))
            q, k = (tape.view(y, v.shape) for y in (q, k))
            if self.config.get("rotary", False):
                q, k = self.turned(q), self.turned(k)
            y = attend(tape, q, k, v, heads=self.heads, kv_heads=self.heads, causal=False)
            x = self.joined(x, tape.linear(y, self.width, name="output"), gates)
        y, gates = self.normed(x, "norm2")
        with tape.scope("mlp"):
            y = tape.activation("gelu", tape.linear(y, 4 * self.width, name="up"))
            return self.joined(x, tape.linear(y, self.width, name="down"), gates)

    def leave(self, x: Value) -> Value:
        tape = self.tape
        x = tape.layer_norm(self.parts(x)[1], name="norm")
        two = tape.linear(tape.activation("silu", self.time), 2 * self.width, name="modulation")
        move, factor = tape.split(two, [(x.shape[0], 1, self.width)] * 2)
        return tape.add(tape.multiply(tape.layer_norm(x, name="norm_out"), tape.shift(factor)), move)
