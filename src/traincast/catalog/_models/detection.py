"""Detectors: SSD, RetinaNet, R-CNN, YOLOv3. What depends on the data (boxes, proposals) is assumed and said so."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import Recipe, Sizes
from traincast.catalog._models.tape import Value
from traincast.catalog._models.vision import conv_norm, half_input, resnet_stage
from traincast.spec import DYNAMIC, Attr, Graph


def build_ssd(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """SSD300 on a ResNet-50 cut after its third stage, as NVIDIA's examples and MLPerf build it (Liu 2016)."""
    batch, classes = sizes.batch, sizes.num_classes or config.get("num_classes", 81)
    size = sizes.image(config.get("image_size", 300))
    tape.assume("matching of boxes to targets happens in the input pipeline")
    x = half_input(tape, tape.input("images", (batch, 3, *size), "fp32"))
    with tape.scope("backbone"):
        x = conv_norm(tape, x, 64, 7, stride=2, name="stem")
        x = tape.pool(x, 3, stride=2, padding=1)
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
            place = tape.conv(feature, 4 * boxes, 3, bias=True, name="places")
            score = tape.conv(feature, classes * boxes, 3, bias=True, name="classes")
            places.append(tape.view(place, (batch, 4, count)))
            scores.append(tape.view(score, (batch, classes, count)))
    total = sum(value.shape[2] for value in places)
    place = tape.concat(places, (batch, 4, total))
    score = tape.concat(scores, (batch, classes, total))
    outputs = [place, score]
    if tape.recipe.has_loss:
        wide = tape.view(tape.copy(score, back=True), (batch * total, classes))
        hard_negatives(tape, batch=batch, boxes=total)
        outputs = [tape.add(tape.cross_entropy(wide), tape.mean_loss(place, "smooth_l1_loss"))]
    return tape.close(outputs, samples_unit="images")


def hard_negatives(tape: Net, *, batch: int, boxes: int) -> None:
    """Two sorts of the losses of all boxes pick three negatives for each positive."""
    with tape.scope("loss"):
        losses = tape.new((batch, boxes), "fp32")
        order = tape.new((batch, boxes), "int64")
        for _ in range(2):
            tape.op(
                "aten.sort", "sort", (losses,), (order,), {"rows": batch, "cols": boxes}, flop=float(batch * boxes),
                kernels=4,
            )  # fmt: skip
        tape.op(
            "aten.mul", "elementwise", (losses, order), (losses,), {"function": "mul", "numel": batch * boxes, "num_inputs": 2},
            flop=float(batch * boxes), kernels=6, calls=10,
        )  # fmt: skip


# Feature pyramids


def frozen_backbone(
    tape: Net, x: Value, layers: Sequence[int], *, groups: int = 1, base_width: int = 64, dilated: bool = False
) -> list[Value]:
    """A ResNet with fixed norms whose stem and first stage are not trained; the outputs of its stages."""
    outputs = []
    with tape.scope("backbone"):
        x = frozen_conv(tape, x, 64, 7, "stem", stride=2, trained=False)
        x = tape.pool(x, 3, stride=2, padding=1)
        for number, count in enumerate(layers):
            with tape.scope(f"stage{number + 1}"):
                x = frozen_stage(
                    tape, x, number, count, groups=groups, base_width=base_width, dilated=dilated and number == 3
                )
            outputs.append(x)
    return outputs


def frozen_conv(
    tape: Net, value: Value, channels: int, size: int, name: str, *, stride: int = 1, relu: bool = True, trained: bool = True,
    **more: Any,
) -> Value:  # fmt: skip
    with tape.scope(name):
        value = tape.frozen_norm(tape.conv(value, channels, size, stride=stride, trained=trained, **more))
        return tape.activation("relu", value, inplace=True) if relu else value


def frozen_stage(
    tape: Net, x: Value, number: int, count: int, *, groups: int = 1, base_width: int = 64, dilated: bool = False
) -> Value:
    """One of four; dilated, it keeps the size of its input."""
    width, trained = 64 * 2**number, number > 0
    stride = 1 if number == 0 or dilated else 2
    inner = width * base_width // 64 * groups
    wide: dict[str, Any] = {"dilation": 2, "padding": 2} if dilated else {}

    def block(value: Value, *, first: bool) -> Value:
        step = stride if first else 1
        y = frozen_conv(tape, value, inner, 1, "conv1", trained=trained)
        y = frozen_conv(tape, y, inner, 3, "conv2", stride=step, trained=trained, groups=groups, **wide)
        y = frozen_conv(tape, y, 4 * width, 1, "conv3", relu=False, trained=trained)
        if first:
            value = frozen_conv(
                tape, value, 4 * width, 1, "downsample", stride=step, relu=False, trained=trained, padding=0
            )
        return tape.activation("relu", tape.add(y, value, inplace=True), inplace=True)

    with tape.scope("first"):
        x = block(x, first=True)
    with tape.scope("rest"):
        return tape.repeat(count - 1, x, lambda value: block(value, first=False))


def pyramid(tape: Net, features: Sequence[Value], channels: int = 256) -> list[Value]:
    """Lateral 1x1, upsampled sums from above, 3x3 outputs; from fine to coarse (Lin 2017)."""
    with tape.scope("pyramid"):
        laterals = [tape.conv(x, channels, 1, bias=True, name=f"lateral{i}") for i, x in enumerate(features)]
        merged = [laterals[-1]]
        for lateral in reversed(laterals[:-1]):
            above = merged[0]
            wide = tape.upsample(above)
            if wide.shape != lateral.shape:
                wide = cut(tape, wide, lateral.shape)
            merged.insert(0, tape.add(lateral, wide))
        return [tape.conv(x, channels, 3, bias=True, name=f"output{i}") for i, x in enumerate(merged)]


def cut(tape: Net, x: Value, shape: tuple[int, ...]) -> Value:
    """A part of it: of an upsampled map of odd size what lies below it, of regions those with an object."""
    out = tape.part(x, shape)
    return tape.register(out, (x,), lambda g: (tape.part(g, x.shape),))


def build_rcnn(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """Detectors in two stages: proposals, then heads on their regions (Ren 2015, He 2017), as Detectron2 builds them."""
    batch, classes = sizes.batch, sizes.num_classes or config.get("num_classes", 81)
    height, width = padded(sizes.input_size or (800, padded_width(batch, tape.recipe)))
    proposals = config.get("proposals", 512)
    positives = config.get("positives", MOST_POSITIVES if tape.recipe.one_size else MEAN_POSITIVES)
    heads = config.get("heads", ["mask"])
    tape.assume(f"images are padded to {height} x {width}")
    also = f" and {positives} the {heads[0]} head" if set(heads) & {"mask", "keypoint"} else ""
    tape.assume(f"{proposals} proposals per image reach the box head{also}")
    x = half_input(tape, tape.input("images", (batch, 3, height, width), "fp32"))
    regions = Regions(tape, config, x, classes=classes)
    objects, boxes = region_proposals(tape, regions.proposed, anchors=regions.anchors)
    outputs = [objects, boxes, *regions.boxes(batch * proposals, stages=3 if "cascade" in heads else 1)]
    losses = ["binary_cross_entropy_with_logits", "smooth_l1_loss", *("", "smooth_l1_loss") * (len(outputs) // 2 - 1)]
    if "mask" in heads:
        outputs.append(regions.masks(batch * positives))
        losses.append("binary_cross_entropy_with_logits")
    if "keypoint" in heads:
        outputs.append(regions.keypoints(batch * positives))
        losses.append("")
    if "panoptic" in heads:
        outputs.append(regions.stuff())
        losses.append("")
    if tape.recipe.has_loss:
        made = [
            tape.mean_loss(each, loss) if loss else tape.cross_entropy(each)
            for each, loss in zip(outputs, losses, strict=True)
        ]
        outputs = [functools.reduce(tape.add, made)]
    graph = tape.close(outputs, samples_unit="images")
    largest = 1.0 if sizes.input_size else LARGEST_WIDTH / width
    cuts = tape.recipe.host_masks and tape.recipe.trains and tape.recipe.loss and "mask" in heads
    return replace(
        graph, largest_batch=largest, preparation_s=batch * positives * cut_mask_s(tape.recipe) if cuts else 0.0
    )


class Regions:
    """What is seen of an image and what runs on its regions: on a pyramid (fpn), on the third stage with the fourth as head (c4),
    or on a dilated fourth stage (dc5)."""

    def __init__(self, tape: Net, config: Mapping[str, Any], x: Value, *, classes: int) -> None:
        self.tape, self.classes = tape, classes
        self.kind = config.get("features", "fpn")
        self.shape = shape = {"groups": config.get("groups", 1), "base_width": config.get("base_width", 64)}
        layers = config.get("layers", (3, 4, 6, 3))
        self.num_last = layers[3]
        if self.kind == "fpn":
            levels = pyramid(tape, frozen_backbone(tape, x, layers, **shape))
            self.levels, self.anchors = levels, 3
            self.proposed = [*levels, tape.pool(levels[-1], 1, stride=2)]
        else:
            stages = layers if self.kind == "dc5" else layers[:3]
            self.levels = frozen_backbone(tape, x, stages, dilated=self.kind == "dc5", **shape)[-1:]
            self.proposed, self.anchors = self.levels, 15

    def pooled(self, rows: int, size: int) -> Value:
        return pool_regions(self.tape, self.levels, rows, size)

    def last_stage(self, rows: int) -> Value:
        """Regions of 14 x 14 through the last stage of the backbone; those with an object go to the mask head too."""
        y = self.pooled(rows, 14)
        with self.tape.scope("stage4"):
            return frozen_stage(self.tape, y, 3, self.num_last, **self.shape)

    def boxes(self, rows: int, *, stages: int) -> list[Value]:
        """Scores and places; a cascade refines its boxes and makes them once for all classes (Cai 2018)."""
        tape, made = self.tape, []
        for stage in range(stages):
            with tape.scope("box_head" if stages == 1 else f"box_head{stage}"):
                if self.kind == "c4":
                    self.shared = self.last_stage(rows)
                    y = tape.global_pool(self.shared)
                else:
                    y = tape.view(pooled := self.pooled(rows, 7), (rows, pooled.numel // pooled.shape[0]))
                    y = tape.activation("relu", tape.linear(y, 1024, name="fc1"))
                    y = tape.activation("relu", tape.linear(y, 1024, name="fc2"))
                made.append(tape.linear(y, self.classes, name="classes"))
                places = 4 if stages > 1 else 4 * (self.classes if self.kind == "fpn" else self.classes - 1)
                made.append(tape.linear(y, places, name="boxes"))
        return made

    def masks(self, rows: int) -> Value:
        tape = self.tape
        with tape.scope("mask_head"):
            if self.kind == "c4":
                y = cut(tape, self.shared, (rows, *self.shared.shape[1:]))
            else:
                y = self.pooled(rows, 14)
                for index in range(4):
                    y = tape.activation("relu", tape.conv(y, 256, 3, bias=True, name=f"conv{index}"))
            y = tape.conv(y, 256, 2, stride=2, padding=0, bias=True, name="up", transposed=True)
            return tape.conv(tape.activation("relu", y), self.classes, 1, bias=True, name="masks")

    def keypoints(self, rows: int) -> Value:
        """Seventeen maps of 56 x 56, of which one place each is right."""
        tape = self.tape
        with tape.scope("keypoint_head"):
            y = self.pooled(rows, 14)
            for index in range(8):
                y = tape.activation("relu", tape.conv(y, 512, 3, bias=True, name=f"conv{index}"))
            y = tape.upsample(tape.conv(y, 17, 4, stride=2, padding=1, bias=True, name="up", transposed=True))
            return tape.view(y, (y.shape[0] * 17, y.numel // (y.shape[0] * 17)))

    def stuff(self) -> Value:
        """A class for every pixel: all levels brought to the finest and added (Kirillov 2019)."""
        tape = self.tape
        with tape.scope("semantic_head"):
            total: Value | None = None
            for number, level in enumerate(self.levels):
                for step in range(max(1, number)):
                    with tape.scope(f"level{number}.{step}"):
                        level = tape.activation("relu", tape.group_norm(tape.conv(level, 128, 3)))
                        level = tape.upsample(level) if number else level
                if total is not None and level.shape != total.shape:
                    level = cut(tape, level, total.shape)
                total = level if total is None else tape.add(total, level)
            y = tape.upsample(tape.upsample(tape.conv(total, 54, 1, bias=True, name="classes")))  # type: ignore[arg-type]
            return tape.view(tape.copy(y, back=True), (y.numel // 54, 54))


LONG_SIDES = ((928, 0.1), (1067, 0.5), (1200, 0.33), (1333, 0.07))
"""Of photographs whose short side is 800 pixels, and how many there are: nearly square, 4:3, 3:2 and wider (COCO, believed)."""
PIXEL_MULTIPLE = 32


def padded(size: tuple[int, int]) -> tuple[int, int]:
    """The batch that images of this size lie in, as the strides of a pyramid need it."""
    height, width = (math.ceil(side / PIXEL_MULTIPLE) * PIXEL_MULTIPLE for side in size)
    return height, width


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
(believed). Programs of fixed shapes run the most."""
MASK_CALLS, HOST_OP_S, WRAPPED = 25, 3e-6, 4.0


def cut_mask_s(recipe: Recipe) -> float:
    """Of one region, on the host: its polygons are moved, cut, scaled and filled by some 25 small calls on tensors of its own.
    Autocast by wrappers around every function makes such a call four times as long, on every GPU
    that was measured."""
    return MASK_CALLS * HOST_OP_S * (WRAPPED if recipe.precision.endswith("-amp") else 1.0)


def region_proposals(tape: Net, features: Sequence[Value], *, anchors: int = 3) -> tuple[Value, Value]:
    """One small head shared by all levels of a pyramid: for every anchor, whether it holds an object and where its box lies."""
    batch, width = features[0].shape[:2]
    shared = []
    for label, channels, kernel_size in (("conv", width, 3), ("objects", anchors, 1), ("boxes", 4 * anchors, 1)):
        with tape.scope(f"rpn.{label}"):
            weight = tape.parameter("weight", (channels, width, kernel_size, kernel_size))
            shared.append((weight, tape.parameter("bias", (channels,))))
    total = 0
    objectness, deltas = [], []
    for number, feature in enumerate(features):
        with tape.scope(f"rpn{number}"):
            y = tape.activation("relu", tape.conv_with(feature, shared[0], 3, name="conv"))
            cells = feature.shape[2] * feature.shape[3]
            objectness.append(tape.view(tape.conv_with(y, shared[1], 1, name="objects"), (batch, anchors * cells)))
            deltas.append(tape.view(tape.conv_with(y, shared[2], 1, name="boxes"), (batch, 4 * anchors * cells)))
            total += anchors * cells
    propose(tape, objectness, batch=batch, anchors=total)
    return tape.concat(objectness, (batch, total)), tape.concat(deltas, (batch, 4 * total))


def propose(tape: Net, objectness: Sequence[Value], *, batch: int, anchors: int) -> None:
    """Decode boxes, keep the best, suppress overlaps, match to targets: many small kernels, no gradient. How many boxes are left
    depends on the data, so the host reads the number before it goes on. Fused kernels take all images of a batch at once."""
    loops = 1 if tape.recipe.fused else batch
    dynamic: dict[str, Attr] = {DYNAMIC: True}
    with tape.scope("proposals"):
        boxes = tape.new((batch, anchors, 4), "fp32")
        attrs: dict[str, Attr] = {"function": "decode", "numel": 4 * batch * anchors, "num_inputs": 2, **dynamic}
        tape.op(
            "decode_boxes", "elementwise", objectness, (boxes,), attrs, flop=12.0 * batch * anchors, kernels=100,
            calls=200,
        )  # fmt: skip
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


def pool_regions(tape: Net, features: Sequence[Value], rows: int, size: int) -> Value:
    """Bilinear crops of regions (RoIAlign): each region reads from one level."""
    parts, channels = [], features[0].shape[1]
    for level, feature in enumerate(features):
        share = rows // len(features)
        cells = tape.view(feature, (feature.numel // channels, channels))
        with tape.scope(f"align{level}"):
            parts.append(tape.gather_rows(cells, share * size * size, function="roi_align"))
    count = sum(part.shape[0] for part in parts)
    joined = tape.concat(parts, (count, channels)) if len(parts) > 1 else parts[0]
    return tape.view(joined, (count // (size * size), channels, size, size))


def build_retinanet(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """One-stage detection with focal loss (Lin 2017)."""
    batch, classes = sizes.batch, sizes.num_classes or config.get("num_classes", 91)
    size = padded(sizes.image(config.get("image_size", 800)))
    x = half_input(tape, tape.input("images", (batch, 3, *size), "fp32"))
    stages = frozen_backbone(
        tape, x, (3, 4, 6, 3), groups=config.get("groups", 1), base_width=config.get("base_width", 64)
    )
    features = pyramid(tape, stages[1:])
    with tape.scope("pyramid"):
        features.append(tape.conv(features[-1], 256, 3, stride=2, padding=1, bias=True, name="p6"))
        features.append(
            tape.conv(tape.activation("relu", features[-1]), 256, 3, stride=2, padding=1, bias=True, name="p7")
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
        outputs.append(tape.concat(flat, (batch, cells * width)))
    if tape.recipe.has_loss:
        focal = tape.mean_loss(outputs[0], "sigmoid_focal_loss")
        outputs = [tape.add(focal, tape.mean_loss(outputs[1], "l1_loss"))]
    return tape.close(outputs, samples_unit="images")


class HeadWeights:
    """Four convolutions and an output whose weights every pyramid level uses."""

    def __init__(self, tape: Net, kind: str, width: int) -> None:
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
            x = self.tape.conv_with(x, pair, 3, name=f"conv{index}")
            x = self.tape.activation("relu", x, inplace=True) if index < 4 else x
        return x


def build_yolov3(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """Darknet-53 with three scales (Redmon 2018)."""
    batch, classes = sizes.batch, sizes.num_classes or config.get("num_classes", 20)
    size = sizes.image(config.get("image_size", 416))
    if size == 2 * (config.get("published_size"),) and tape.recipe.mode != "inference":
        size = (config["mean_size"], config["mean_size"])
        tape.assume(f"trained at several sizes, as published; {size[0]} is taken as their mean")
    outputs_each = 3 * (5 + classes)
    tape.assume("targets are matched on the host")

    def block(value: Value, channels: int, kernel_size: int, label: str, *, stride: int = 1) -> Value:
        return conv_norm(tape, value, channels, kernel_size, stride=stride, function="leaky_relu", name=label)

    def residual(value: Value) -> Value:
        width = value.shape[1]
        return tape.add(value, block(block(value, width // 2, 1, "narrow"), width, 3, "wide"))

    x = half_input(tape, tape.input("images", (batch, 3, *size), "fp32"))
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
                x = tape.upsample(block(x, width, 1, "bridge"))
                below = kept[-1 - number]
                x = tape.concat((x, below), (batch, x.shape[1] + below.shape[1], *x.shape[2:]))
            for index in range(2):
                x = block(block(x, width, 1, f"narrow{index}"), 2 * width, 3, f"wide{index}")
            x = block(x, width, 1, "narrow2")
            outputs.append(tape.conv(block(x, 2 * width, 3, "wide2"), outputs_each, 1, bias=True, name="output"))
    if tape.recipe.has_loss:
        losses = [tape.mean_loss(value, "binary_cross_entropy_with_logits") for value in outputs]
        outputs = [tape.add(tape.add(losses[0], losses[1]), losses[2])]
    return tape.close(outputs, samples_unit="images")
