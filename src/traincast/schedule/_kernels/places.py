"""Where a job of one kind would go: by bitmaps where nodes are alike to it, else by a look at every node."""

from traincast.schedule._kernels.nodes import (
    BITS,
    CONSOLIDATED,
    SPREAD,
    Kinds,
    Nodes,
    add_part,
    change,
    count_beside,
    count_usable,
    fits_pool,
    low_bit,
    recount,
    take_consolidated,
    tightest,
)

POSTPONED = -1
"""`Nodes.spot_size`: there is a place, and it has not been picked yet."""


def find_place(kind: int, nodes: Nodes, kinds: Kinds) -> int:
    """The entry of `kinds.pools` that has room for a job of this kind, -1 if none has. For scanned kinds the placement stands in
    `spot` until the next look."""
    need = kinds.gpus[kind]
    for at in range(kinds.pool_first[kind], kinds.pool_first[kind + 1]):
        pool = kinds.pools[at]
        if need > nodes.hist[nodes.hist_at[pool]]:
            continue
        if kinds.scanned[kind] == 0:
            if fits_pool(need, pool, nodes):
                return at
        elif kinds.of_class[kind] >= 0:
            if fits_class(need, at, kinds.of_class[kind], nodes, kinds):
                if runs_anywhere(at, kinds):
                    nodes.spot_size[0] = POSTPONED
                    return at
                if scan_pool(kind, at, nodes, kinds):
                    return at
        elif is_postponed(kind, at, nodes, kinds):
            if nodes.rule != CONSOLIDATED or fits_pool(need, pool, nodes):
                nodes.spot_size[0] = POSTPONED
                return at
        elif scan_pool(kind, at, nodes, kinds):
            return at
    return -1


def is_postponed(kind: int, at: int, nodes: Nodes, kinds: Kinds) -> bool:
    """Whether it is certain by counts alone that there is a place, so that it need not be picked before it is taken: GPUs alone
    are asked for, on nodes whose bitmaps are kept, at a speed that is never 0."""
    if kinds.beside[kind] == 1 or nodes.room[0] < 0 or nodes.width[kinds.pools[at]] == 0:
        return False
    return runs_anywhere(at, kinds)


def runs_anywhere(at: int, kinds: Kinds) -> bool:
    return bool(kinds.rate[3 * at] > 0.0 and kinds.rate[3 * at + 1] > 0.0 and kinds.rate[3 * at + 2] > 0.0)


def fits_class(need: int, at: int, of_class: int, nodes: Nodes, kinds: Kinds) -> bool:
    """Whether the rule of placement finds nodes where CPUs and memory count too."""
    pool = kinds.pools[at]
    usable = kinds.usable[at]
    base = (of_class * len(nodes.width) + pool) * len(nodes.levels)
    steps = nodes.steps
    if nodes.rule != CONSOLIDATED:
        total = 0
        for level in range(1, usable + 1):
            total += level * steps[base + level]
        return bool(total >= need)
    full = need // usable if need > usable else 0
    rest = need - full * usable
    if steps[base + usable] < full:
        return False
    if rest == 0 or steps[base + usable] > full:
        return True
    for level in range(rest, usable):  # noqa: SIM110 (numba compiles no generators)
        if steps[base + level] > 0:
            return True
    return False


def rate_at(kind: int, at: int, nodes: Nodes, kinds: Kinds) -> float:
    """How fast a job of this kind is at the place that was found last."""
    if kinds.scanned[kind] == 0:
        near: float = kinds.rate[3 * at] if kinds.gpus[kind] <= kinds.usable[at] else kinds.rate[3 * at + 1]
        return near
    if nodes.spot_size[0] == POSTPONED:
        if kinds.rate[3 * at] == kinds.rate[3 * at + 1] and kinds.rate[3 * at] == kinds.rate[3 * at + 2]:
            same: float = kinds.rate[3 * at]
            return same
        pick_place(kind, at, nodes, kinds)
    rate: float = nodes.spot_rate[0]
    return rate


def pick_place(kind: int, at: int, nodes: Nodes, kinds: Kinds) -> None:
    """The place that was postponed: by bitmaps where one node is enough or any will do, else by a look at every node."""
    need = kinds.gpus[kind]
    pool = kinds.pools[at]
    node = -1
    if kinds.of_class[kind] >= 0:
        scan_pool(kind, at, nodes, kinds)
        return
    if nodes.rule != SPREAD and need <= nodes.width[pool]:
        node = tightest(need, pool, nodes)
    nodes.spot_size[0] = 0
    if node >= 0:
        add_spot(node, need, nodes)
    elif nodes.rule == SPREAD:
        spread_over(need, pool, nodes)
    else:
        scan_pool(kind, at, nodes, kinds)
    nodes.spot_rate[0] = kinds.rate[3 * at + distance(nodes)]


def spread_over(need: int, pool: int, nodes: Nodes) -> None:
    """Any free GPUs, from the emptiest nodes first."""
    words = nodes.words[pool]
    for level in range(nodes.width[pool], 0, -1):
        if nodes.hist[nodes.hist_at[pool] + 1 + level] == 0:
            continue
        base = nodes.bits_at[pool] + level * words
        for word in range(words):
            bits = nodes.bits[base + word]
            while bits != 0:
                count = level if level < need else need
                add_spot(nodes.first[pool] + word * BITS + low_bit(bits), count, nodes)
                need -= count
                if need == 0:
                    return
                bits = bits & (bits - 1)


def take_place(job: int, at: int, nodes: Nodes, kinds: Kinds) -> None:
    """Give the job the place that was found last."""
    kind = kinds.of_job[job]
    if kinds.scanned[kind] == 0:
        take_consolidated(job, kinds.gpus[kind], kinds.pools[at], nodes)
        return
    if nodes.spot_size[0] == POSTPONED:
        pick_place(kind, at, nodes, kinds)
    for spot in range(nodes.spot_size[0]):
        node = nodes.spot_node[spot]
        add_part(job, node, nodes.spot_gpus[spot], nodes)
        change(node, -nodes.spot_gpus[spot], nodes)
        if kinds.beside[kind] == 1:
            count_beside(node, nodes.spot_gpus[spot], kind, -1, nodes, kinds)
        recount(node, nodes)


def scan_pool(kind: int, at: int, nodes: Nodes, kinds: Kinds) -> bool:
    """Look at every node of one pool."""
    need = kinds.gpus[kind]
    pool = kinds.pools[at]
    nodes.spot_size[0] = 0
    alone = nodes.rule == CONSOLIDATED and need <= kinds.usable[at] and nodes.width[pool] > 0
    if alone and kinds.beside[kind] == 1 and nodes.room[0] >= 0 and kinds.of_class[kind] < 0:
        return find_alone(kind, at, nodes, kinds)
    if look_at_nodes(kind, pool, nodes, kinds) < need:
        return False
    if nodes.width[pool] == 0:
        add_spot(nodes.first[pool], need, nodes)
    elif nodes.rule == CONSOLIDATED:
        if not pick_consolidated(need, pool, kinds.usable[at], nodes):
            return False
    elif nodes.rule == SPREAD:
        fill(need, pool, -1, kinds.usable[at], nodes)
    else:
        pick_nearest(need, pool, kinds.usable[at], nodes)
    nodes.spot_rate[0] = kinds.rate[3 * at + distance(nodes)]
    return bool(nodes.spot_rate[0] > 0.0)


def find_alone(kind: int, at: int, nodes: Nodes, kinds: Kinds) -> bool:
    """The tightest single node, among those with enough free GPUs, when CPUs and memory count."""
    need = kinds.gpus[kind]
    pool = kinds.pools[at]
    words = nodes.words[pool]
    width = nodes.width[pool]
    best = -1
    least = 0
    for level in range(need, width + 1):
        if nodes.hist[nodes.hist_at[pool] + 1 + level] == 0:
            continue
        base = nodes.bits_at[pool] + level * words
        for word in range(words):
            bits = nodes.bits[base + word]
            while bits != 0:
                node = nodes.first[pool] + word * BITS + low_bit(bits)
                bits = bits & (bits - 1)
                usable = count_usable(kinds.cpus[kind], kinds.memory[kind], width, nodes.cpus[node], nodes.memory[node])
                count = min(usable, level)
                if count >= need and (best < 0 or count < least or (count == least and node < best)):
                    best = node
                    least = count
    if best < 0:
        return False
    add_spot(best, need, nodes)
    nodes.spot_rate[0] = kinds.rate[3 * at]
    return bool(nodes.spot_rate[0] > 0.0)


def look_at_nodes(kind: int, pool: int, nodes: Nodes, kinds: Kinds) -> int:
    """GPUs that each node of a pool has for this kind (`avail`), and how many that is in all."""
    total = 0
    width = nodes.width[pool]
    base = kinds.of_class[kind] * len(nodes.pool_of)
    for node in range(nodes.first[pool], nodes.first[pool + 1]):
        count = nodes.free[node]
        if base >= 0:
            count = nodes.seen[base + node]
        elif kinds.beside[kind] == 1 and count > 0:
            usable = count_usable(kinds.cpus[kind], kinds.memory[kind], width, nodes.cpus[node], nodes.memory[node])
            count = max(min(count, usable), 0)
        nodes.avail[node] = count
        total += count
    return total


def add_spot(node: int, count: int, nodes: Nodes) -> None:
    nodes.spot_node[nodes.spot_size[0]] = node
    nodes.spot_gpus[nodes.spot_size[0]] = count
    nodes.spot_size[0] += 1


def tightest_seen(need: int, pool: int, nodes: Nodes) -> int:
    best = -1
    for node in range(nodes.first[pool], nodes.first[pool + 1]):
        if nodes.avail[node] >= need and (best < 0 or nodes.avail[node] < nodes.avail[best]):
            best = node
    return best


def pick_consolidated(need: int, pool: int, width: int, nodes: Nodes) -> bool:
    rest = need
    if need > width:
        full = need // width
        rest = need - full * width
        node = nodes.first[pool]
        while full > 0 and node < nodes.first[pool + 1]:
            if nodes.avail[node] == width:
                add_spot(node, width, nodes)
                nodes.avail[node] = 0
                full -= 1
            node += 1
        if full > 0:
            return False
    if rest > 0:
        node = tightest_seen(rest, pool, nodes)
        if node < 0:
            return False
        add_spot(node, rest, nodes)
    return True


def fill(need: int, pool: int, rack: int, width: int, nodes: Nodes) -> None:
    """Any free GPUs, from the emptiest nodes first."""
    for level in range(width + 1):
        nodes.levels[level] = 0
    for node in range(nodes.first[pool], nodes.first[pool + 1]):
        nodes.levels[nodes.avail[node]] += 1
    for level in range(width, 0, -1):
        if nodes.levels[level] == 0:
            continue
        for node in range(nodes.first[pool], nodes.first[pool + 1]):
            if nodes.avail[node] == level and (rack < 0 or nodes.rack_of[node] == rack):
                count = level if level < need else need
                add_spot(node, count, nodes)
                need -= count
                if need == 0:
                    return


def pick_nearest(need: int, pool: int, width: int, nodes: Nodes) -> None:
    """One node if possible, else one rack (the tightest), else any nodes."""
    if need <= width:
        node = tightest_seen(need, pool, nodes)
        if node >= 0:
            add_spot(node, need, nodes)
            return
    low = nodes.rack_of[nodes.first[pool]]
    high = nodes.rack_of[nodes.first[pool + 1] - 1]
    for rack in range(low, high + 1):
        nodes.in_rack[rack] = 0
    for node in range(nodes.first[pool], nodes.first[pool + 1]):
        nodes.in_rack[nodes.rack_of[node]] += nodes.avail[node]
    best = -1
    for rack in range(low, high + 1):
        if nodes.in_rack[rack] >= need and (best < 0 or nodes.in_rack[rack] < nodes.in_rack[best]):
            best = rack
    fill(need, pool, best, width, nodes)


def distance(nodes: Nodes) -> int:
    """0 on one node, 1 in one rack, 2 across racks."""
    if nodes.spot_size[0] <= 1:
        return 0
    for spot in range(1, nodes.spot_size[0]):
        if nodes.rack_of[nodes.spot_node[spot]] != nodes.rack_of[nodes.spot_node[0]]:
            return 2
    return 1
