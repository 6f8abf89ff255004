"""Samples of several sizes to the steps that train on them: texts and images padded, bucketed or grouped."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from traincast.errors import InvalidInput
from traincast.forecast._samples import read_lengths
from traincast.spec import WorkloadOptions

BATCHINGS = ("padded", "bucketed", "grouped")
NUM_SIZES = 5
"""Of a continuous distribution, each as frequent as the others."""
RAREST = 1e-4
"""Share of samples that are longer than the longest whose memory is looked at."""
SIDE_STEP = 32
"""Sides of a range are multiples of it: of every usual patch and stride."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """The question's model on samples of one size."""

    label: str
    options: WorkloadOptions
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    usual: WorkloadOptions
    """On the largest size that is no larger than the mean."""
    others: tuple[Sized, ...]
    is_grouped: bool
    tokens: int | None
    """Of a sample before any padding; None: images."""


def list_sizes(options: WorkloadOptions, said: list[str], *, usual_seq: int | None) -> Sizes | None:
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
        return _images(options.image_sizes, bare, how, said)
    return _texts(options, bare, how, said, usual_seq=usual_seq)


def _images(text: str, bare: WorkloadOptions, how: str, said: list[str]) -> Sizes:
    if bare.input_size is not None:
        raise InvalidInput(f"input_size = {bare.input_size} and image_sizes both say the size of images; give one")
    sides = read_sides(text)
    shares = [share for _, share in sides]
    if how == "padded":
        shares = share_of_largest(shares, bare.batch or 1)
    area = sum(side * side * share for (side, _), share in zip(sides, shares, strict=True))
    others = tuple(
        Sized(label=f"{side} pixels", options=replace(bare, input_size=side), share=share)
        for (side, _), share in zip(sides, shares, strict=True)
    )
    usual = max([side for side, _ in sides if side * side <= area * (1 + 1e-9)], default=sides[0][0])
    own = sum(side * side * share for side, share in sides)
    words = f"images of {', '.join(f'{side} ({share:.0%})' for side, share in sides)} pixels are {how}"
    said.append(f"{words}: {1 - own / area:.0%} of what is computed is padding" if how == "padded" else words)
    return Sizes(usual=replace(bare, input_size=usual), others=others, is_grouped=how == "grouped", tokens=None)


def read_sides(text: str) -> list[tuple[int, float]]:
    """(side in pixels, share) from the smallest; shares add up to 1."""
    low, dots, high = text.partition("..")
    try:
        if dots:
            first, last = int(low), int(high)
            steps = [first + (last - first) * index / (NUM_SIZES - 1) for index in range(NUM_SIZES)]
            near = [max(first, min(last, SIDE_STEP * round(side / SIDE_STEP))) for side in steps]
            pairs = [(side, 1.0) for side in near]
        else:
            parts = [part.strip().partition(":") for part in text.split(",")]
            pairs = [(int(side), float(share) if colon else 1.0) for side, colon, share in parts]
    except ValueError as error:
        raise InvalidInput(
            f"image_sizes = {text!r}; write sides in pixels: 256..1024, or with shares 224:0.6,384:0.4"
        ) from error
    if any(side < 1 or not 0 < share < math.inf for side, share in pairs):
        raise InvalidInput(f"image_sizes = {text!r}; sides must be at least 1 and shares above 0")
    total = sum(share for _, share in pairs)
    joined = {
        side: sum(share for _, share in same) / total
        for side, same in itertools.groupby(sorted(pairs), key=lambda pair: pair[0])
    }
    return list(joined.items())


def share_of_largest(shares: Sequence[float], batch: int) -> list[float]:
    """How often each size, from the smallest, is the largest of so many."""
    below = [0.0, *itertools.accumulate(shares)]
    return [min(high, 1.0) ** batch - low**batch for low, high in itertools.pairwise(below)]


def _texts(
    options: WorkloadOptions, bare: WorkloadOptions, how: str, said: list[str], *, usual_seq: int | None
) -> Sizes:
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
        said.append(f"samples of {options.sample_tokens} tokens on average are {words} (--packing to change)")
    else:
        said.append(f"samples of {options.sample_tokens} tokens on average are {how} by their length")
    said.append(f"memory is that of samples of {longest:,} tokens")
    usual = max([seq for seq, share in seqs.items() if share and seq <= mean * (1 + 1e-9)], default=min(seqs))
    return Sizes(
        usual=replace(bare, seq=usual), others=others, is_grouped=how == "grouped", tokens=options.sample_tokens
    )
