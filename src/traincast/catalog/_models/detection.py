"""Detectors: SSD, RetinaNet, Mask R-CNN, YOLOv3. What depends on the data (boxes, proposals) is assumed and said so."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from traincast.catalog._models.layers import (
    activation,
    add,
    concat,
    conv,
    conv_with,
    copy,
    cross_entropy,
    frozen_norm,
    gather_rows,
    linear,
    mean_loss,
    pool,
    upsample,
)
from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.tape import Tape, Value
from traincast.catalog._models.vision import conv_norm, half_input, resnet_stage
from traincast.spec import DYNAMIC, Attr, Graph

if TYPE_CHECKING:
    from traincast.catalog._workloads import Sizes


def build_ssd(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """SSD300 on a ResNet-50 cut after its third stage, as NVIDIA's examples and MLPerf build it (Liu 2016)."""
    config = entry["config"]
    tape = Tape(recipe)
    batch, classes = sizes.batch, sizes.num_classes or config.get("num_classes", 81)
    size = sizes.input_size or config.get("image_size", 300)
    tape.assume("matching of boxes to targets happens in the input pipeline")
    x = half_input(tape, tape.input("images", (batch, 3, size, size), "fp32"))
    with tape.scope("backbone"):
        x = conv_norm(tape, x, 64, 7, stride=2, name="stem")
        x = pool(tape, x, 3, stride=2, padding=1)
        for number, blocks in enumerate((3, 4, 6)):
            x = resnet_stage(
                tape, x, {}, 64 * 2**number, blocks, stride=2 if number == 1 else 1, name=f"stage{number + 1}"
            )
    features = [x]
    extra = ((256, 512, 2, 1), (256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))
    for number, (middle, channels, stride, padding) in enumerate(extra):
        with tape.scope(f"extra{number}"):
            x = conv_norm(tape, x, middle, 1, name="narrow")
            x = conv_norm(tape, x, channels, 3, stride=stride, padding=padding, name="wide")
            features.append(x)
    places, scores = [], []
    for number, (feature, boxes) in enumerate(zip(features, (4, 6, 6, 6, 4, 4), strict=True)):
        count = boxes * feature.shape[2] * feature.shape[3]
        with tape.scope(f"head{number}"):
            place = conv(tape, feature, 4 * boxes, 3, bias=True, name="places")
            score = conv(tape, feature, classes * boxes, 3, bias=True, name="classes")
            places.append(tape.view(place, (batch, 4, count)))
            scores.append(tape.view(score, (batch, classes, count)))
    total = sum(value.shape[2] for value in places)
    place = concat(tape, places, (batch, 4, total))
    score = concat(tape, scores, (batch, classes, total))
    outputs = [place, score]
    if recipe.trains and recipe.loss:
        wide = tape.view(copy(tape, score, back=True), (batch * total, classes))
        hard_negatives(tape, batch=batch, boxes=total)
        outputs = [add(tape, cross_entropy(tape, wide), mean_loss(tape, place, "smooth_l1_loss"))]
    return tape.finish(outputs, name=name, batch_size=batch, samples_unit="images", source=entry["source"])


def hard_negatives(tape: Tape, *, batch: int, boxes: int) -> None:
    """Two sorts of the losses of all boxes pick three negatives for each positive."""
    with tape.scope("loss"):
        losses = tape.new((batch, boxes), "fp32")
        order = tape.new((batch, boxes), "int64")
        for _ in range(2):
            tape.op(
                "aten.sort",
                "sort",
                (losses,),
                (order,),
                {"rows": batch, "cols": boxes},
                flop=float(batch * boxes),
                kernels=4,
            )
        tape.op(
            "aten.mul", "elementwise", (losses, order), (losses,), {"function": "mul", "numel": batch * boxes, "num_inputs": 2},
            flop=float(batch * boxes), kernels=6, calls=10,
        )  # fmt: skip


# Feature pyramids


def frozen_backbone(
    tape: Tape, x: Value, layers: Sequence[int], *, groups: int = 1, base_width: int = 64
) -> list[Value]:
    """A ResNet with fixed norms whose stem and first stage are not trained; the outputs of its four stages."""

    def norm_conv(value: Value, channels: int, size: int, name: str, *, stride: int = 1, relu: bool = True,
                  trained: bool = True, padding: int | None = None, split: int = 1) -> Value:  # fmt: skip
        with tape.scope(name):
            value = conv(tape, value, channels, size, stride=stride, padding=padding, trained=trained, groups=split)
            value = frozen_norm(tape, value)
            return activation(tape, "relu", value, inplace=True) if relu else value

    def block(value: Value, width: int, *, stride: int, project: bool, trained: bool) -> Value:
        inner = width * base_width // 64 * groups
        y = norm_conv(value, inner, 1, "conv1", trained=trained)
        y = norm_conv(y, inner, 3, "conv2", stride=stride, trained=trained, split=groups)
        y = norm_conv(y, 4 * width, 1, "conv3", relu=False, trained=trained)
        if project:
            value = norm_conv(value, 4 * width, 1, "downsample", stride=stride, relu=False, trained=trained, padding=0)
        return activation(tape, "relu", add(tape, y, value, inplace=True), inplace=True)

    outputs = []
    with tape.scope("backbone"):
        x = norm_conv(x, 64, 7, "stem", stride=2, trained=False)
        x = pool(tape, x, 3, stride=2, padding=1)
        for number, count in enumerate(layers):
            width, trained, stride = 64 * 2**number, number > 0, 1 if number == 0 else 2
            with tape.scope(f"stage{number + 1}"):
                with tape.scope("first"):
                    x = block(x, width, stride=stride, project=True, trained=trained)

                def rest(value: Value, width: int = width, trained: bool = trained) -> Value:
                    return block(value, width, stride=1, project=False, trained=trained)

                with tape.scope("rest"):
                    x = tape.repeat(count - 1, x, rest)
            outputs.append(x)
    return outputs


def pyramid(tape: Tape, features: Sequence[Value], channels: int = 256) -> list[Value]:
    """Lateral 1x1, upsampled sums from above, 3x3 outputs; from fine to coarse (Lin 2017)."""
    with tape.scope("pyramid"):
        laterals = [conv(tape, x, channels, 1, bias=True, name=f"lateral{i}") for i, x in enumerate(features)]
        merged = [laterals[-1]]
        for lateral in reversed(laterals[:-1]):
            above = merged[0]
            wide = upsample(tape, above)
            if wide.shape != lateral.shape:
                wide = crop(tape, wide, lateral)
            merged.insert(0, add(tape, lateral, wide))
        return [conv(tape, x, channels, 3, bias=True, name=f"output{i}") for i, x in enumerate(merged)]


def crop(tape: Tape, x: Value, like: Value) -> Value:
    """An upsampled map of odd size: interpolated straight to the size below it."""
    out = tape.part(x, like.shape)
    return tape.register(out, (x,), lambda g: (tape.part(g, x.shape),))


def build_maskrcnn(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """Mask R-CNN with a ResNet-50 pyramid (He 2017)."""
    config = entry["config"]
    tape = Tape(recipe)
    batch, classes = sizes.batch, sizes.num_classes or config.get("num_classes", 81)
    height, width = (sizes.input_size, sizes.input_size) if sizes.input_size else (800, padded_width(batch, recipe))
    proposals = config.get("proposals", 512)
    positives = config.get("positives", MOST_POSITIVES if recipe.one_size else MEAN_POSITIVES)
    tape.assume(f"images are padded to {height} x {width}")
    tape.assume(f"{proposals} proposals per image reach the box head and {positives} the mask head")
    x = half_input(tape, tape.input("images", (batch, 3, height, width), "fp32"))
    features = pyramid(tape, frozen_backbone(tape, x, (3, 4, 6, 3)))
    features.append(pool(tape, features[-1], 1, stride=2))
    objects, boxes = region_proposals(tape, features)
    rows = batch * proposals
    with tape.scope("box_head"):
        pooled = pool_regions(tape, features[:4], rows, 7)
        y = tape.view(pooled, (rows, 256 * 49))
        y = activation(tape, "relu", linear(tape, y, 1024, name="fc1"))
        y = activation(tape, "relu", linear(tape, y, 1024, name="fc2"))
        scores = linear(tape, y, classes, name="classes")
        places = linear(tape, y, 4 * classes, name="boxes")
    rows = batch * positives
    with tape.scope("mask_head"):
        y = pool_regions(tape, features[:4], rows, 14)
        for index in range(4):
            y = activation(tape, "relu", conv(tape, y, 256, 3, bias=True, name=f"conv{index}"))
        y = activation(tape, "relu", conv(tape, y, 256, 2, stride=2, padding=0, bias=True, name="up", transposed=True))
        masks = conv(tape, y, classes, 1, bias=True, name="masks")
    outputs = [objects, boxes, scores, places, masks]
    if recipe.trains and recipe.loss:
        total = mean_loss(tape, objects, "binary_cross_entropy_with_logits")
        losses = [
            mean_loss(tape, boxes, "smooth_l1_loss"),
            cross_entropy(tape, scores),
            mean_loss(tape, places, "smooth_l1_loss"),
            mean_loss(tape, masks, "binary_cross_entropy_with_logits"),
        ]
        for loss in losses:
            total = add(tape, total, loss)
        outputs = [total]
    graph = tape.finish(outputs, name=name, batch_size=batch, samples_unit="images", source=entry["source"])
    largest = 1.0 if sizes.input_size else LARGEST_WIDTH / width
    cuts = recipe.host_masks and recipe.trains and recipe.loss
    return replace(graph, largest_batch=largest, preparation_s=batch * positives * cut_mask_s(recipe) if cuts else 0.0)


LONG_SIDES = ((928, 0.1), (1067, 0.5), (1200, 0.33), (1333, 0.07))
"""Of photographs whose short side is 800 pixels, and how many there are: nearly square, 4:3, 3:2 and wider (COCO, recalled)."""
PIXEL_MULTIPLE = 32
LARGEST_WIDTH = math.ceil(LONG_SIDES[-1][0] / PIXEL_MULTIPLE) * PIXEL_MULTIPLE


def padded_width(batch: int, recipe: Recipe) -> int:
    """The mean over batches of the longest side, as images of one orientation go together and are padded to the largest."""
    if recipe.one_size:
        return LARGEST_WIDTH
    mean, below, share = 0.0, 0.0, 0.0
    for side, part in LONG_SIDES:
        share += part
        mean += side * (min(share, 1.0) ** batch - below)
        below = min(share, 1.0) ** batch
    return math.ceil(mean / PIXEL_MULTIPLE) * PIXEL_MULTIPLE


MOST_POSITIVES, MEAN_POSITIVES = 128, 80
"""Regions of an image that hold an object: a quarter of all at most, and what logs of public detectors show in the mean
(recalled). Programs of fixed shapes run the most."""
MASK_CALLS, HOST_OP_S, WRAPPED = 25, 3e-6, 4.0


def cut_mask_s(recipe: Recipe) -> float:
    """Of one region, on the host: its polygons are moved, cut, scaled and filled by some 25 small calls on tensors of its own.
    Autocast by wrappers around every function makes such a call four times as long, on every GPU
    that was measured."""
    return MASK_CALLS * HOST_OP_S * (WRAPPED if recipe.precision.endswith("-amp") else 1.0)


def region_proposals(tape: Tape, features: Sequence[Value]) -> tuple[Value, Value]:
    """One small head shared by all levels of a pyramid: for every anchor, whether it holds an object and where its box lies."""
    batch = features[0].shape[0]
    shared = []
    for label, channels, kernel_size in (("conv", 256, 3), ("objects", 3, 1), ("boxes", 12, 1)):
        with tape.scope(f"rpn.{label}"):
            weight = tape.parameter("weight", (channels, 256, kernel_size, kernel_size))
            shared.append((weight, tape.parameter("bias", (channels,))))
    anchors = 0
    objectness, deltas = [], []
    for number, feature in enumerate(features):
        with tape.scope(f"rpn{number}"):
            y = activation(tape, "relu", conv_with(tape, feature, shared[0], 3, name="conv"))
            cells = feature.shape[2] * feature.shape[3]
            objectness.append(tape.view(conv_with(tape, y, shared[1], 1, name="objects"), (batch, 3 * cells)))
            deltas.append(tape.view(conv_with(tape, y, shared[2], 1, name="boxes"), (batch, 12 * cells)))
            anchors += 3 * cells
    propose(tape, objectness, batch=batch, anchors=anchors)
    return concat(tape, objectness, (batch, anchors)), concat(tape, deltas, (batch, 4 * anchors))


def propose(tape: Tape, objectness: Sequence[Value], *, batch: int, anchors: int) -> None:
    """Decode boxes, keep the best, suppress overlaps, match to targets: many small kernels, no gradient. How many boxes are left
    depends on the data, so the host reads the number before it goes on. Fused kernels take all images of a batch at once."""
    loops = 1 if tape.recipe.fused else batch
    dynamic: dict[str, Attr] = {DYNAMIC: True}
    with tape.scope("proposals"):
        boxes = tape.new((batch, anchors, 4), "fp32")
        attrs: dict[str, Attr] = {"function": "decode", "numel": 4 * batch * anchors, "num_inputs": 2, **dynamic}
        tape.op(
            "decode_boxes",
            "elementwise",
            objectness,
            (boxes,),
            attrs,
            flop=12.0 * batch * anchors,
            kernels=100,
            calls=200,
        )
        kept = tape.new((batch, 1000 * len(objectness), 4), "fp32")
        for level, scores in enumerate(objectness):
            count = min(2000, scores.numel // batch)
            tape.op(
                "aten.topk", "sort", (scores,), (kept,), {"rows": batch, "cols": scores.numel // batch, **dynamic},
                flop=float(scores.numel),
                bytes_written=16.0 * batch * count, kernels=4, calls=8,
            )  # fmt: skip
            tape.op(
                f"nms{level}", "sort", (boxes,), (kept,), {"rows": batch, "cols": count, **dynamic},
                flop=4.0 * batch * count * count,
                bytes_read=16.0 * batch * count, bytes_written=batch * count * count / 8, kernels=6 * loops, calls=20 * loops,
            )  # fmt: skip
        attrs = {"function": "match", "numel": 4 * batch * anchors, "num_inputs": 2, **dynamic}
        tape.op(
            "match_targets", "elementwise", (boxes, kept), (kept,), attrs, flop=20.0 * batch * anchors,
            kernels=60 * loops, calls=150 * loops,
        )  # fmt: skip


def pool_regions(tape: Tape, features: Sequence[Value], rows: int, size: int) -> Value:
    """Bilinear crops of regions (RoIAlign): each region reads from one level."""
    parts = []
    for level, feature in enumerate(features):
        share = rows // len(features)
        cells = tape.view(feature, (feature.numel // 256, 256))
        with tape.scope(f"align{level}"):
            parts.append(gather_rows(tape, cells, share * size * size, function="roi_align"))
    count = sum(part.shape[0] for part in parts)
    return tape.view(concat(tape, parts, (count, 256)), (count // (size * size), 256, size, size))


def build_retinanet(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """One-stage detection with focal loss (Lin 2017)."""
    config = entry["config"]
    tape = Tape(recipe)
    batch, classes = sizes.batch, sizes.num_classes or config.get("num_classes", 91)
    size = sizes.input_size or config.get("image_size", 800)
    x = half_input(tape, tape.input("images", (batch, 3, size, size), "fp32"))
    stages = frozen_backbone(
        tape, x, (3, 4, 6, 3), groups=config.get("groups", 1), base_width=config.get("base_width", 64)
    )
    features = pyramid(tape, stages[1:])
    with tape.scope("pyramid"):
        features.append(conv(tape, features[-1], 256, 3, stride=2, padding=1, bias=True, name="p6"))
        features.append(
            conv(tape, activation(tape, "relu", features[-1]), 256, 3, stride=2, padding=1, bias=True, name="p7")
        )
    tape.assume("the heads of all levels share weights; their kernels are counted per level, their weights once")
    outputs = []
    for kind, width in (("classes", 9 * classes), ("boxes", 36)):
        cells = 0
        parts = []
        weights = HeadWeights(tape, kind, width)
        for level, feature in enumerate(features):
            with tape.scope(f"{kind}{level}"):
                parts.append(weights.run(feature))
            cells += feature.shape[2] * feature.shape[3]
        flat = [tape.view(part, (batch, part.numel // batch)) for part in parts]
        outputs.append(concat(tape, flat, (batch, cells * width)))
    if recipe.trains and recipe.loss:
        focal = mean_loss(tape, outputs[0], "sigmoid_focal_loss")
        outputs = [add(tape, focal, mean_loss(tape, outputs[1], "l1_loss"))]
    return tape.finish(outputs, name=name, batch_size=batch, samples_unit="images", source=entry["source"])


class HeadWeights:
    """Four convolutions and an output whose weights every pyramid level uses."""

    def __init__(self, tape: Tape, kind: str, width: int) -> None:
        self.tape = tape
        self.weights: list[tuple[Value, Value]] = []
        with tape.scope(f"{kind}_head"):
            for index in range(5):
                channels = 256 if index < 4 else width
                with tape.scope(f"conv{index}"):
                    self.weights.append(
                        (tape.parameter("weight", (channels, 256, 3, 3)), tape.parameter("bias", (channels,)))
                    )

    def run(self, x: Value) -> Value:
        for index, pair in enumerate(self.weights):
            x = conv_with(self.tape, x, pair, 3, name=f"conv{index}")
            x = activation(self.tape, "relu", x, inplace=True) if index < 4 else x
        return x


def build_yolov3(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """Darknet-53 with three scales (Redmon 2018)."""
    config = entry["config"]
    tape = Tape(recipe)
    batch, classes = sizes.batch, sizes.num_classes or config.get("num_classes", 20)
    size = sizes.input_size or config.get("image_size", 416)
    if size == config.get("published_size") and recipe.mode != "inference":
        size = config["mean_size"]
        tape.assume(f"trained at several sizes, as published; {size} is taken as their mean")
    outputs_each = 3 * (5 + classes)
    tape.assume("targets are matched on the host")

    def block(value: Value, channels: int, kernel_size: int, label: str, *, stride: int = 1) -> Value:
        return conv_norm(tape, value, channels, kernel_size, stride=stride, function="leaky_relu", name=label)

    def residual(value: Value) -> Value:
        width = value.shape[1]
        return add(tape, value, block(block(value, width // 2, 1, "narrow"), width, 3, "wide"))

    x = half_input(tape, tape.input("images", (batch, 3, size, size), "fp32"))
    kept = []
    with tape.scope("backbone"):
        x = block(x, 32, 3, "stem")
        for number, count in enumerate((1, 2, 8, 8, 4)):
            with tape.scope(f"stage{number}"):
                x = block(x, 64 * 2**number, 3, "down", stride=2)
                x = tape.repeat(count, x, residual)
            kept.append(x)
    outputs: list[Value] = []
    for number, width in enumerate((512, 256, 128)):
        with tape.scope(f"head{number}"):
            if number:
                x = upsample(tape, block(x, width, 1, "bridge"))
                below = kept[-1 - number]
                x = concat(tape, (x, below), (batch, x.shape[1] + below.shape[1], *x.shape[2:]))
            for index in range(2):
                x = block(block(x, width, 1, f"narrow{index}"), 2 * width, 3, f"wide{index}")
            x = block(x, width, 1, "narrow2")
            outputs.append(conv(tape, block(x, 2 * width, 3, "wide2"), outputs_each, 1, bias=True, name="output"))
    if recipe.trains and recipe.loss:
        losses = [mean_loss(tape, value, "binary_cross_entropy_with_logits") for value in outputs]
        outputs = [add(tape, add(tape, losses[0], losses[1]), losses[2])]
    return tape.finish(outputs, name=name, batch_size=batch, samples_unit="images", source=entry["source"])
