"""Binary heaps of (key, job) in flat arrays: `size[at]` entries from `base` on."""

from typing import Any


def push(keys: Any, items: Any, base: int, size: Any, at: int, key: float, item: int) -> None:
    child = size[at]
    size[at] = child + 1
    while child > 0:
        parent = (child - 1) >> 1
        other = keys[base + parent]
        if other < key or (other == key and items[base + parent] < item):
            break
        keys[base + child] = other
        items[base + child] = items[base + parent]
        child = parent
    keys[base + child] = key
    items[base + child] = item


def drop_top(keys: Any, items: Any, base: int, size: Any, at: int) -> None:
    count = size[at] - 1
    size[at] = count
    if count == 0:
        return
    key = keys[base + count]
    item = items[base + count]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= count:
            break
        right = child + 1
        if right < count and (
            keys[base + right] < keys[base + child]
            or (keys[base + right] == keys[base + child] and items[base + right] < items[base + child])
        ):
            child = right
        other = keys[base + child]
        if key < other or (key == other and item < items[base + child]):
            break
        keys[base + parent] = other
        items[base + parent] = items[base + child]
        parent = child
    keys[base + parent] = key
    items[base + parent] = item


def drop_item(keys: Any, items: Any, size: Any, item: int) -> None:
    """Take an entry out of the middle of a heap: it is lifted to the top and dropped there."""
    at = 0
    while at < size[0] and items[at] != item:
        at += 1
    if at == size[0]:
        return
    while at > 0:
        parent = (at - 1) >> 1
        keys[at] = keys[parent]
        items[at] = items[parent]
        at = parent
    drop_top(keys, items, 0, size, 0)


def forget_stale(keys: Any, items: Any, size: Any, expect: Any) -> None:
    """Drop the events of runs that were interrupted, when they fill the heap.

    A job moved at no cost still ends at the same moment, so an event may stand there twice: one is kept.
    """
    kept = 0
    for at in range(size[0]):
        if expect[items[at]] == keys[at]:
            expect[items[at]] = -1.0
            keys[kept] = keys[at]
            items[kept] = items[at]
            kept += 1
    size[0] = 0
    for at in range(kept):
        key = keys[at]
        item = items[at]
        expect[item] = key
        push(keys, items, 0, size, 0, key, item)
