"""Convolutional image classifiers as torchvision writes them, and the blocks that detectors and segmenters share with them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import Sizes
from traincast.catalog._models.tape import Value
from traincast.spec import Graph

Network = Callable[[Net, Value, Mapping[str, Any]], Value]
"""Images in, the features before the classifier out."""


def build_classifier(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """Any of NETWORKS on images, with a linear classifier and cross entropy."""
    size = sizes.image(config.get("image_size", 224))
    classes = sizes.num_classes or config.get("num_classes", 1000)
    images = tape.input("images", (sizes.batch, config.get("in_channels", 3), *size), "fp32")
    images = half_input(tape, images)
    features = NETWORKS[config["network"]](tape, images, {**config, "num_classes": classes})
    outputs = [features]
    if tape.recipe.has_loss:
        outputs = [tape.cross_entropy(tape.view(features, (sizes.batch, classes)))]
    return tape.close(outputs, samples_unit="images")


def half_input(tape: Net, images: Value) -> Value:
    """Images arrive in fp32; a half-precision model is fed a cast copy."""
    if tape.numbers.autocast or tape.numbers.compute == "fp32":
        return images
    return tape.cast(images, tape.numbers.compute)


def conv_norm(
    tape: Net, x: Value, channels: int, kernel_size: int | Sequence[int], *, stride: int = 1,
    padding: int | Sequence[int] | None = None, groups: int = 1, function: str = "relu", name: str = "conv",
    dilation: int = 1,
) -> Value:  # fmt: skip
    """Convolution, batch normalisation and an activation ('' for none)."""
    with tape.scope(name):
        x = tape.conv(
            x, channels, kernel_size, stride=stride, padding=padding, groups=groups, name="conv", dilation=dilation,
        )  # fmt: skip
        x = tape.batch_norm(x, name="bn")
        return tape.activation(function, x, inplace=tape.recipe.inplace) if function else x


def classify(tape: Net, x: Value, classes: int, *, rate: float = 0.0) -> Value:
    """Global mean, dropout, one linear layer."""
    with tape.scope("classifier"):
        x = tape.global_pool(x) if len(x.shape) > 2 else x
        return tape.linear(tape.dropout(x, tape.recipe.rate(rate)), classes, name="fc")


# ResNet and its relatives


def resnet(tape: Net, x: Value, config: Mapping[str, Any]) -> Value:
    return classify(tape, resnet_stages(tape, x, config)[-1], config["num_classes"])


def resnet_stages(tape: Net, x: Value, config: Mapping[str, Any]) -> list[Value]:
    """The outputs of the four stages."""
    cifar = bool(config.get("cifar"))
    if cifar:
        x = conv_norm(tape, x, 64, 3, name="stem")
    else:
        x = conv_norm(tape, x, 64, 7, stride=2, name="stem")
        x = tape.pool(x, 3, stride=2, padding=1)
    outputs = []
    for number, blocks in enumerate(config["layers"]):
        x = resnet_stage(
            tape, x, config, 64 * 2**number, blocks, stride=1 if number == 0 else 2, name=f"stage{number + 1}"
        )
        outputs.append(x)
    return outputs


def resnet_stage(
    tape: Net, x: Value, config: Mapping[str, Any], width: int, blocks: int, *, stride: int, name: str
) -> Value:
    def block(first: bool) -> Callable[[Value], Value]:
        def body(value: Value) -> Value:
            return residual_block(tape, value, config, width, stride=stride if first else 1, project=first)

        return body

    with tape.scope(name):
        with tape.scope("first"):
            x = block(True)(x)
        with tape.scope("rest"):
            return tape.repeat(blocks - 1, x, block(False))


def residual_block(tape: Net, x: Value, config: Mapping[str, Any], width: int, *, stride: int, project: bool) -> Value:
    basic = config.get("block", "bottleneck") == "basic"
    out_width = width if basic else 4 * width
    groups = config.get("groups", 1)
    if basic:
        y = conv_norm(tape, x, width, 3, stride=stride, name="conv1")
        y = conv_norm(tape, y, width, 3, function="", name="conv2")
    else:
        inner = int(width * config.get("base_width", 64) / 64) * groups
        y = conv_norm(tape, x, inner, 1, name="conv1")
        y = conv_norm(tape, y, inner, 3, stride=stride, groups=groups, name="conv2")
        y = conv_norm(tape, y, out_width, 1, function="", name="conv3")
    if config.get("squeeze"):
        y = squeeze_excite(tape, y, out_width // config["squeeze"])
    shortcut = x
    if project and (stride != 1 or x.shape[1] != out_width):
        shortcut = conv_norm(tape, x, out_width, 1, stride=stride, padding=0, function="", name="downsample")
    y = tape.add(y, shortcut, inplace=tape.recipe.inplace)
    return tape.activation("relu", y, inplace=tape.recipe.inplace)


def squeeze_excite(tape: Net, x: Value, squeezed: int, *, function: str = "relu", gate: str = "sigmoid") -> Value:
    """Scale channels by a small network of their means (Hu 2018)."""
    batch, channels = x.shape[:2]
    with tape.scope("squeeze"):
        mean = tape.view(tape.global_pool(x), (batch, channels, 1, 1))
        small = tape.activation(function, tape.conv(mean, squeezed, 1, bias=True, name="reduce"), inplace=True)
        weights = tape.activation(gate, tape.conv(small, channels, 1, bias=True, name="expand"))
        return tape.multiply(x, weights)


# Plain stacks

VGG_PLANS = {
    11: (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0),
    13: (64, 64, 0, 128, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0),
    16: (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0),
    19: (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0),
}
"""Channels of each convolution, 0 for a pooling layer (Simonyan 2014)."""


def vgg(tape: Net, x: Value, config: Mapping[str, Any]) -> Value:
    for number, channels in enumerate(VGG_PLANS[config["depth"]]):
        if channels == 0:
            x = tape.pool(x, 2)
        elif config.get("batch_norm"):
            x = conv_norm(tape, x, channels, 3, name=f"conv{number}")
        else:
            x = tape.conv(x, channels, 3, bias=True, name=f"conv{number}")
            x = tape.activation("relu", x, inplace=tape.recipe.inplace)
    return dense_head(tape, x, (4096, 4096), config["num_classes"])


def dense_head(tape: Net, x: Value, widths: Sequence[int], classes: int) -> Value:
    with tape.scope("classifier"):
        x = tape.view(x, (x.shape[0], math.prod(x.shape[1:])))
        for number, width in enumerate(widths):
            x = tape.activation("relu", tape.linear(x, width, name=f"fc{number}"), inplace=tape.recipe.inplace)
            x = tape.dropout(x, tape.recipe.rate(0.5))
        return tape.linear(x, classes, name="fc")


def alexnet(tape: Net, x: Value, config: Mapping[str, Any]) -> Value:
    plan = (
        (64, 11, 4, 2, True), (192, 5, 1, 2, True), (384, 3, 1, 1, False), (256, 3, 1, 1, False), (256, 3, 1, 1, True),
    )  # fmt: skip
    for number, (channels, size, stride, padding, pooled) in enumerate(plan):
        x = tape.conv(x, channels, size, stride=stride, padding=padding, bias=True, name=f"conv{number}")
        x = tape.activation("relu", x, inplace=tape.recipe.inplace)
        if pooled:
            x = tape.pool(x, 3, stride=2)
    return dense_head(tape, x, (4096, 4096), config["num_classes"])


def squeezenet(tape: Net, x: Value, config: Mapping[str, Any]) -> Value:
    """Version 1.0 (Iandola 2016)."""

    def relu_conv(value: Value, channels: int, size: int, name: str, *, stride: int = 1, padding: int = 0) -> Value:
        value = tape.conv(value, channels, size, stride=stride, padding=padding, bias=True, name=name)
        return tape.activation("relu", value, inplace=tape.recipe.inplace)

    x = relu_conv(x, 96, 7, "stem", stride=2)
    x = tape.pool(x, 3, stride=2, ceil=True)
    for number, (squeeze, expand) in enumerate(
        ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
    ):
        with tape.scope(f"fire{number + 2}"):
            small = relu_conv(x, squeeze, 1, "squeeze")
            left = relu_conv(small, expand, 1, "expand1")
            right = relu_conv(small, expand, 3, "expand3", padding=1)
            x = tape.concat((left, right), (x.shape[0], 2 * expand, *left.shape[2:]))
        if number in (2, 6):
            x = tape.pool(x, 3, stride=2, ceil=True)
    x = tape.dropout(x, tape.recipe.rate(0.5))
    x = relu_conv(x, config["num_classes"], 1, "classifier")
    return tape.global_pool(x)


# Mobile networks


def divisible(channels: float, divisor: int = 8) -> int:
    """Rounded to a multiple, never more than a tenth down (Sandler 2018)."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def inverted_residual(
    tape: Net, x: Value, channels: int, *, expanded: int, size: int, stride: int, function: str, squeezed: int = 0,
    squeeze_function: str = "relu", squeeze_gate: str = "sigmoid", drop_path: float = 0.0,
) -> Value:  # fmt: skip
    y = x
    if expanded != x.shape[1]:
        y = conv_norm(tape, y, expanded, 1, function=function, name="expand")
    y = conv_norm(tape, y, expanded, size, stride=stride, groups=expanded, function=function, name="depthwise")
    if squeezed:
        y = squeeze_excite(tape, y, squeezed, function=squeeze_function, gate=squeeze_gate)
    y = conv_norm(tape, y, channels, 1, function="", name="project")
    if stride == 1 and channels == x.shape[1]:
        if drop_path and tape.recipe.trains:
            y = keep_samples(tape, y)
        y = tape.add(y, x)
    return y


def keep_samples(tape: Net, x: Value) -> Value:
    """Stochastic depth: whole samples are dropped, so the residual branch is multiplied by one number each."""
    noise = tape.new((x.shape[0], 1, 1, 1), x.dtype)
    tape.op("aten.bernoulli_", "random", (), (noise,), {"numel": x.shape[0]}, kernels=2, calls=3)
    return tape.multiply(x, noise)


def mobilenet_v1(tape: Net, x: Value, config: Mapping[str, Any]) -> Value:
    x = conv_norm(tape, x, 32, 3, stride=2, name="stem")
    plan = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
    for number, (channels, stride) in enumerate(plan):
        with tape.scope(f"block{number}"):
            x = conv_norm(tape, x, x.shape[1], 3, stride=stride, groups=x.shape[1], name="depthwise")
            x = conv_norm(tape, x, channels, 1, name="pointwise")
    return classify(tape, x, config["num_classes"])


def mobilenet_v2(tape: Net, x: Value, config: Mapping[str, Any]) -> Value:
    x = conv_norm(tape, x, 32, 3, stride=2, function="relu6", name="stem")
    plan = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for number, (ratio, channels, count, stride) in enumerate(plan):
        with tape.scope(f"stage{number}"):
            x = inverted_residual(
                tape, x, channels, expanded=ratio * x.shape[1], size=3, stride=stride, function="relu6"
            )

            def rest(value: Value, ratio: int = ratio, channels: int = channels) -> Value:
                return inverted_residual(
                    tape, value, channels, expanded=ratio * channels, size=3, stride=1, function="relu6"
                )

            x = tape.repeat(count - 1, x, rest)
    x = conv_norm(tape, x, 1280, 1, function="relu6", name="last")
    return classify(tape, x, config["num_classes"], rate=0.2)


MOBILENET_V3 = {
    "large": (
        (3, 16, 16, False, "relu", 1), (3, 64, 24, False, "relu", 2), (3, 72, 24, False, "relu", 1), (5, 72, 40, True, "relu", 2),
        (5, 120, 40, True, "relu", 1), (5, 120, 40, True, "relu", 1), (3, 240, 80, False, "hardswish", 2),
        (3, 200, 80, False, "hardswish", 1), (3, 184, 80, False, "hardswish", 1), (3, 184, 80, False, "hardswish", 1),
        (3, 480, 112, True, "hardswish", 1), (3, 672, 112, True, "hardswish", 1), (5, 672, 160, True, "hardswish", 2),
        (5, 960, 160, True, "hardswish", 1), (5, 960, 160, True, "hardswish", 1),
    ),
    "small": (
        (3, 16, 16, True, "relu", 2), (3, 72, 24, False, "relu", 2), (3, 88, 24, False, "relu", 1),
        (5, 96, 40, True, "hardswish", 2),
        (5, 240, 40, True, "hardswish", 1), (5, 240, 40, True, "hardswish", 1), (5, 120, 48, True, "hardswish", 1),
        (5, 144, 48, True, "hardswish", 1), (5, 288, 96, True, "hardswish", 2), (5, 576, 96, True, "hardswish", 1),
        (5, 576, 96, True, "hardswish", 1),
    ),
}  # fmt: skip
"""Kernel, expanded width, output width, squeeze, activation, stride (Howard 2019)."""


def mobilenet_v3(tape: Net, x: Value, config: Mapping[str, Any]) -> Value:
    plan = MOBILENET_V3[config["size"]]
    x = conv_norm(tape, x, 16, 3, stride=2, function="hardswish", name="stem")
    for number, (size, expanded, channels, squeezes, function, stride) in enumerate(plan):
        with tape.scope(f"block{number}"):
            x = inverted_residual(
                tape, x, channels, expanded=expanded, size=size, stride=stride, function=function,
                squeezed=divisible(expanded / 4) if squeezes else 0, squeeze_gate="hardsigmoid",
            )  # fmt: skip
    last = 6 * x.shape[1]
    x = tape.global_pool(conv_norm(tape, x, last, 1, function="hardswish", name="last"))
    with tape.scope("classifier"):
        x = tape.activation("hardswish", tape.linear(x, 1280 if config["size"] == "large" else 1024, name="hidden"))
        x = tape.dropout(x, tape.recipe.rate(0.2))
        return tape.linear(x, config["num_classes"], name="fc")


def efficientnet(tape: Net, x: Value, config: Mapping[str, Any]) -> Value:
    """Compound scaling of width and depth (Tan 2019)."""
    wide, deep = config["width"], config["depth"]
    x = conv_norm(tape, x, divisible(32 * wide), 3, stride=2, function="silu", name="stem")
    plan = (
        (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    )  # fmt: skip
    for number, (ratio, size, stride, channels, count) in enumerate(plan):
        channels = divisible(channels * wide)

        def block(
            value: Value, *, stride: int, ratio: int = ratio, size: int = size, channels: int = channels
        ) -> Value:
            width = value.shape[1]
            expanded = divisible(width * ratio)
            squeezed = max(1, (expanded if config.get("wide_se") else width) // 4)
            return inverted_residual(
                tape, value, channels, expanded=expanded, size=size, stride=stride, function="silu",
                squeezed=squeezed, squeeze_function="silu", drop_path=0.2,
            )  # fmt: skip

        with tape.scope(f"stage{number}"):
            x = block(x, stride=stride)
            x = tape.repeat(math.ceil(count * deep) - 1, x, lambda value, run=block: run(value, stride=1))  # type: ignore[misc]
    x = conv_norm(tape, x, 4 * x.shape[1], 1, function="silu", name="last")
    return classify(tape, x, config["num_classes"], rate=config.get("dropout", 0.2))


def shufflenet_v2(tape: Net, x: Value, config: Mapping[str, Any]) -> Value:
    """Ma 2018; channels are shuffled by a copy."""
    x = conv_norm(tape, x, 24, 3, stride=2, name="stem")
    x = tape.pool(x, 3, stride=2, padding=1)
    for number, (channels, count) in enumerate(zip(config["widths"][:-1], (4, 8, 4), strict=True)):
        half = channels // 2
        for index in range(count):
            with tape.scope(f"stage{number + 2}.block{index}"):
                if index == 0:
                    left = conv_norm(
                        tape, x, x.shape[1], 3, stride=2, groups=x.shape[1], function="", name="left_depthwise"
                    )
                    left = conv_norm(tape, left, half, 1, name="left_pointwise")
                    right, stride = x, 2
                else:
                    part = (x.shape[0], half, *x.shape[2:])
                    left, right = tape.split(x, (part, part))
                    stride = 1
                right = conv_norm(tape, right, half, 1, name="right1")
                right = conv_norm(tape, right, half, 3, stride=stride, groups=half, function="", name="right_depthwise")
                right = conv_norm(tape, right, half, 1, name="right2")
                x = tape.copy(
                    tape.concat((left, right), (x.shape[0], channels, *right.shape[2:])),
                    function="shuffle",
                    back=True,
                )
    x = conv_norm(tape, x, config["widths"][-1], 1, name="last")
    return classify(tape, x, config["num_classes"])


# Branching networks


def densenet(tape: Net, x: Value, config: Mapping[str, Any]) -> Value:
    """Every layer reads all before it, concatenated (Huang 2017)."""
    growth = config.get("growth", 32)
    x = conv_norm(tape, x, config.get("stem", 64), 7, stride=2, name="stem")
    x = tape.pool(x, 3, stride=2, padding=1)

    def norm_conv(value: Value, channels: int, size: int, name: str) -> Value:
        with tape.scope(name):
            value = tape.activation("relu", tape.batch_norm(value), inplace=True)
            return tape.conv(value, channels, size)

    for number, count in enumerate(config["layers"]):
        features = [x]
        for index in range(count):
            with tape.scope(f"block{number + 1}.layer{index + 1}"):
                total = sum(feature.shape[1] for feature in features)
                joined = tape.concat(features, (x.shape[0], total, *x.shape[2:]))
                features.append(norm_conv(norm_conv(joined, 4 * growth, 1, "narrow"), growth, 3, "grow"))
        total = sum(feature.shape[1] for feature in features)
        x = tape.concat(features, (x.shape[0], total, *x.shape[2:]))
        if number < len(config["layers"]) - 1:
            x = norm_conv(x, total // 2, 1, f"transition{number + 1}")
            x = tape.pool(x, 2, function="avg")
    with tape.scope("norm"):
        x = tape.activation("relu", tape.batch_norm(x), inplace=True)
    return classify(tape, x, config["num_classes"])


def googlenet(tape: Net, x: Value, config: Mapping[str, Any]) -> Value:
    """Szegedy 2014 as torchvision builds it, without the auxiliary heads."""
    x = conv_norm(tape, x, 64, 7, stride=2, name="stem1")
    x = tape.pool(x, 3, stride=2, ceil=True)
    x = conv_norm(tape, x, 64, 1, name="stem2")
    x = conv_norm(tape, x, 192, 3, name="stem3")
    x = tape.pool(x, 3, stride=2, ceil=True)
    plan: tuple[tuple[int, ...], ...] = (
        (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (), (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128), (),
        (256, 160, 320, 32, 128, 128),
        (384, 192, 384, 48, 128, 128),
    )  # fmt: skip
    pools = 0
    for number, widths in enumerate(plan):
        if not widths:
            pools += 1
            x = tape.pool(x, 3 if pools == 1 else 2, stride=2, ceil=True)
            continue
        one, three_in, three, five_in, five, pooled = widths
        with tape.scope(f"inception{number}"):
            branches = [
                conv_norm(tape, x, one, 1, name="one"),
                conv_norm(tape, conv_norm(tape, x, three_in, 1, name="three_in"), three, 3, name="three"),
                conv_norm(tape, conv_norm(tape, x, five_in, 1, name="five_in"), five, 3, name="five"),
                conv_norm(tape, tape.pool(x, 3, stride=1, padding=1), pooled, 1, name="pooled"),
            ]
            x = join(tape, branches)
    return classify(tape, x, config["num_classes"], rate=0.2)


def join(tape: Net, branches: Sequence[Value]) -> Value:
    first = branches[0]
    return tape.concat(branches, (first.shape[0], sum(branch.shape[1] for branch in branches), *first.shape[2:]))


def inception_v3(tape: Net, x: Value, config: Mapping[str, Any]) -> Value:
    """Szegedy 2015 as torchvision builds it; the auxiliary head is counted as weights and as work in training."""

    def cn(
        value: Value, channels: int, size: int | tuple[int, int], name: str, stride: int = 1, padding: Any = 0
    ) -> Value:
        return conv_norm(tape, value, channels, size, stride=stride, padding=padding, name=name)

    def average(value: Value) -> Value:
        return tape.pool(value, 3, stride=1, padding=1, function="avg")

    x = cn(cn(cn(x, 32, 3, "stem1", 2), 32, 3, "stem2"), 64, 3, "stem3", 1, 1)
    x = tape.pool(x, 3, stride=2)
    x = cn(cn(x, 80, 1, "stem4"), 192, 3, "stem5")
    x = tape.pool(x, 3, stride=2)
    for index, pooled in enumerate((32, 64, 64)):
        with tape.scope(f"a{index}"):
            x = join(tape, (
                cn(x, 64, 1, "one"), cn(cn(x, 48, 1, "five_in"), 64, 5, "five", 1, 2),
                cn(cn(cn(x, 64, 1, "three1"), 96, 3, "three2", 1, 1), 96, 3, "three3", 1, 1), cn(average(x), pooled, 1, "pooled"),
            ))  # fmt: skip
    with tape.scope("b"):
        x = join(tape, (
            cn(x, 384, 3, "three", 2), cn(cn(cn(x, 64, 1, "double1"), 96, 3, "double2", 1, 1), 96, 3, "double3", 2),
            tape.pool(x, 3, stride=2),
        ))  # fmt: skip
    row, column = (1, 7), (7, 1)
    for index, width in enumerate((128, 160, 160, 192)):
        with tape.scope(f"c{index}"):
            seven = cn(cn(cn(x, width, 1, "seven1"), width, row, "seven2", 1, (0, 3)), 192, column, "seven3", 1, (3, 0))
            double = cn(cn(x, width, 1, "double1"), width, column, "double2", 1, (3, 0))
            double = cn(cn(double, width, row, "double3", 1, (0, 3)), width, column, "double4", 1, (3, 0))
            double = cn(double, 192, row, "double5", 1, (0, 3))
            x = join(tape, (cn(x, 192, 1, "one"), seven, double, cn(average(x), 192, 1, "pooled")))
    if config.get("auxiliary", True):
        tape.assume("the auxiliary classifier runs forward and backward, its loss is not added up")
        with tape.scope("auxiliary"):
            aux = cn(cn(tape.pool(x, 5, stride=3, function="avg"), 128, 1, "conv0"), 768, 5, "conv1")
            tape.linear(tape.global_pool(aux), config["num_classes"], name="fc")
    with tape.scope("d"):
        seven = cn(cn(cn(x, 192, 1, "seven1"), 192, row, "seven2", 1, (0, 3)), 192, column, "seven3", 1, (3, 0))
        x = join(
            tape,
            (
                cn(cn(x, 192, 1, "three1"), 320, 3, "three2", 2),
                cn(seven, 192, 3, "seven4", 2),
                tape.pool(x, 3, stride=2),
            ),
        )
    for index in range(2):
        with tape.scope(f"e{index}"):
            three = cn(x, 384, 1, "three1")
            double = cn(cn(x, 448, 1, "double1"), 384, 3, "double2", 1, 1)
            x = join(tape, (
                cn(x, 320, 1, "one"), cn(three, 384, (1, 3), "three2a", 1, (0, 1)), cn(three, 384, (3, 1), "three2b", 1, (1, 0)),
                cn(double, 384, (1, 3), "double3a", 1, (0, 1)), cn(double, 384, (3, 1), "double3b", 1, (1, 0)),
                cn(average(x), 192, 1, "pooled"),
            ))  # fmt: skip
    return classify(tape, x, config["num_classes"], rate=0.5)


def convnext(tape: Net, x: Value, config: Mapping[str, Any]) -> Value:
    """Liu 2022: depthwise 7x7, norm and MLP in channels-last order, layer scale, stochastic depth."""
    widths = config["widths"]
    x = tape.conv(x, widths[0], 4, stride=4, padding=0, bias=True, name="stem")
    x = norm_channels(tape, x, "stem_norm")

    def block(value: Value) -> Value:
        batch, width, *size = value.shape
        y = tape.conv(value, width, 7, groups=width, bias=True, name="depthwise")
        rows = tape.view(tape.copy(y), (batch * math.prod(size), width))
        rows = tape.layer_norm(rows)
        rows = tape.activation("gelu", tape.linear(rows, 4 * width, name="up"))
        rows = tape.linear(rows, width, name="down")
        scaled = tape.multiply(rows, tape.parameter("layer_scale", (width,)))
        y = tape.view(scaled, value.shape)
        return tape.add(keep_samples(tape, y) if tape.recipe.trains else y, value)

    for number, (width, count) in enumerate(zip(widths, config["depths"], strict=True)):
        with tape.scope(f"stage{number + 1}"):
            if number:
                x = norm_channels(tape, x, "norm")
                x = tape.conv(x, width, 2, stride=2, padding=0, bias=True, name="downsample")
            x = stable(tape, x)
            with tape.scope("blocks"):
                x = tape.repeat(count, x, block)
    x = tape.global_pool(x)
    x = tape.layer_norm(x)
    return classify(tape, x, config["num_classes"])


def stable(tape: Net, x: Value) -> Value:
    """Under autocast a residual stream whose scale is fp32 becomes fp32 with its first block."""
    return tape.cast(x, "fp32") if tape.numbers.autocast else x


def norm_channels(tape: Net, x: Value, name: str) -> Value:
    """Layer norm over channels: a copy to channels-last order and a view back."""
    batch, width, *size = x.shape
    rows = tape.view(tape.copy(x, back=True), (batch * math.prod(size), width))
    return tape.view(tape.layer_norm(rows, name=name), x.shape)


NETWORKS: dict[str, Network] = {
    "resnet": resnet, "vgg": vgg, "alexnet": alexnet, "squeezenet": squeezenet, "mobilenet_v1": mobilenet_v1,
    "mobilenet_v2": mobilenet_v2, "mobilenet_v3": mobilenet_v3, "efficientnet": efficientnet,
    "shufflenet_v2": shufflenet_v2, "densenet": densenet, "googlenet": googlenet, "inception_v3": inception_v3,
    "convnext": convnext,
}  # fmt: skip
