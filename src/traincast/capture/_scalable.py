"""One model recorded at two batch sizes to a graph for every batch size."""

from collections.abc import Callable
from typing import Any

from traincast.capture._folding import fold_alike
from traincast.capture._trace import capture
from traincast.errors import CaptureFailed, InvalidInput
from traincast.spec import Scalable


def capture_scalable(
    build: Any, make_inputs: Callable[[int], Any], *, batches: tuple[int, int], **options: Any
) -> Scalable:
    """`make_inputs(batch)` makes the inputs; a `target`, when given, is a function of the batch too."""
    small_batch, large_batch = batches
    if not 1 <= small_batch < large_batch:
        raise InvalidInput(f"batches {batches}; two rising sizes of at least 1 are needed")
    target = options.pop("target", None)
    graphs = [
        capture(
            build,
            lambda batch=batch: make_inputs(batch),
            target=None if target is None else (lambda batch=batch: target(batch)),
            batch_size=batch,
            folded=False,
            **options,
        )
        for batch in batches
    ]
    try:
        small, large = fold_alike(graphs)
    except InvalidInput as error:
        raise CaptureFailed(
            f"{graphs[0].name} runs other operations at another batch; record it at one batch"
        ) from error
    return Scalable(small=small, large=large)
