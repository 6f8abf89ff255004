"""U-Nets in two and three dimensions."""

from collections.abc import Mapping
from typing import Any

from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import Sizes
from traincast.catalog._models.tape import Value
from traincast.catalog._models.vision import half_input
from traincast.errors import InvalidInput
from traincast.spec import Graph


def build_unet(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """Down by pooling or strides, up by transposed convolutions, skips by concatenation (Ronneberger 2015, Isensee 2018)."""
    dims = config.get("dims", 2)
    height, breadth = sizes.image(config["image_size"])
    if dims > 2 and height != breadth:
        raise InvalidInput(f"input_size = {height}x{breadth}; volumes are cubes here, so give one side")
    classes = sizes.num_classes or config["num_classes"]
    widths = config["widths"]
    norm = config.get("norm", "")
    padding = 0 if config.get("valid") else 1
    function = config.get("activation", "relu")

    def block(value: Value, channels: int, label: str, *, stride: int = 1) -> Value:
        with tape.scope(label):
            value = tape.conv(value, channels, 3, stride=stride, padding=padding, bias=not norm, name="conv")
            if norm == "batch":
                value = tape.batch_norm(value)
            elif norm == "instance":
                value = tape.group_norm(value, groups=channels, function="instance_norm")
            return tape.activation(function, value, inplace=tape.recipe.inplace)

    images = tape.input("images", (sizes.batch, config.get("in_channels", 1), height, *[breadth] * (dims - 1)), "fp32")
    x = half_input(tape, images)
    kept = []
    for number, width in enumerate(widths):
        with tape.scope(f"down{number}"):
            stride = 1
            if number:
                if config.get("strided"):
                    stride = 2
                else:
                    x = tape.pool(x, 2)
            x = block(block(x, width, "first", stride=stride), width, "second")
            if number == len(widths) - 1:
                x = tape.dropout(x, tape.recipe.rate(config.get("dropout", 0.0)))
        kept.append(x)
    for number in range(len(widths) - 2, -1, -1):
        width = widths[number]
        with tape.scope(f"up{number}"):
            x = tape.conv(x, width, 2, stride=2, padding=0, bias=not norm, name="up", transposed=True)
            skip = crop_to(tape, kept[number], x)
            x = tape.concat((skip, x), (sizes.batch, skip.shape[1] + width, *x.shape[2:]))
            x = block(block(x, width, "first"), width, "second")
    with tape.scope("head"):
        logits = tape.conv(x, classes, 1, padding=0, bias=True, name="output")
    outputs = [logits]
    if tape.recipe.has_loss:
        if classes > 1:
            positions = logits.numel // classes
            outputs = [tape.cross_entropy(tape.view(logits, (positions, classes)))]
        else:
            outputs = [tape.mean_loss(logits, "binary_cross_entropy_with_logits")]
    unit = "images" if dims == 2 else "volumes"
    return tape.close(outputs, samples_unit=unit)


def crop_to(tape: Net, skip: Value, like: Value) -> Value:
    """Unpadded convolutions shrink the map, so the skip is cropped to its middle: a view."""
    if skip.shape[2:] == like.shape[2:]:
        return skip
    out = tape.part(skip, (*skip.shape[:2], *like.shape[2:]))
    return tape.register(out, (skip,), lambda g: (tape.part(g, skip.shape),))
