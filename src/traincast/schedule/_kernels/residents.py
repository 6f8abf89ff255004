"""Who runs on each node, and which nodes hold only jobs from some place in line on.

Every node has a number: the place in line of the first job on it, BIG if it is empty. A tree over nodes keeps the largest
number below each of its branches, so that the next node whose jobs all stand behind somebody is found in logarithmic time.
"""

from typing import Any, NamedTuple

BIG = 1e300


class Residents(NamedTuple):
    """The parts of a node are a chain in both directions from `first[node]` on; `owner` is the job of a part. `tree` has two
    entries per leaf. `stale` is 1 while places in line have moved since it was made. Nothing is kept where `first` is empty."""

    first: Any
    after: Any
    before: Any
    owner: Any
    tree: Any
    stale: Any


def set_number(node: int, number: float, tree: Any) -> None:
    at = (len(tree) >> 1) + node
    tree[at] = number
    at >>= 1
    while at >= 1:
        left = tree[2 * at]
        right = tree[2 * at + 1]
        larger = left if left > right else right
        if tree[at] == larger:
            return
        tree[at] = larger
        at >>= 1


def settle_in(job: int, position: Any, head: Any, part_node: Any, part_next: Any, residents: Residents) -> None:
    """A job begins on its nodes."""
    if len(residents.first) == 0:
        return
    number = position[job]
    part = head[job]
    while part >= 0:
        node = part_node[part]
        other = residents.first[node]
        residents.owner[part] = job
        residents.before[part] = -1
        residents.after[part] = other
        if other >= 0:
            residents.before[other] = part
        residents.first[node] = part
        if number < residents.tree[(len(residents.tree) >> 1) + node]:
            set_number(node, number, residents.tree)
        part = part_next[part]


def move_out(job: int, position: Any, head: Any, part_node: Any, part_next: Any, residents: Residents) -> None:
    """A job leaves its nodes, which still stand in its chain."""
    if len(residents.first) == 0:
        return
    part = head[job]
    while part >= 0:
        node = part_node[part]
        ahead = residents.before[part]
        behind = residents.after[part]
        if ahead >= 0:
            residents.after[ahead] = behind
        else:
            residents.first[node] = behind
        if behind >= 0:
            residents.before[behind] = ahead
        if position[job] <= residents.tree[(len(residents.tree) >> 1) + node]:
            set_number(node, first_number(node, position, residents), residents.tree)
        part = part_next[part]


def first_number(node: int, position: Any, residents: Residents) -> float:
    lowest: float = BIG
    part = residents.first[node]
    while part >= 0:
        if position[residents.owner[part]] < lowest:
            lowest = position[residents.owner[part]]
        part = residents.after[part]
    return lowest


def number_anew(position: Any, residents: Residents) -> None:
    """The tree, after places in line have moved."""
    tree = residents.tree
    leaves = len(tree) >> 1
    for node in range(len(residents.first)):
        tree[leaves + node] = first_number(node, position, residents)
    for at in range(leaves - 1, 0, -1):
        tree[at] = tree[2 * at] if tree[2 * at] > tree[2 * at + 1] else tree[2 * at + 1]
    residents.stale[0] = 0


def next_behind(node: int, number: float, tree: Any) -> int:
    """The first node from this one on with at least this number; -1 if there is none."""
    leaves = len(tree) >> 1
    if node >= leaves:
        return -1
    at = leaves + node
    while tree[at] < number:
        while at & 1 == 1:
            at >>= 1
        if at == 0:
            return -1
        at += 1
    while at < leaves:
        at *= 2
        if tree[at] < number:
            at += 1
    return at - leaves


def is_cleared(
    node: int, number: float, job: int, position: Any, free: Any, width: int, residents: Residents
) -> bool:  # fmt: skip
    """Whether a node that is in service holds nobody before this place in line, of which ties go by job."""
    part = residents.first[node]
    if part < 0:
        return bool(free[node] == width)
    first = residents.tree[(len(residents.tree) >> 1) + node]
    while part >= 0 and first == number:
        if position[residents.owner[part]] == number and residents.owner[part] < job:
            return False
        part = residents.after[part]
    return bool(first >= number)
