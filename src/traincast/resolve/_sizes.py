"""Samples of several sizes to the steps that train on them: texts and images padded, bucketed or grouped."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist

from traincast.catalog import read_image_size
from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.resolve._data import read_lengths
from traincast.spec import Notes, WorkloadOptions

BATCHINGS = ("padded", "bucketed", "grouped")
NUM_SIZES = 5
"""Of a continuous distribution, each as frequent as the others."""
RAREST = 1e-4
"""Share of samples that are longer than the longest whose memory is looked at."""
SIDE_STEP = 32
"""Sides of a range are multiples of it: of every usual patch and stride."""


@noun
class Sized:
    """The question's model on samples of one size."""

    label: str
    options: WorkloadOptions
    share: float


@noun
class Sizes:
    usual: WorkloadOptions
    """On the largest size that is no larger than the mean."""
    others: tuple[Sized, ...]
    is_grouped: bool
    tokens: int | None
    """Of a sample before any padding; None: images."""
    assumptions: Notes = ()


def list_sizes(options: WorkloadOptions, *, usual_seq: int | None) -> Sizes | None:
    """The sizes that a question's samples have; None where all have one."""
    if options.image_sizes is not None and options.sample_tokens is not None:
        raise InvalidInput("image_sizes and sample_tokens both say how samples differ; give one of them")
    if options.image_sizes is None and (options.sample_tokens is None or options.packing):
        if options.size_batching is not None:
            raise InvalidInput("size_batching needs samples of several sizes; give --image-sizes or --sample-tokens")
        return None
    how = options.size_batching or ("padded" if options.image_sizes is None else "bucketed")
    if how not in BATCHINGS:
        raise InvalidInput(f"size_batching = {how!r}; allowed: {', '.join(BATCHINGS)}")
    bare = replace(options, size_batching=None, image_sizes=None, sample_tokens=None, sample_p95=None)
    if options.image_sizes is not None:
        return _images(options.image_sizes, bare, how)
    return _texts(options, bare, how, usual_seq=usual_seq)


def _images(text: str, bare: WorkloadOptions, how: str) -> Sizes:
    if bare.input_size is not None:
        raise InvalidInput(f"input_size = {bare.input_size} and image_sizes both say the size of images; give one")
    found = read_image_sizes(text)
    run = pad_to_largest(found, bare.batch or 1) if how == "padded" else found
    area, own = (sum(math.prod(size) * share for size, share in sizes.items()) for sizes in (run, found))
    others = tuple(
        Sized(label=f"{_name(size)} pixels", options=replace(bare, input_size=_name(size)), share=share)
        for size, share in run.items()
    )
    smaller = [size for size in run if math.prod(size) <= area * (1 + 1e-9)]
    words = f"images of {', '.join(f'{_name(size)} ({share:.0%})' for size, share in found.items())} pixels are {how}"
    told = f"{words}: {1 - own / area:.0%} of what is computed is padding" if how == "padded" else words
    return Sizes(
        usual=replace(bare, input_size=_name(max(smaller, key=math.prod))),
        others=others,
        is_grouped=how == "grouped",
        tokens=None,
        assumptions=(told,),
    )


ImageSize = tuple[int, int]
"""Height and width in pixels."""


def _name(size: ImageSize) -> str:
    return str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"


def read_image_sizes(text: str) -> dict[ImageSize, float]:
    """The share of each size, from the smallest area; shares add up to 1."""
    low, dots, high = text.partition("..")
    try:
        if dots:
            first, last = read_image_size(low.strip()), read_image_size(high.strip())
            places = [index / (NUM_SIZES - 1) for index in range(NUM_SIZES)]
            pairs = [((_between(first[0], last[0], p), _between(first[1], last[1], p)), 1.0) for p in places]
        else:
            parts = [part.strip().partition(":") for part in text.split(",")]
            pairs = [(read_image_size(size), float(share) if colon else 1.0) for size, colon, share in parts]
    except (ValueError, InvalidInput) as error:
        raise InvalidInput(
            f"image_sizes = {text!r}; write sizes in pixels: 256..1024, 480x1333..800x1333, or with shares 224:0.6,384:0.4"
        ) from error
    if any(not 0 < share < math.inf for _, share in pairs):
        raise InvalidInput(f"image_sizes = {text!r}; shares must be above 0")
    total = sum(share for _, share in pairs)
    sizes = sorted({size for size, _ in pairs}, key=lambda size: (math.prod(size), size))
    return {size: sum(share for each, share in pairs if each == size) / total for size in sizes}


def _between(first: int, last: int, place: float) -> int:
    near = SIDE_STEP * round((first + (last - first) * place) / SIDE_STEP)
    return max(min(first, last), min(max(first, last), near))


def pad_to_largest(sizes: Mapping[ImageSize, float], batch: int) -> dict[ImageSize, float]:
    """How often each height is the largest of so many and each width too: what they are padded to."""
    heights, widths = ([0, *sorted({size[side] for size in sizes})] for side in (0, 1))

    def below(height: int, width: int) -> float:
        share = sum(share for size, share in sizes.items() if size[0] <= height and size[1] <= width)
        return min(1.0, share) ** batch

    shares = {
        (high, wide): below(high, wide) - below(low, wide) - below(high, narrow) + below(low, narrow)
        for low, high in itertools.pairwise(heights)
        for narrow, wide in itertools.pairwise(widths)
    }
    return {size: share for size, share in sorted(shares.items(), key=lambda one: math.prod(one[0])) if share > LEAST}


LEAST = 1e-9
"""Share below which a size is an error of rounding."""


def _texts(options: WorkloadOptions, bare: WorkloadOptions, how: str, *, usual_seq: int | None) -> Sizes:
    most = options.seq or usual_seq
    lengths = read_lengths(options, most)
    batch = options.batch or 1
    normal, sigma = NormalDist(), lengths.log_sigma

    def length_at(place: float) -> int:
        drawn = lengths.mean * math.exp(sigma * normal.inv_cdf(place) - sigma**2 / 2) if sigma else lengths.mean
        return max(1, round(min(drawn, most or math.inf)))

    places = [(index + 0.5) / NUM_SIZES for index in range(NUM_SIZES)]
    # The largest of b draws lies where the b-th root of its own place is.
    found = [length_at(place ** (1 / batch) if how == "padded" else place) for place in places]
    seqs = {seq: found.count(seq) / NUM_SIZES for seq in found}
    mean = sum(seq * share for seq, share in seqs.items())
    longest = max(length_at(1 - RAREST), max(seqs))
    seqs.setdefault(longest, 0.0)
    others = tuple(
        Sized(label=f"{seq:,} tokens", options=replace(bare, seq=seq), share=share) for seq, share in seqs.items()
    )
    wasted = max(0.0, 1 - min(lengths.mean, most or math.inf) / mean)
    if how == "padded":
        words = f"padded to the longest of {batch}, {mean:.0f} tokens on average: {wasted:.0%} of what is computed is padding"
        told = f"samples of {options.sample_tokens} tokens on average are {words} (--packing to change)"
    else:
        told = f"samples of {options.sample_tokens} tokens on average are {how} by their length"
    usual = max([seq for seq, share in seqs.items() if share and seq <= mean * (1 + 1e-9)], default=min(seqs))
    return Sizes(
        usual=replace(bare, seq=usual), others=others, is_grouped=how == "grouped", tokens=options.sample_tokens,
        assumptions=(told, f"memory is that of samples of {longest:,} tokens"),
    )  # fmt: skip
