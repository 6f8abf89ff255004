"""In which order tensors lie in memory: a view turns an image into tokens, or tokens into an image, and copies nothing.

Elementwise kernels write in the order of their first operand and read others across it; norms, convolutions and pooling first
copy what does not lie as their kernels want it. The order follows from shapes and the flow of data, so recorded graphs need not
carry strides.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from traincast.spec import Attr, Graph, Op, Tensor

LAST = "channels_last"
TURNED = "turned_bytes"
"""The attribute of ops that read so many bytes in another order than the one their kernel goes through memory in."""
BY_SAMPLE = "by_sample"
"""The attribute of products of tokens that lie turned in so many samples, and of the copy that puts them in order first."""
STREAMING = ("elementwise", "copy", "dropout", "pool")
FORWARD = "forward"
_SIDES = {FORWARD: ("in", "out"), "grad_input": ("out", "in"), "grad_weight": ("in", "")}
"""Which image each pass of a convolution reads, and which it writes."""
Shape = tuple[int, ...]


def mark_orders(graph: Graph) -> Graph:
    """The graph with convolutions and norms that find channels last, and with what ops read across its order."""
    if not any(op.kind == "conv" for op in graph.ops):
        return graph
    orders = _Orders(graph.tensors)
    return replace(graph, ops=tuple([orders.mark(op) for op in graph.ops]))


class _Orders:
    """Which tensors lie with the dimension of channels first or last, contrary to their shape."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self.turned: set[int] = set()
        self.fed_last: set[int] = set()
        """What convolutions with channels last read in the forward pass."""
        self.samples: dict[int, int] = {}
        """Tensors that were put in order for a product, and how many samples they hold."""

    def mark(self, op: Op) -> Op:
        if op.phase == "optimizer" or not op.writes:
            return op
        marks: dict[str, Attr] = {}
        if op.kind == "conv":
            marks = self._conv(op)
        elif op.kind == "norm":
            marks = self._norm(op)
        elif op.kind in STREAMING:
            marks = self._stream(op)
        else:
            marks = self._product(op) if op.kind == "matmul" else {}
            self.turned.difference_update(op.writes)
        return replace(op, attrs={**op.attrs, **marks}) if marks else op

    def _lies_turned(self, tensor: int, shape: Shape) -> bool:
        """Whether a tensor, seen in this shape, lies in another order."""
        return (tensor in self.turned) != is_turned(self.tensors[tensor].shape, shape)

    def _put(self, tensor: int, shape: Shape, *, turned: bool) -> None:
        if turned != is_turned(self.tensors[tensor].shape, shape):
            self.turned.add(tensor)
        else:
            self.turned.discard(tensor)

    def _conv(self, op: Op) -> dict[str, Attr]:
        attrs = op.attrs
        images: dict[str, Shape] = {
            side: (int(attrs["batch"]), int(attrs[f"{side}_channels"]), *_sizes(attrs[f"{side}_size"]))
            for side in ("in", "out")
        }
        direction, last = str(attrs["pass"]), bool(attrs.get(LAST))
        if direction == FORWARD:
            last = last or self._lies_turned(op.reads[0], images["in"])
            if last:
                self.fed_last.update(op.reads[:2])
        else:
            last = last or any(tensor in self.fed_last for tensor in op.reads)
        # A gradient's other pass finds the copy that the first one made.
        read, written = _SIDES[direction]
        across = self._copied(op, images[read], last=last)
        if written:
            for tensor in op.writes:
                self._put(tensor, images[written], turned=last)
        return {**({LAST: True} if last else {}), **({TURNED: across} if across else {})}

    def _copied(self, op: Op, image: Shape, *, last: bool) -> float:
        """Bytes of an operand that lie in another order, or as a slice of something larger."""
        numel = math.prod(image)
        for tensor in op.reads:
            found = self.tensors[tensor]
            if found.numel == numel and len(found.shape) > 1:
                return float(found.num_bytes) if self._lies_turned(tensor, image) != last else 0.0
        larger = [
            one for one in map(self.tensors.__getitem__, op.reads) if one.numel > numel and one.shape[0] == image[0]
        ]
        return numel * larger[0].num_bytes / larger[0].numel if larger else 0.0

    def _norm(self, op: Op) -> dict[str, Attr]:
        whole = self.tensors[op.writes[0]]
        same = self._alike(op, whole)
        turned = [tensor for tensor in same if self._lies_turned(tensor, whole.shape)]
        if "batch" in str(op.attrs["function"]):
            last = bool(turned) and len(whole.shape) > len("nc")
            self._put(op.writes[0], whole.shape, turned=last)
            return {LAST: True} if last else {}
        self.turned.discard(op.writes[0])
        return {TURNED: float(sum(self.tensors[tensor].num_bytes for tensor in turned))} if turned else {}

    def _stream(self, op: Op) -> dict[str, Attr]:
        whole = self.tensors[op.writes[0]]
        same = self._alike(op, whole)
        if not same:
            # Images that are joined, padded or pooled lie as what they are made of.
            made_of = [tensor for tensor in op.reads if self._is_piece(self.tensors[tensor].shape, whole.shape)]
            self._put(op.writes[0], whole.shape, turned=bool(made_of) and made_of[0] in self.turned)
            return {}
        orders = [self._lies_turned(tensor, whole.shape) for tensor in same]
        ordered = op.attrs.get("function") == "clone"
        turned = orders[0] and not ordered
        self._put(op.writes[0], whole.shape, turned=turned)
        across = [tensor for tensor, other in zip(same, orders, strict=True) if other != turned]
        if not across:
            return {}
        marks: dict[str, Attr] = {TURNED: float(sum(self.tensors[tensor].num_bytes for tensor in across))}
        if ordered and op.phase == FORWARD and len(whole.shape) == len("bnc"):
            marks[BY_SAMPLE] = self.samples[op.writes[0]] = whole.shape[0]
        return marks

    def _product(self, op: Op) -> dict[str, Attr]:
        samples = [self.samples[tensor] for tensor in op.reads if tensor in self.samples]
        return {BY_SAMPLE: samples[0]} if samples and int(op.attrs["batch"]) == 1 else {}

    @staticmethod
    def _is_piece(shape: Shape, whole: Shape) -> bool:
        return len(shape) == len(whole) > len("bnc") and shape[0] == whole[0]

    def _alike(self, op: Op, whole: Tensor) -> list[int]:
        """What is read that has as many elements as what is written."""
        found = ((tensor, self.tensors[tensor]) for tensor in op.reads)
        return [tensor for tensor, one in found if one.numel == whole.numel and len(one.shape) > 1]


def is_turned(one: Shape, other: Shape) -> bool:
    """Whether two shapes are an image and its tokens (channels before pixels, pixels before channels)."""
    return one != other and math.prod(one) == math.prod(other) and (_is_tokens(one, other) or _is_tokens(other, one))


def _is_tokens(tokens: Shape, image: Shape) -> bool:
    if len(image) <= len("nc") or len(tokens) < len("nc") or tokens[-1] != image[1]:
        return False
    pixels = math.prod(image[2:])
    if pixels <= 1:
        return False
    if len(tokens) == len("nc"):
        return tokens[0] == image[0] * pixels
    return tokens[0] == image[0] and tokens[1:-1] in (image[2:], (pixels,))


def _sizes(text: Attr) -> Shape:
    return tuple(int(size) for size in str(text).split("x"))
