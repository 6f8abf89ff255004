"""Free GPUs of equal nodes: one bitmap of nodes per number of free GPUs; a width of 0 means counting only."""

import math
from typing import Any

BITS = 62


def low_bit(word: int) -> int:
    # A power of two is exact as a float, and frexp is the one bit search that both paths share.
    return math.frexp(float(word & -word))[1] - 1


def flip(bits: Any, words: int, width: int, free: int, node: int) -> None:
    """Behind the bitmaps lies a second level: one bit for each word that is not empty."""
    word = node // BITS
    at = free * words + word
    before = bits[at]
    bits[at] = before ^ (1 << (node % BITS))
    if before == 0 or bits[at] == 0:
        top = (width + 1) * words + free * ((words + BITS - 1) // BITS) + word // BITS
        bits[top] = bits[top] ^ (1 << (word % BITS))


def change(node: int, by: int, free: Any, bits: Any, words: int, state: Any, width: int) -> None:
    """`state` = (free GPUs, nodes with 0, 1, ... width free GPUs)."""
    before = free[node]
    after = before + by
    free[node] = after
    flip(bits, words, width, before, node)
    flip(bits, words, width, after, node)
    state[1 + before] -= 1
    state[1 + after] += 1


def any_with(need: int, most: int, state: Any) -> bool:
    for count in range(need, most + 1):  # noqa: SIM110 (numba compiles no generators)
        if state[1 + count] > 0:
            return True
    return False


def tightest(need: int, most: int, bits: Any, words: int, state: Any, width: int) -> int:
    tops = (words + BITS - 1) // BITS
    for count in range(need, most + 1):
        if state[1 + count] == 0:
            continue
        base = (width + 1) * words + count * tops
        for top in range(tops):
            if bits[base + top] != 0:
                word = top * BITS + low_bit(bits[base + top])
                return word * BITS + low_bit(bits[count * words + word])
    return -1


def fits(need: int, state: Any, width: int) -> bool:
    if need > state[0]:
        return False
    if width == 0:
        return True
    if need <= width:
        return any_with(need, width, state)
    full = need // width
    rest = need - full * width
    if state[1 + width] < full:
        return False
    return rest == 0 or state[1 + width] > full or any_with(rest, width - 1, state)


def take(
    job: int, need: int, free: Any, bits: Any, words: int, state: Any, width: int, held: Any, chain: Any, last: Any
) -> None:
    """Give a job that fits its nodes: whole nodes chained from `held[job]`, the part of a node in `last[job]`."""
    state[0] -= need
    held[job] = -1
    last[job] = -1
    if width == 0:
        return
    if need <= width:
        node = tightest(need, width, bits, words, state, width)
        last[job] = node
        change(node, -need, free, bits, words, state, width)
        return
    full = need // width
    rest = need - full * width
    for _ in range(full):
        node = tightest(width, width, bits, words, state, width)
        change(node, -width, free, bits, words, state, width)
        chain[node] = held[job]
        held[job] = node
    if rest:
        node = tightest(rest, width, bits, words, state, width)
        last[job] = node
        change(node, -rest, free, bits, words, state, width)


def shift(
    job: int,
    need: int,
    sign: int,
    free: Any,
    bits: Any,
    words: int,
    state: Any,
    width: int,
    held: Any,
    chain: Any,
    last: Any,
) -> None:
    """Give a job's nodes back (sign 1) or take the very same nodes again (sign -1)."""
    state[0] += sign * need
    if width == 0:
        return
    node = held[job]
    rest = need
    while node >= 0:
        change(node, sign * width, free, bits, words, state, width)
        rest -= width
        node = chain[node]
    if last[job] >= 0:
        change(last[job], sign * rest, free, bits, words, state, width)
