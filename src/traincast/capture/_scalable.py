"""One model recorded at two batch sizes to a graph for every batch size."""

from collections.abc import Callable
from typing import Any

from traincast.capture._folding import fold_alike
from traincast.capture._trace import capture
from traincast.errors import CaptureFailed, InvalidInput
from traincast.spec import Graph, Op, Scalable

TOLERANCE = 1.01


def capture_scalable(
    build: Any, make_inputs: Callable[[int], Any], *, batches: tuple[int, int], **options: Any
) -> Scalable:
    """`make_inputs(batch)` makes the inputs; a `target`, when given, is a function of the batch too."""
    small_batch, large_batch = batches
    if not 1 <= small_batch < large_batch:
        raise InvalidInput(f"batches {batches}; two rising sizes of at least 1 are needed")
    target = options.pop("target", None)

    def record(batch: int) -> Graph:
        return capture(
            build, lambda: make_inputs(batch), target=None if target is None else (lambda: target(batch)),
            batch_size=batch, folded=False, **options,
        )  # fmt: skip

    graphs = [record(batch) for batch in batches]
    if _grows_faster(*graphs):
        graphs.append(record(2 * large_batch))
    try:
        folded = fold_alike(graphs)
    except InvalidInput as error:
        raise CaptureFailed(
            f"{graphs[0].name} runs other operations at another batch; record it at one batch"
        ) from error
    scalable = Scalable(small=folded[0], large=folded[1])
    for measured in folded[2:]:
        _check(scalable, measured)
    return scalable


def _amounts(op: Op) -> tuple[float, ...]:
    return (op.flop or 0.0, op.bytes_read, op.bytes_written)


def _grows_faster(small: Graph, large: Graph) -> bool:
    """Whether any amount grows by more than the batch does: then two sizes do not say how."""
    growth = large.batch_size / small.batch_size
    pairs = zip(small.ops, large.ops, strict=False)
    return any(
        high > TOLERANCE * growth * low for a, b in pairs for low, high in zip(_amounts(a), _amounts(b), strict=True)
    )


def _check(scalable: Scalable, measured: Graph) -> None:
    for op, real in zip(scalable.at(measured.batch_size).ops, measured.ops, strict=True):
        if any(abs(a - b) > (TOLERANCE - 1) * b for a, b in zip(_amounts(op), _amounts(real), strict=True)):
            where = f" in {op.layer}" if op.layer else ""
            raise CaptureFailed(
                f"{measured.name} does not scale with the batch: {op.name}{where} grows faster; record it at the batch you need"
            )
