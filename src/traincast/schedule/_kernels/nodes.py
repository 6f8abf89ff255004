"""Free GPUs of equal nodes: one bitmap of nodes per number of free GPUs; a width of 0 means counting only."""

import math
from typing import Any, NamedTuple

BITS = 62


class Nodes(NamedTuple):
    """`hist` = (free GPUs, nodes with 0, 1, ... width free GPUs). What job j holds: whole nodes chained from `held[j]`, the part
    of a node in `last[j]`."""

    free: Any
    bits: Any
    words: int
    hist: Any
    width: int
    held: Any
    chain: Any
    last: Any


def low_bit(word: int) -> int:
    # A power of two is exact as a float, and frexp is the one bit search that both paths share.
    return math.frexp(float(word & -word))[1] - 1


def flip(nodes: Nodes, free: int, node: int) -> None:
    """Behind the bitmaps lies a second level: one bit for each word that is not empty."""
    bits = nodes.bits
    words = nodes.words
    word = node // BITS
    at = free * words + word
    before = bits[at]
    bits[at] = before ^ (1 << (node % BITS))
    if before == 0 or bits[at] == 0:
        top = (nodes.width + 1) * words + free * ((words + BITS - 1) // BITS) + word // BITS
        bits[top] = bits[top] ^ (1 << (word % BITS))


def change(node: int, by: int, nodes: Nodes) -> None:
    before = nodes.free[node]
    after = before + by
    nodes.free[node] = after
    flip(nodes, before, node)
    flip(nodes, after, node)
    nodes.hist[1 + before] -= 1
    nodes.hist[1 + after] += 1


def any_with(need: int, most: int, hist: Any) -> bool:
    for count in range(need, most + 1):  # noqa: SIM110 (numba compiles no generators)
        if hist[1 + count] > 0:
            return True
    return False


def tightest(need: int, nodes: Nodes) -> int:
    words = nodes.words
    tops = (words + BITS - 1) // BITS
    for count in range(need, nodes.width + 1):
        if nodes.hist[1 + count] == 0:
            continue
        base = (nodes.width + 1) * words + count * tops
        for top in range(tops):
            if nodes.bits[base + top] != 0:
                word = top * BITS + low_bit(nodes.bits[base + top])
                return word * BITS + low_bit(nodes.bits[count * words + word])
    return -1


def fits(need: int, hist: Any, width: int) -> bool:
    if need > hist[0]:
        return False
    if width == 0:
        return True
    if need <= width:
        return any_with(need, width, hist)
    full = need // width
    rest = need - full * width
    if hist[1 + width] < full:
        return False
    return rest == 0 or hist[1 + width] > full or any_with(rest, width - 1, hist)


def take(job: int, need: int, nodes: Nodes) -> None:
    """Give a job that fits its nodes."""
    nodes.hist[0] -= need
    nodes.held[job] = -1
    nodes.last[job] = -1
    width = nodes.width
    if width == 0:
        return
    if need <= width:
        node = tightest(need, nodes)
        nodes.last[job] = node
        change(node, -need, nodes)
        return
    full = need // width
    rest = need - full * width
    for _ in range(full):
        node = tightest(width, nodes)
        change(node, -width, nodes)
        nodes.chain[node] = nodes.held[job]
        nodes.held[job] = node
    if rest:
        node = tightest(rest, nodes)
        nodes.last[job] = node
        change(node, -rest, nodes)


def shift(job: int, need: int, sign: int, nodes: Nodes) -> None:
    """Give a job's nodes back (sign 1) or take the very same nodes again (sign -1)."""
    nodes.hist[0] += sign * need
    if nodes.width == 0:
        return
    node = nodes.held[job]
    rest = need
    while node >= 0:
        change(node, sign * nodes.width, nodes)
        rest -= nodes.width
        node = nodes.chain[node]
    if nodes.last[job] >= 0:
        change(nodes.last[job], sign * rest, nodes)
