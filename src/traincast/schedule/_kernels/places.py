"""Where a job of one kind would go: by bitmaps where nodes are alike to it, else by a look at every node."""

from traincast.schedule._kernels.nodes import (
    CONSOLIDATED,
    SPREAD,
    Kinds,
    Nodes,
    add_part,
    change,
    count_beside,
    fits_pool,
    take_consolidated,
)

ROUNDING = 1e-6


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
        elif scan_pool(kind, at, nodes, kinds):
            return at
    return -1


def rate_at(kind: int, at: int, nodes: Nodes, kinds: Kinds) -> float:
    """How fast a job of this kind is at the place that was found last."""
    rate: float = nodes.spot_rate[0]
    if kinds.scanned[kind] == 0:
        rate = kinds.rate[3 * at] if kinds.gpus[kind] <= kinds.usable[at] else kinds.rate[3 * at + 1]
    return rate


def take_place(job: int, at: int, nodes: Nodes, kinds: Kinds) -> None:
    """Give the job the place that was found last."""
    kind = kinds.of_job[job]
    if kinds.scanned[kind] == 0:
        take_consolidated(job, kinds.gpus[kind], kinds.pools[at], nodes)
        return
    for spot in range(nodes.spot_size[0]):
        node = nodes.spot_node[spot]
        add_part(job, node, nodes.spot_gpus[spot], nodes)
        change(node, -nodes.spot_gpus[spot], nodes)
        if kinds.beside[kind] == 1:
            count_beside(node, nodes.spot_gpus[spot], kind, -1, nodes, kinds)


def scan_pool(kind: int, at: int, nodes: Nodes, kinds: Kinds) -> bool:
    """Look at every node of one pool."""
    need = kinds.gpus[kind]
    pool = kinds.pools[at]
    nodes.spot_size[0] = 0
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


def look_at_nodes(kind: int, pool: int, nodes: Nodes, kinds: Kinds) -> int:
    """GPUs that each node of a pool has for this kind (`avail`), and how many that is in all."""
    total = 0
    for node in range(nodes.first[pool], nodes.first[pool + 1]):
        count = nodes.free[node]
        if kinds.beside[kind] == 1 and count > 0:
            usable = count_usable(kind, nodes.width[pool], nodes.cpus[node], nodes.memory[node], kinds)
            count = max(min(count, usable), 0)
        nodes.avail[node] = count
        total += count
    return total


def count_usable(kind: int, width: int, cpus: float, memory: float, kinds: Kinds) -> int:
    """GPUs of a node for which so many CPUs and so much memory are enough."""
    most = width
    per_cpu = kinds.cpus[kind]
    per_byte = kinds.memory[kind]
    if per_cpu > 0.0 and cpus < per_cpu * most:
        most = int(cpus / per_cpu + ROUNDING)
    if per_byte > 0.0 and memory < per_byte * most:
        most = int(memory / per_byte + ROUNDING)
    return most


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
