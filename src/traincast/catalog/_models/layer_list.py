"""Detectors that are written as a list of layers, each with where it reads from: the lists are documents of the catalogue."""

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import Sizes
from traincast.catalog._models.tape import Value
from traincast.catalog._models.vision import conv_norm, half_input
from traincast.spec import DYNAMIC, Attr, Graph


@functools.cache
def layer_lists() -> Mapping[str, Any]:
    lists: Mapping[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "layer_lists.json").read_text())
    return lists


def build_layer_list(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """[from, repeats, module, arguments] for each layer, at a depth and a width; the last one is the head."""
    described = layer_lists()[config["network"]]
    classes = sizes.num_classes or config.get("num_classes", 80)
    x = half_input(tape, tape.input("images", (sizes.batch, 3, *sizes.image(config.get("image_size", 640))), "fp32"))
    blocks, made = Blocks(tape, large=config.get("large", False)), [x]
    for number, (origin, repeats, module, arguments) in enumerate(described["layers"]):
        places = [origin] if isinstance(origin, int) else origin
        # The images are the first value, so what the list counts from 0 lies one further.
        given = [made[at] if at < 0 else made[at + 1] for at in places]
        with tape.scope(f"layer{number}"):
            if module == "Detect":
                heads = [detect(tape, given, classes, described, head) for head in range(described["heads"])]
                return _close(tape, heads)
            count = max(round(repeats * config["depth"]), 1) if repeats > 1 else repeats
            channels = arguments[0] if arguments else 0
            if channels:
                channels = math.ceil(min(channels, config["max_channels"]) * config["width"] / 8) * 8
            made.append(blocks.run(module, given, channels, count, list(arguments[1:])))
    return tape.close(made[-1:], samples_unit="images")


class Blocks:
    """The modules of such lists, by their names."""

    def __init__(self, tape: Net, *, large: bool) -> None:
        self.tape, self.large = tape, large

    def run(self, module: str, given: Sequence[Value], channels: int, count: int, more: list[Any]) -> Value:
        if module == "Concat":
            return self.join(given)
        if module == "Upsample":
            return self.tape.upsample(given[0])
        rules: dict[str, Callable[..., Value]] = {
            "Conv": self.conv, "C2f": self.split_block, "C3k2": self.nested_block, "SPPF": self.pools, "C2PSA": self.attentive,
        }  # fmt: skip
        return rules[module](given[0], channels, count, *more)

    def join(self, values: Sequence[Value]) -> Value:
        first = values[0].shape
        return self.tape.concat(values, (first[0], sum(value.shape[1] for value in values), *first[2:]))

    def cn(
        self, x: Value, channels: int, size: int, name: str, *, stride: int = 1, act: bool = True, groups: int = 1
    ) -> Value:
        return conv_norm(
            self.tape, x, channels, size, stride=stride, padding=size // 2, function="silu" if act else "", groups=groups,
            name=name,
        )  # fmt: skip

    def conv(self, x: Value, channels: int, count: int, size: int, stride: int = 1) -> Value:
        return self.cn(x, channels, size, "conv", stride=stride)

    def halves(self, x: Value, width: int) -> list[Value]:
        y = self.cn(x, 2 * width, 1, "cv1")
        return self.tape.split(y, [(y.shape[0], width, *y.shape[2:])] * 2)

    def bottleneck(self, x: Value, name: str, *, ratio: float, shortcut: bool = True) -> Value:
        width = x.shape[1]
        with self.tape.scope(name):
            y = self.cn(self.cn(x, int(width * ratio), 3, "cv1"), width, 3, "cv2")
            return self.tape.add(x, y) if shortcut else y

    def split_block(self, x: Value, channels: int, count: int, shortcut: bool = False, ratio: float = 0.5) -> Value:
        return self.chained(
            x, channels, count, ratio, lambda y, name: self.bottleneck(y, name, ratio=1.0, shortcut=shortcut)
        )

    def chained(self, x: Value, channels: int, count: int, ratio: float, block: Callable[[Value, str], Value]) -> Value:
        """Half of the channels goes on through blocks; what every one of them makes is kept (C2f)."""
        made = self.halves(x, int(channels * ratio))
        for number in range(count):
            made.append(block(made[-1], f"m{number}"))
        return self.cn(self.join(made), channels, 1, "cv2")

    def nested_block(
        self, x: Value, channels: int, count: int, nested: bool = False, ratio: float = 0.5, attends: bool = False
    ) -> Value:
        def block(y: Value, name: str) -> Value:
            if attends:
                return self.attention_block(self.bottleneck(y, f"{name}.0", ratio=0.5), f"{name}.1")
            if nested or self.large:
                return self.three_convs(y, name)
            return self.bottleneck(y, name, ratio=0.5)

        return self.chained(x, channels, count, ratio, block)

    def three_convs(self, x: Value, name: str) -> Value:
        """C3 with two bottlenecks."""
        width = x.shape[1]
        with self.tape.scope(name):
            y = self.cn(x, width // 2, 1, "cv1")
            for number in range(2):
                y = self.bottleneck(y, f"m{number}", ratio=1.0)
            return self.cn(self.join((y, self.cn(x, width // 2, 1, "cv2"))), width, 1, "cv3")

    def pools(
        self, x: Value, channels: int, count: int, size: int = 5, rounds: int = 3, shortcut: bool = False
    ) -> Value:
        made = [self.cn(x, x.shape[1] // 2, 1, "cv1", act=False)]
        for _ in range(rounds):
            made.append(self.tape.pool(made[-1], size, stride=1, padding=size // 2))
        y = self.cn(self.join(made), channels, 1, "cv2")
        return self.tape.add(y, x) if shortcut and x.shape == y.shape else y

    def attentive(self, x: Value, channels: int, count: int) -> Value:
        kept, y = self.halves(x, channels // 2)
        for number in range(count):
            y = self.attention_block(y, f"m{number}")
        return self.cn(self.join((kept, y)), channels, 1, "cv2")

    def attention_block(self, x: Value, name: str) -> Value:
        """Attention over all places, with a convolution of the values as positions, and an MLP (Wang 2024)."""
        tape, width = self.tape, x.shape[1]
        with tape.scope(name):
            x = tape.add(x, self.attention(x, heads=max(width // 64, 1)))
            y = self.cn(self.cn(x, 2 * width, 1, "ffn0"), width, 1, "ffn1", act=False)
            return tape.add(x, y)

    def attention(self, x: Value, *, heads: int) -> Value:
        tape = self.tape
        batch, width, *size = x.shape
        places, dim = size[0] * size[1], width // heads
        y = self.cn(x, 2 * width, 1, "qkv", act=False)
        part = (batch, heads, dim // 2, places)
        q, k, v = tape.split(y, (part, part, (batch, heads, dim, places)))
        scores = tape.matmul(
            tape.scale(q), k, batch=batch * heads, m=places, n=places, k=dim // 2, layout="nn",
            shape=(batch, heads, places, places),
        )  # fmt: skip
        weights = tape.softmax(scores)
        mixed = tape.matmul(
            tape.copy(v), weights, batch=batch * heads, m=dim, n=places, k=places, layout="tn", shape=v.shape
        )
        where = self.cn(tape.copy(v, x.shape, back=True), width, 3, "pe", act=False, groups=width)
        return self.cn(tape.add(tape.view(mixed, x.shape), where), width, 1, "proj", act=False)


def detect(
    tape: Net, features: Sequence[Value], classes: int, described: Mapping[str, Any], head: int
) -> tuple[Value, Value]:
    """Boxes and scores of all places of all levels; a second head sees the levels without a gradient to them."""
    blocks, bins, batch = Blocks(tape, large=False), described["bins"], features[0].shape[0]
    least = features[0].shape[1]
    box_width, class_width = max(16, least // 4, 4 * bins), max(least, min(classes, 100))
    outputs: dict[str, list[Value]] = {"boxes": [], "scores": []}
    for number, x in enumerate(features):
        x = tape.seen_as(x, x.shape) if head else x
        for kind, width, made in (("boxes", box_width, 4 * bins), ("scores", class_width, classes)):
            with tape.scope(f"head{head}.{kind}{number}"):
                y = x
                for step in range(2):
                    if kind == "scores" and described["depthwise"]:
                        y = blocks.cn(y, y.shape[1], 3, f"depthwise{step}", groups=y.shape[1])
                        y = blocks.cn(y, width, 1, f"conv{step}")
                    else:
                        y = blocks.cn(y, width, 3, f"conv{step}")
                y = tape.conv(y, made, 1, bias=True, name="out")
                outputs[kind].append(tape.view(y, (batch, made, y.numel // (batch * made))))
    places = sum(y.shape[2] for y in outputs["boxes"])
    if bins > 1 and not head:
        tape.parameter("bins", (1, bins, 1, 1), trained=False)
    boxes, scores = (tape.concat(each, (batch, each[0].shape[1], places)) for each in outputs.values())
    return boxes, scores


OBJECTS, CANDIDATES = 8, 10
"""Objects of an image (COCO: 7.3), and places that each of them is matched to (Feng 2021)."""


def _close(tape: Net, heads: Sequence[tuple[Value, Value]]) -> Graph:
    if not tape.recipe.has_loss:
        return tape.close([value for head in heads for value in head], samples_unit="images")
    tape.assume(f"{OBJECTS} objects in an image, each matched to {CANDIDATES} places on the device")
    losses: list[Value] = []
    for boxes, scores in heads:
        batch, sides, places = boxes.shape
        rows = tape.copy(boxes, (batch * places * 4, sides // 4), back=True)
        if sides > 4:
            rows = tape.softmax(rows)
        match(tape, scores, batch=batch, places=places)
        chosen = tape.gather_rows(rows, batch * OBJECTS * CANDIDATES * 4)
        losses += [tape.mean_loss(scores, "binary_cross_entropy_with_logits"), tape.mean_loss(chosen, "smooth_l1_loss")]
    return tape.close([functools.reduce(tape.add, losses)], samples_unit="images")


def match(tape: Net, scores: Value, *, batch: int, places: int) -> None:
    """Every object takes the places whose score and overlap are highest: some sixty small kernels over all pairs."""
    attrs: dict[str, Attr] = {"function": "match", "numel": batch * OBJECTS * places, "num_inputs": 2, DYNAMIC: True}
    chosen = tape.new((batch, OBJECTS, places), "fp32")
    with tape.scope("match"):
        tape.op("match_targets", "elementwise", (scores,), (chosen,), attrs, flop=60.0 * chosen.numel,
            bytes_read=60.0 * chosen.num_bytes, bytes_written=30.0 * chosen.num_bytes, kernels=60, calls=150,
        )  # fmt: skip
