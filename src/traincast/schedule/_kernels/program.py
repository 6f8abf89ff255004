"""Max-min shares by an interior point that knows the program's shape: a block per job, tied by capacities and one level.

Every job i holds shares x of each type k. None is negative, those of a job sum to at most 1, those of a type take at most
its capacity, and `worth x >= level` for every job. Newton's matrix is a diagonal and three rank-one terms per job, so a step
costs the number of shares (Mehrotra, 1992). Start and steps stay feasible on both sides; near the end the point follows the
middle of the optimal face.
"""

from typing import Any

MOST_STEPS = 60
LEAST_EASE = 0.2
"""No step closes more of the gap than all but this, or the point would leave the middle and run into a corner."""


def raise_level(
    kinds: Any,
    close: float,
    worth: Any,
    gpus: Any,
    capacity: Any,
    x: Any,
    z: Any,
    rows: Any,
    types: Any,
    room: Any,
) -> float:
    """The largest common level; the shares are left in `x`.

    `kinds` counts the types by its length, which the compiler knows, so it unrolls the loops over them.
    It ends where the gap to the best possible level is at most `close` of the level.
    `rows` holds, per job, the slack and price of its time (0, 1), the slack and price of its level (2, 3), their changes
    (4 to 7), what complementarity lacks (8, 9) and two factors (10, 11). `types` holds slack and price of every
    capacity (0, 1), their changes (2, 3) and the lack (4). `room` is space for the changes of x and z, for what they lack, for
    two factors per share and for a small system.
    """
    dx, dz, cx, d, u, system = room
    num_types = len(kinds)
    num_jobs = len(gpus)
    num_rows = num_jobs * (num_types + 2) + num_types
    level = start_inside(kinds, worth, gpus, capacity, x, z, rows, types)
    gap = measure_gap(kinds, num_jobs, x, z, rows, types)
    for _ in range(MOST_STEPS):
        if gap <= close * level:
            break
        factor(kinds, worth, gpus, x, z, rows, types, d, u, system)
        lack(kinds, num_jobs, x, z, rows, types, dx, dz, cx, 0.0, 0.0)
        rise = direct(kinds, worth, gpus, rows, types, dx, dz, cx, d, u, system)
        ahead = longest(kinds, num_jobs, x, rows, types, dx, 0)
        behind = longest(kinds, num_jobs, z, rows, types, dz, 1)
        left = gap_after(kinds, num_jobs, x, z, rows, types, dx, dz, ahead, behind)
        ease = max((left / gap) ** 3, LEAST_EASE)
        lack(kinds, num_jobs, x, z, rows, types, dx, dz, cx, ease * gap / num_rows, 1.0)
        rise = direct(kinds, worth, gpus, rows, types, dx, dz, cx, d, u, system)
        ahead = min(0.995 * longest(kinds, num_jobs, x, rows, types, dx, 0), 1.0)
        behind = min(0.995 * longest(kinds, num_jobs, z, rows, types, dz, 1), 1.0)
        for at in range(num_jobs * num_types):
            cx[at] = x[at]
        move(kinds, num_jobs, x, z, rows, types, dx, dz, ahead, behind)
        left = measure_gap(kinds, num_jobs, x, z, rows, types)
        if gap < 1e-3 * level and not left < gap:  # rounding has the last word: keep the point before
            for at in range(num_jobs * num_types):
                x[at] = cx[at]
            break
        level += ahead * rise
        gap = left
    return level


def start_inside(kinds: Any, worth: Any, gpus: Any, capacity: Any, x: Any, z: Any, rows: Any, types: Any) -> float:
    """Half of an equal division, half the lowest level that it reaches, and prices that pay for it."""
    num_types = len(kinds)
    num_jobs = len(gpus)
    wanted = 0.0
    for job in range(num_jobs):
        wanted += gpus[job]
    level = 1e300
    harmonic = 0.0
    for job in range(num_jobs):
        reached = 0.0
        time = 1.0
        for kind in range(num_types):
            part = 0.5 * min(1.0 / num_types, capacity[kind] / wanted)
            x[job * num_types + kind] = part
            reached += worth[job * num_types + kind] * part
            time -= part
        rows[12 * job] = time
        rows[12 * job + 2] = reached
        harmonic += 1.0 / reached
        level = min(level, 0.5 * reached)
    total = 0.0
    for kind in range(num_types):
        total += capacity[kind]
        types[5 * kind] = capacity[kind] - wanted * x[kind]
    for kind in range(num_types):
        types[5 * kind + 1] = num_jobs / harmonic / total
    for job in range(num_jobs):
        base = job * num_types
        row = 12 * job
        # Jobs that reach more count less, or those that reach most would rule the prices.
        rows[row + 3] = 1.0 / (rows[row + 2] * harmonic)
        rows[row + 2] -= level
        most = 0.0
        for kind in range(num_types):
            most = max(most, worth[base + kind] * rows[row + 3] - gpus[job] * types[5 * kind + 1])
        rows[row + 1] = most + 1.0 / harmonic
        for kind in range(num_types):
            z[base + kind] = rows[row + 1] + gpus[job] * types[5 * kind + 1] - worth[base + kind] * rows[row + 3]
    return level


def measure_gap(kinds: Any, num_jobs: int, x: Any, z: Any, rows: Any, types: Any) -> float:
    num_types = len(kinds)
    gap = 0.0
    for at in range(num_jobs * num_types):
        gap += x[at] * z[at]
    for job in range(num_jobs):
        gap += rows[12 * job] * rows[12 * job + 1] + rows[12 * job + 2] * rows[12 * job + 3]
    for kind in range(num_types):
        gap += types[5 * kind] * types[5 * kind + 1]
    return gap


def gap_after(
    kinds: Any,
    num_jobs: int,
    x: Any,
    z: Any,
    rows: Any,
    types: Any,
    dx: Any,
    dz: Any,
    ahead: float,
    behind: float,
) -> float:
    num_types = len(kinds)
    gap = 0.0
    for at in range(num_jobs * num_types):
        gap += (x[at] + ahead * dx[at]) * (z[at] + behind * dz[at])
    for job in range(num_jobs):
        for pair in range(12 * job, 12 * job + 3, 2):
            gap += (rows[pair] + ahead * rows[pair + 4]) * (rows[pair + 1] + behind * rows[pair + 5])
    for kind in range(num_types):
        base = 5 * kind
        gap += (types[base] + ahead * types[base + 2]) * (types[base + 1] + behind * types[base + 3])
    return gap


def lack(
    kinds: Any,
    num_jobs: int,
    x: Any,
    z: Any,
    rows: Any,
    types: Any,
    dx: Any,
    dz: Any,
    cx: Any,
    goal: float,
    bend: float,
) -> None:
    """What every product of slack and price lacks to `goal`; `bend` counts the product of the last changes too. For
    shares it is kept in units of the price."""
    num_types = len(kinds)
    for at in range(num_jobs * num_types):
        cx[at] = (goal - bend * dx[at] * dz[at]) / x[at] - z[at]
    for job in range(num_jobs):
        base = 12 * job
        rows[base + 8] = goal - rows[base] * rows[base + 1] - bend * rows[base + 4] * rows[base + 5]
        rows[base + 9] = goal - rows[base + 2] * rows[base + 3] - bend * rows[base + 6] * rows[base + 7]
    for kind in range(num_types):
        base = 5 * kind
        types[base + 4] = goal - types[base] * types[base + 1] - bend * types[base + 2] * types[base + 3]


def factor(
    kinds: Any, worth: Any, gpus: Any, x: Any, z: Any, rows: Any, types: Any, d: Any, u: Any, system: Any
) -> None:
    """Newton's matrix with the jobs eliminated: `num_types` + 1 rows of as many columns and one for the right side."""
    num_types = len(kinds)
    size = num_types + 1
    wide = size + 1
    for at in range(size * wide):
        system[at] = 0.0
    for kind in range(num_types):
        system[kind * wide + kind] = types[5 * kind] / types[5 * kind + 1]
    for job in range(len(gpus)):
        base = job * num_types
        row = 12 * job
        total = rows[row] / rows[row + 1]
        valued = 0.0
        for kind in range(num_types):
            d[base + kind] = x[base + kind] / z[base + kind]
            total += d[base + kind]
            valued += d[base + kind] * worth[base + kind]
        rows[row + 10] = 1.0 / total
        reach = rows[row + 2] / rows[row + 3]
        for kind in range(num_types):
            u[base + kind] = d[base + kind] * (worth[base + kind] - valued * rows[row + 10])
            reach += u[base + kind] * worth[base + kind]
        rows[row + 11] = 1.0 / reach
        need = gpus[job]
        for kind in range(num_types):
            system[kind * wide + kind] += need * need * d[base + kind]
            pull = need * need * d[base + kind] * rows[row + 10]
            push_back = need * need * u[base + kind] * rows[row + 11]
            for other in range(num_types):
                system[kind * wide + other] -= pull * d[base + other] + push_back * u[base + other]
            lift = need * u[base + kind] * rows[row + 11]
            system[kind * wide + num_types] -= lift
            system[num_types * wide + kind] += lift
        system[num_types * wide + num_types] += rows[row + 11]


def direct(
    kinds: Any, worth: Any, gpus: Any, rows: Any, types: Any, dx: Any, dz: Any, cx: Any, d: Any, u: Any, system: Any
) -> float:
    """The step that closes what is lacking; the answer is the change of the level."""
    num_types = len(kinds)
    size = num_types + 1
    wide = size + 1
    for kind in range(num_types):
        types[5 * kind + 3] = 0.0
        system[kind * wide + size] = types[5 * kind + 4] / types[5 * kind]
    raised = 0.0
    for job in range(len(gpus)):
        raised += pull_job(job, kinds, worth, gpus, rows, types, dx, cx, d, u, system)
    for kind in range(num_types):
        system[kind * wide + size] = types[5 * kind + 3]
    system[num_types * wide + size] = raised
    solve_small(size, system)
    rise: float = system[num_types * wide + size]
    for kind in range(num_types):
        types[5 * kind + 2] = 0.0
    for job in range(len(gpus)):
        steer_job(job, rise, kinds, worth, (gpus, rows, types), dx, dz, cx, d, u, system)
    for kind in range(num_types):
        base = 5 * kind
        types[base + 3] = (types[base + 4] - types[base + 1] * types[base + 2]) / types[base]
    return rise


def pull_job(
    job: int, kinds: Any, worth: Any, gpus: Any, rows: Any, types: Any, dx: Any, cx: Any, d: Any, u: Any, system: Any
) -> float:
    """What one job asks of the capacities if prices stay; the answer is what it asks of the level."""
    num_types = len(kinds)
    size = num_types + 1
    wide = size + 1
    base = job * num_types
    row = 12 * job
    on_level = rows[row + 9] / rows[row + 2]
    on_time = rows[row + 8] / rows[row]
    pulled = 0.0
    for kind in range(num_types):
        force = cx[base + kind] - on_time - gpus[job] * system[kind * wide + size] + worth[base + kind] * on_level
        dx[base + kind] = force
        pulled += d[base + kind] * force
    along = 0.0
    for kind in range(num_types):
        dx[base + kind] = d[base + kind] * (dx[base + kind] - pulled * rows[row + 10])
        along += worth[base + kind] * dx[base + kind]
    rows[row + 7] = along
    for kind in range(num_types):
        types[5 * kind + 3] += gpus[job] * (dx[base + kind] - u[base + kind] * rows[row + 11] * along)
    asked: float = rows[row + 11] * along - on_level
    return asked


def steer_job(
    job: int, rise: float, kinds: Any, worth: Any, sides: Any, dx: Any, dz: Any, cx: Any, d: Any, u: Any, system: Any
) -> None:
    """The change of one job's shares and prices, once those of the capacities and the level are known."""
    gpus, rows, types = sides
    num_types = len(kinds)
    size = num_types + 1
    wide = size + 1
    base = job * num_types
    row = 12 * job
    priced = 0.0
    along = rows[row + 7] - rise
    for kind in range(num_types):
        priced += d[base + kind] * system[kind * wide + size]
        along -= gpus[job] * u[base + kind] * system[kind * wide + size]
    along *= rows[row + 11]
    used = 0.0
    reached = 0.0
    for kind in range(num_types):
        change = (
            dx[base + kind]
            - gpus[job] * d[base + kind] * (system[kind * wide + size] - priced * rows[row + 10])
            - u[base + kind] * along
        )
        dx[base + kind] = change
        dz[base + kind] = cx[base + kind] - change / d[base + kind]
        used += change
        reached += worth[base + kind] * change
        types[5 * kind + 2] -= gpus[job] * change
    rows[row + 4] = -used
    rows[row + 5] = (rows[row + 8] + rows[row + 1] * used) / rows[row]
    rows[row + 6] = reached - rise
    rows[row + 7] = (rows[row + 9] - rows[row + 3] * rows[row + 6]) / rows[row + 2]


def solve_small(size: int, system: Any) -> None:
    """Gauss with pivots on a copy held behind the matrix; the answer replaces the last column."""
    wide = size + 1
    copy = size * wide
    for at in range(size * wide):
        system[copy + at] = system[at]
    for column in range(size):
        pivot = column
        for row in range(column + 1, size):
            if abs(system[copy + row * wide + column]) > abs(system[copy + pivot * wide + column]):
                pivot = row
        for at in range(wide):
            swap = system[copy + column * wide + at]
            system[copy + column * wide + at] = system[copy + pivot * wide + at]
            system[copy + pivot * wide + at] = swap
        for row in range(column + 1, size):
            ratio = system[copy + row * wide + column] / system[copy + column * wide + column]
            for at in range(column, wide):
                system[copy + row * wide + at] -= ratio * system[copy + column * wide + at]
    for row in range(size - 1, -1, -1):
        value = system[copy + row * wide + size]
        for at in range(row + 1, size):
            value -= system[copy + row * wide + at] * system[at * wide + size]
        system[row * wide + size] = value / system[copy + row * wide + row]


def longest(kinds: Any, num_jobs: int, point: Any, rows: Any, types: Any, step: Any, side: int) -> float:
    """How far one may go, up to 1, before a slack (side 0) or a price (1) is 0."""
    num_types = len(kinds)
    most = 1.0
    for at in range(num_jobs * num_types):
        if step[at] * most < -point[at]:
            most = -point[at] / step[at]
    for job in range(num_jobs):
        for pair in range(0, 3, 2):
            change = rows[12 * job + 4 + pair + side]
            if change * most < -rows[12 * job + pair + side]:
                most = -rows[12 * job + pair + side] / change
    for kind in range(num_types):
        change = types[5 * kind + 2 + side]
        if change * most < -types[5 * kind + side]:
            most = -types[5 * kind + side] / change
    return most


def move(
    kinds: Any,
    num_jobs: int,
    x: Any,
    z: Any,
    rows: Any,
    types: Any,
    dx: Any,
    dz: Any,
    ahead: float,
    behind: float,
) -> None:
    num_types = len(kinds)
    for at in range(num_jobs * num_types):
        x[at] += ahead * dx[at]
        z[at] += behind * dz[at]
    for job in range(num_jobs):
        for pair in range(0, 3, 2):
            rows[12 * job + pair] += ahead * rows[12 * job + 4 + pair]
            rows[12 * job + pair + 1] += behind * rows[12 * job + 5 + pair]
    for kind in range(num_types):
        types[5 * kind] += ahead * types[5 * kind + 2]
        types[5 * kind + 1] += behind * types[5 * kind + 3]
