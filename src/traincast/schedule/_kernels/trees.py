"""Waiting jobs of one class in order, as a tree of smallest estimates."""

from typing import Any


def set_leaf(tree: Any, base: int, leaves: int, position: int, value: float) -> None:
    node = leaves + position
    tree[base + node] = value
    node >>= 1
    while node >= 1:
        left = tree[base + 2 * node]
        right = tree[base + 2 * node + 1]
        smaller = left if left < right else right
        if tree[base + node] == smaller:
            return
        tree[base + node] = smaller
        node >>= 1


def first_leaf(tree: Any, base: int, leaves: int, now: float, rate: float, bound: float) -> int:
    """The first job in the class that would end by `bound` if started now at this rate; -1 if none."""
    if now + tree[base + 1] / rate > bound:
        return -1
    node = 1
    while node < leaves:
        node *= 2
        if now + tree[base + node] / rate > bound:
            node += 1
    return node - leaves
