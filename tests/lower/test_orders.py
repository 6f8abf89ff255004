from collections.abc import Sequence

from traincast.lower import mark_orders
from traincast.lower._orders import is_turned
from traincast.spec import Graph, Op, Tensor

BATCH, CHANNELS, SIDE = 4, 32, 14
IMAGE, TOKENS = (BATCH, CHANNELS, SIDE, SIDE), (BATCH, SIDE * SIDE, CHANNELS)
WEIGHT, MATRIX = (CHANNELS, CHANNELS, 1, 1), (CHANNELS, CHANNELS)


def make_graph(shapes: Sequence[tuple[int, ...]], ops: Sequence[Op]) -> Graph:
    tensors = tuple(Tensor(shape=shape, dtype="fp16", role="activation") for shape in shapes)
    return Graph(name="tokens", ops=tuple(ops), tensors=tensors, batch_size=BATCH)


def make_op(kind: str, reads: tuple[int, ...], writes: tuple[int, ...], **attrs: object) -> Op:
    return Op(
        name=f"aten.{kind}", kind=kind, phase="forward", dtype="fp16", flop=1.0, bytes_read=8.0, bytes_written=8.0,
        reads=reads, writes=writes, attrs=dict(attrs),  # type: ignore[arg-type]
    )  # fmt: skip


def make_conv(reads: tuple[int, ...], writes: tuple[int, ...], **more: object) -> Op:
    sizes = {"batch": BATCH, "in_channels": CHANNELS, "out_channels": CHANNELS, "groups": 1, "in_size": f"{SIDE}x{SIDE}",
             "out_size": f"{SIDE}x{SIDE}", "kernel": "1x1", "stride": "1x1", "pass": "forward"}  # fmt: skip
    return make_op("conv", reads, writes, **{**sizes, **more})


def add(reads: tuple[int, ...], writes: tuple[int, ...]) -> Op:
    return make_op("elementwise", reads, writes, function="add", numel=1, num_inputs=len(reads))


def test_an_image_and_its_tokens_are_turned_to_each_other() -> None:
    assert is_turned(TOKENS, IMAGE)
    assert is_turned(IMAGE, (BATCH * SIDE * SIDE, CHANNELS))
    assert is_turned(IMAGE, (BATCH, SIDE, SIDE, CHANNELS))
    assert not is_turned(IMAGE, IMAGE)
    assert not is_turned(TOKENS, (BATCH * SIDE * SIDE, CHANNELS))


def test_patches_that_become_tokens_lie_turned_and_products_find_them_so() -> None:
    shapes = [IMAGE, WEIGHT, IMAGE, TOKENS, TOKENS, TOKENS, MATRIX, (BATCH * SIDE * SIDE, CHANNELS), TOKENS]
    product = {"batch": 1, "m": BATCH * SIDE * SIDE, "n": CHANNELS, "k": CHANNELS, "layout": "nn"}
    graph = make_graph(
        shapes,
        [
            make_conv((0, 1), (2,)),
            add((2, 3), (4,)),  # positions of tokens are added to the image
            make_op("copy", (4,), (5,), function="clone", numel=1),
            make_op("matmul", (5, 6), (7,), **product),
            add((4, 7), (8,)),  # the residual lies turned, the product does not
        ],
    )
    conv, position, clone, matmul, residual = mark_orders(graph).ops
    assert "channels_last" not in conv.attrs
    assert position.attrs["turned_bytes"] == clone.attrs["turned_bytes"] == graph.tensors[4].num_bytes
    assert clone.attrs["by_sample"] == matmul.attrs["by_sample"] == BATCH
    assert residual.attrs["turned_bytes"] == graph.tensors[7].num_bytes


def test_with_channels_last_the_same_tokens_lie_in_order() -> None:
    graph = make_graph(
        [IMAGE, WEIGHT, IMAGE, TOKENS, TOKENS], [make_conv((0, 1), (2,), channels_last=True), add((2, 3), (4,))]
    )
    conv, position = mark_orders(graph).ops
    assert conv.attrs["turned_bytes"] == graph.tensors[0].num_bytes
    assert "turned_bytes" not in position.attrs


def test_convolutions_of_tokens_find_channels_last_and_their_gradients_too() -> None:
    shapes = [TOKENS, IMAGE, WEIGHT, IMAGE, IMAGE, IMAGE, WEIGHT]
    graph = make_graph(
        shapes,
        [
            make_op("copy", (0,), (1,), function="cast", numel=1),
            make_conv((1, 2), (3,)),
            make_op("norm", (3,), (4,), function="batch_norm", rows=CHANNELS, cols=BATCH * SIDE * SIDE),
            make_conv((4, 1), (6,), **{"pass": "grad_weight"}),
        ],
    )
    cast, conv, norm, gradient = mark_orders(graph).ops
    assert "turned_bytes" not in cast.attrs
    assert all(op.attrs["channels_last"] for op in (conv, norm, gradient))


def test_a_convolution_copies_a_slice_of_channels_first() -> None:
    wide = (BATCH, 2 * CHANNELS, SIDE, SIDE)
    graph = make_graph([wide, WEIGHT, IMAGE], [make_conv((0, 1), (2,))])
    assert mark_orders(graph).ops[0].attrs["turned_bytes"] == graph.tensors[2].num_bytes


def test_graphs_without_convolutions_stay_as_they_are() -> None:
    graph = make_graph([TOKENS, TOKENS, TOKENS], [add((0, 1), (2,))])
    assert mark_orders(graph) is graph
