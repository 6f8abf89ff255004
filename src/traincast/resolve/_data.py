"""What a question says of its samples: how long they are, and what of it a model's builder is not told."""

from dataclasses import replace

from traincast.errors import InvalidInput
from traincast.spec import Lengths, WorkloadOptions

DATA_FIELDS = ("sample_tokens", "sample_p95", "packing", "document_masks", "image_sizes", "size_batching", "loss_chunks",
               "gather_negatives", "ema")  # fmt: skip
USUAL_TAIL = 2.0


def without_data(options: WorkloadOptions) -> WorkloadOptions:
    """What the model's builder is told."""
    if all(getattr(options, name) is None for name in DATA_FIELDS):
        return options
    return replace(options, **dict.fromkeys(DATA_FIELDS))


def check_data(options: WorkloadOptions) -> None:
    """Refuse what says something about samples whose lengths nobody said."""
    if options.sample_tokens is not None:
        return
    unused = next((name for name in ("sample_p95", "packing") if getattr(options, name) is not None), None)
    if unused is not None:
        raise InvalidInput(f"{unused} needs the mean length of a sample; give --sample-tokens")


def read_lengths(options: WorkloadOptions, most: int | None) -> Lengths:
    mean = options.sample_tokens or 1
    tail = options.sample_p95 or round(USUAL_TAIL * mean)
    return Lengths(mean=mean, p95=max(mean, tail), longest=max(mean, most or 2**62))
