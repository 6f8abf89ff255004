"""U-Nets in two and three dimensions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from traincast.catalog._models.layers import (
    activation,
    batch_norm,
    concat,
    conv,
    cross_entropy,
    dropout,
    group_norm,
    mean_loss,
    pool,
)
from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.tape import Tape, Value
from traincast.catalog._models.vision import half_input
from traincast.spec import Graph

if TYPE_CHECKING:
    from traincast.catalog._workloads import Sizes


def build_unet(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """Down by pooling or strides, up by transposed convolutions, skips by concatenation (Ronneberger 2015, Isensee 2018)."""
    config = entry["config"]
    tape = Tape(recipe)
    dims = config.get("dims", 2)
    size = sizes.input_size or config["image_size"]
    classes = sizes.num_classes or config["num_classes"]
    widths = config["widths"]
    norm = config.get("norm", "")
    padding = 0 if config.get("valid") else 1
    function = config.get("activation", "relu")

    def block(value: Value, channels: int, label: str, *, stride: int = 1) -> Value:
        with tape.scope(label):
            value = conv(tape, value, channels, 3, stride=stride, padding=padding, bias=not norm, name="conv")
            if norm == "batch":
                value = batch_norm(tape, value)
            elif norm == "instance":
                value = group_norm(tape, value, groups=channels, function="instance_norm")
            return activation(tape, function, value, inplace=recipe.inplace)

    images = tape.input("images", (sizes.batch, config.get("in_channels", 1), *[size] * dims), "fp32")
    x = half_input(tape, images)
    kept = []
    for number, width in enumerate(widths):
        with tape.scope(f"down{number}"):
            stride = 1
            if number:
                if config.get("strided"):
                    stride = 2
                else:
                    x = pool(tape, x, 2)
            x = block(block(x, width, "first", stride=stride), width, "second")
            if number == len(widths) - 1:
                x = dropout(tape, x, recipe.rate(config.get("dropout", 0.0)))
        kept.append(x)
    for number in range(len(widths) - 2, -1, -1):
        width = widths[number]
        with tape.scope(f"up{number}"):
            x = conv(tape, x, width, 2, stride=2, padding=0, bias=not norm, name="up", transposed=True)
            skip = crop_to(tape, kept[number], x)
            x = concat(tape, (skip, x), (sizes.batch, skip.shape[1] + width, *x.shape[2:]))
            x = block(block(x, width, "first"), width, "second")
    with tape.scope("head"):
        logits = conv(tape, x, classes, 1, padding=0, bias=True, name="output")
    outputs = [logits]
    if recipe.trains and recipe.loss:
        if classes > 1:
            positions = logits.numel // classes
            outputs = [cross_entropy(tape, tape.view(logits, (positions, classes)))]
        else:
            outputs = [mean_loss(tape, logits, "binary_cross_entropy_with_logits")]
    unit = "images" if dims == 2 else "volumes"
    return tape.finish(outputs, name=name, batch_size=sizes.batch, samples_unit=unit, source=entry["source"])


def crop_to(tape: Tape, skip: Value, like: Value) -> Value:
    """Unpadded convolutions shrink the map, so the skip is cropped to its middle: a view."""
    if skip.shape[2:] == like.shape[2:]:
        return skip
    out = tape.part(skip, (*skip.shape[:2], *like.shape[2:]))
    return tape.register(out, (skip,), lambda g: (tape.part(g, skip.shape),))
