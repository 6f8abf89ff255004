"""Shares by an interior point on the homogeneous embedding, repeated step by step from Clarabel (Goulart & Chen, 2024).

Programs of shares have many optima, and which one is found depends on the path. So this is Clarabel's path: its
equilibration, start, Nesterov-Todd scaling, predictor and corrector, step lengths and tolerances. Only the linear
equations are solved otherwise, through `blocks`, in time linear in the jobs.
"""

import math
from typing import Any

from traincast.schedule._kernels.blocks import (
    equilibrate,
    factor_blocks,
    solve_blocks,
    squeeze,
    stretch,
    times_columns,
    times_rows,
    times_scaling,
)

FOUND, IMPOSSIBLE, LOST = 0, 1, 2
MOST_ITERATIONS = 200
STEP_FRACTION = 0.99
CLOSE = 1e-8
"""Of the gap, the residuals, and the proof that there is no point."""
REFINED = 1e-10
MOST_REFINEMENTS = 2


def find_shares(shape: Any, matrix: Any, costs: Any, bounds: Any, scales: Any, point: Any, work: Any) -> int:
    """The minimiser of `costs x` with `matrix x <= bounds` is left in `point[0]`; the answer says how it ended.

    `matrix`, `costs` and `bounds` are changed. `point` is x, z, s; `work` holds vectors over variables (6), over rows (9),
    a number per row of all cones (4 per job) and the parts of `factor_blocks`.
    """
    num_jobs, cone = shape[0], len(shape[3])
    x, z, s = point
    over_x, over_z, cones, factors = work
    lack_x, lack_z, ratios, middle = over_x[3], over_z[4], over_z[6], over_z[7]
    d, e, by_d, by_e = scales
    degree = len(s) - 2 * num_jobs * cone
    size_b = norm(bounds)
    size_q = norm(costs)
    equilibrate(shape, matrix, costs, bounds, scales)
    for at in range(len(x)):
        by_d[at] = 1.0 / d[at]
    for at in range(len(s)):
        by_e[at] = 1.0 / e[at]
    start_anywhere(shape, matrix, costs, bounds, point, work)
    tau = kappa = 1.0
    before_x = before_z = before_gap = 1e300
    for iteration in range(MOST_ITERATIONS + 1):
        times_columns(shape, matrix, z, lack_x)
        times_rows(shape, matrix, x, lack_z)
        cost, proof, size_x, off_x = weigh_columns(x, lack_x, costs, d, by_d, tau)
        bound, product, size_z, size_s, off_z = weigh_rows(s, z, lack_z, bounds, e, by_e, tau)
        lack_tau = cost + bound + kappa
        mu = (product + tau * kappa) / (degree + 1)
        gap = abs(cost + bound) / tau
        relative = gap / max(1.0, min(abs(cost), abs(bound)) / tau)
        off_z = off_z / tau / max(1.0, size_b + (size_x + size_s) / tau)
        off_x = off_x / tau / max(1.0, size_q + (size_x + size_z) / tau)
        if kappa <= tau and (gap < CLOSE or relative < CLOSE) and off_z < CLOSE and off_x < CLOSE:
            for at in range(len(x)):
                x[at] *= d[at] / tau
            return FOUND
        if kappa > 1e-3 * tau and bound < -CLOSE and proof / max(1.0, size_z) < -CLOSE * bound:
            return IMPOSSIBLE
        if iteration == MOST_ITERATIONS or not mu > 0.0:
            return LOST
        stuck = kappa < 2.3e-14 * tau and before_gap < CLOSE
        if iteration > 1 and is_running_away(off_x, before_x, off_z, before_z, stuck):
            return LOST
        before_x, before_z, before_gap = off_x, off_z, gap
        if not scale_rows(shape, s, z, ratios, middle, cones):
            return LOST
        factor_blocks(shape, matrix, ratios, cones, factors)
        slope = find_slope(shape, matrix, costs, bounds, s, kappa / tau, work)
        length, rise_tau, rise_kappa = find_step(
            shape, matrix, costs, bounds, point, work, (tau, kappa, mu, lack_tau, slope, iteration)
        )
        length *= STEP_FRACTION
        if not length > 1e-4:
            return LOST
        move_by(length, point, work)
        tau += length * rise_tau
        kappa += length * rise_kappa
    return LOST


def is_running_away(off_x: float, before_x: float, off_z: float, before_z: float, stuck: bool) -> bool:
    """Whether what is lacking grows, and either much or where nothing more can be gained."""
    if not (off_x > before_x or off_z > before_z):
        return False
    away_x = off_x > 100 * CLOSE and off_x > 100 * before_x
    away_z = off_z > 100 * CLOSE and off_z > 100 * before_z
    return stuck or away_x or away_z


def find_slope(shape: Any, matrix: Any, costs: Any, bounds: Any, s: Any, ratio: float, work: Any) -> float:
    """The direction that belongs to a change of tau, and how fast what is lacking changes along it."""
    over_x, over_z, cones, factors = work
    x2, right_x = over_x[1], over_x[2]
    z2, right_z, offset = over_z[2], over_z[3], over_z[8]
    for at in range(len(x2)):
        right_x[at] = -costs[at]
    for at in range(len(s)):
        right_z[at] = bounds[at]
        offset[at] = s[at]
    solve_blocks(shape, matrix, cones, factors, (right_x, right_z), (x2, z2))
    return ratio - dot(costs, x2) - dot(bounds, z2)


def find_step(shape: Any, matrix: Any, costs: Any, bounds: Any, point: Any, work: Any, state: Any) -> Any:
    """The direction by a predictor and then the step itself; how far it may be followed, and the changes of tau and kappa."""
    over_x, over_z, cones, factors = work
    dx, x2, right_x, lack_x, more_x, spare_x = over_x
    dz, ds, z2, right_z, lack_z, more_z, ratios, middle, offset = over_z
    x, z, s = point
    tau, kappa, mu, lack_tau, slope, iteration = state
    length = ease = 0.0
    rise_tau = rise_kappa = 0.0
    for corrected in range(2):
        keep, lack_kappa = 1.0, tau * kappa
        if corrected:
            ease = (1.0 - length) * (1.0 - length) * (1.0 - length)
            bend = 1.0 if iteration else length
            keep = 1.0 - ease
            lack_kappa += bend * rise_tau * rise_kappa - ease * mu
            correct(shape, s, z, ds, dz, middle, cones, offset, bend, ease * mu)
        for at in range(len(x)):
            right_x[at] = keep * lack_x[at]
        for at in range(len(s)):
            right_z[at] = offset[at] - keep * lack_z[at]
        if corrected:
            solve_refined(
                shape, matrix, ratios, cones, factors, (right_x, right_z), (dx, dz), (more_x, spare_x, more_z, ds)
            )
        else:
            solve_blocks(shape, matrix, cones, factors, (right_x, right_z), (dx, dz))
        rise_tau = (keep * lack_tau - lack_kappa / tau + dot(costs, dx) + dot(bounds, dz)) / slope
        for at in range(len(x)):
            dx[at] += rise_tau * x2[at]
        for at in range(len(s)):
            dz[at] += rise_tau * z2[at]
        times_scaling(shape, ratios, cones, dz, ds)
        for at in range(len(s)):
            ds[at] = -(ds[at] + offset[at])
        rise_kappa = -(lack_kappa + kappa * rise_tau) / tau
        length = 1.0
        if rise_tau < 0.0:
            length = min(length, -tau / rise_tau)
        if rise_kappa < 0.0:
            length = min(length, -kappa / rise_kappa)
        length = longest_inside(shape, z, dz, longest_inside(shape, s, ds, length))
    return length, rise_tau, rise_kappa


def move_by(length: float, point: Any, work: Any) -> None:
    x, z, s = point
    dx, dz, ds = work[0][0], work[1][0], work[1][1]
    for at in range(len(x)):
        x[at] += length * dx[at]
    for at in range(len(s)):
        s[at] += length * ds[at]
        z[at] += length * dz[at]


def norm(vector: Any) -> float:
    total = 0.0
    for at in range(len(vector)):
        total += vector[at] * vector[at]
    return math.sqrt(total)


def weigh_columns(x: Any, lack: Any, costs: Any, d: Any, by_d: Any, tau: float) -> tuple[float, float, float, float]:
    """Cost, size of the prices' sum, size of x and of what the prices lack; `lack` is given as the sum."""
    cost = proof = size = off = 0.0
    for at in range(len(x)):
        value = lack[at] * by_d[at]
        proof += value * value
        lack[at] = -lack[at] - costs[at] * tau
        value = lack[at] * by_d[at]
        off += value * value
        value = x[at] * d[at]
        size += value * value
        cost += costs[at] * x[at]
    return cost, math.sqrt(proof), math.sqrt(size), math.sqrt(off)


def weigh_rows(
    s: Any, z: Any, lack: Any, bounds: Any, e: Any, by_e: Any, tau: float
) -> tuple[float, float, float, float, float]:
    """Bound, product, sizes of prices and slacks, and of what the rows lack; `lack` is given as what they use."""
    bound = product = size_z = size_s = off = 0.0
    for at in range(len(s)):
        lack[at] = lack[at] + s[at] - bounds[at] * tau
        value = lack[at] * by_e[at]
        off += value * value
        value = z[at] * e[at]
        size_z += value * value
        value = s[at] * by_e[at]
        size_s += value * value
        bound += bounds[at] * z[at]
        product += s[at] * z[at]
    return bound, product, math.sqrt(size_z), math.sqrt(size_s), math.sqrt(off)


def dot(left: Any, right: Any) -> float:
    total = 0.0
    for at in range(len(left)):
        total += left[at] * right[at]
    return total


def solve_refined(
    shape: Any, matrix: Any, ratios: Any, cones: Any, factors: Any, right: Any, answer: Any, spare: Any
) -> None:
    """`solve_blocks`, and again on what it left, while that helps."""
    right_x, right_z = right
    x, z = answer
    left_x, more_x, left_z, more_z = spare
    solve_blocks(shape, matrix, cones, factors, right, answer)
    size = 0.0
    for at in range(len(x)):
        size = max(size, abs(right_x[at]))
    for at in range(len(z)):
        size = max(size, abs(right_z[at]))
    before = 1e300
    for _ in range(MOST_REFINEMENTS):
        times_columns(shape, matrix, z, left_x)
        times_rows(shape, matrix, x, left_z)
        times_scaling(shape, ratios, cones, z, more_z)
        left = 0.0
        for at in range(len(x)):
            left_x[at] = right_x[at] - left_x[at]
            left = max(left, abs(left_x[at]))
        for at in range(len(z)):
            left_z[at] = right_z[at] - left_z[at] + more_z[at]
            left = max(left, abs(left_z[at]))
        if left <= 1e-12 + REFINED * size or not left < 0.2 * before:
            break
        before = left
        solve_blocks(shape, matrix, cones, factors, (left_x, left_z), (more_x, more_z))
        for at in range(len(x)):
            x[at] += more_x[at]
        for at in range(len(z)):
            z[at] += more_z[at]


def start_anywhere(shape: Any, matrix: Any, costs: Any, bounds: Any, point: Any, work: Any) -> None:
    """The least slack and the least prices in the sense of squares, then moved into their cones."""
    num_jobs, cone = shape[0], len(shape[3])
    x, z, s = point
    over_x, over_z, cones, factors = work
    x2, right_x, more_x, spare_x = over_x[1], over_x[2], over_x[4], over_x[5]
    ds, right_z, more_z, ratios = over_z[1], over_z[3], over_z[5], over_z[6]
    for at in range(len(s)):
        ratios[at] = 1.0
        right_z[at] = bounds[at]
    for job in range(num_jobs * cone):
        cones[4 * job] = 1.0
        cones[4 * job + 1] = 0.0
        cones[4 * job + 2] = 0.0
        cones[4 * job + 3] = 1.0
    for at in range(len(x)):
        right_x[at] = 0.0
    factor_blocks(shape, matrix, ratios, cones, factors)
    solve_refined(shape, matrix, ratios, cones, factors, (right_x, right_z), (x, s), (more_x, spare_x, more_z, ds))
    for at in range(len(s)):
        s[at] = -s[at]
        right_z[at] = 0.0
    for at in range(len(x)):
        right_x[at] = -costs[at]
    solve_refined(shape, matrix, ratios, cones, factors, (right_x, right_z), (x2, z), (more_x, spare_x, more_z, ds))
    move_inside(shape, s)
    move_inside(shape, z)


def move_inside(shape: Any, v: Any) -> None:
    num_jobs, num_types, num_local, cone = shape[0], len(shape[1]), len(shape[2]), len(shape[3])
    stride = num_types + num_local
    shared = num_jobs * stride
    least, positive = 1e300, 0.0
    for at in range(len(v)):
        value = v[at]
        if cone and at < shared and at % stride >= stride - 3:
            if at % stride > stride - 3:
                continue
            value -= math.sqrt(v[at + 1] * v[at + 1] + v[at + 2] * v[at + 2])
        least = min(least, value)
        positive += max(value, 0.0)
    wanted = max(1.0, 0.1 * positive / (len(v) - 2 * num_jobs * cone))
    move = 0.0
    if least <= 0.0:
        move = -least
    elif least < wanted:
        move, wanted = wanted - least, 0.0
    else:
        return
    for at in range(len(v)):
        if not (cone and at < shared and at % stride > stride - 3):
            v[at] = v[at] + move + wanted


def scale_rows(shape: Any, s: Any, z: Any, ratios: Any, middle: Any, cones: Any) -> bool:
    """The scaling that takes slacks and prices to one middle point (Nesterov & Todd, 1997)."""
    num_jobs, num_types, num_local, cone = shape[0], len(shape[1]), len(shape[2]), len(shape[3])
    stride = num_types + num_local
    linear = stride - 3 * cone
    for job in range(num_jobs):
        for at in range(job * stride, job * stride + linear):
            ratios[at] = s[at] / z[at]
    for at in range(num_jobs * stride, len(s)):
        ratios[at] = s[at] / z[at]
    for job in range(num_jobs * cone):
        at = job * stride + linear
        far_s = math.sqrt(s[at + 1] * s[at + 1] + s[at + 2] * s[at + 2])
        far_z = math.sqrt(z[at + 1] * z[at + 1] + z[at + 2] * z[at + 2])
        if not (s[at] > far_s and z[at] > far_z):
            return False
        size_s = math.sqrt((s[at] - far_s) * (s[at] + far_s))
        size_z = math.sqrt((z[at] - far_z) * (z[at] + far_z))
        w0 = s[at] / size_s + z[at] / size_z
        w1 = s[at + 1] / size_s - z[at + 1] / size_z
        w2 = s[at + 2] / size_s - z[at + 2] / size_z
        far = math.sqrt(w1 * w1 + w2 * w2)
        if not w0 > far:
            return False
        size = math.sqrt((w0 - far) * (w0 + far))
        w1, w2 = w1 / size, w2 / size
        cones[4 * job] = math.sqrt(1.0 + w1 * w1 + w2 * w2)
        cones[4 * job + 1] = w1
        cones[4 * job + 2] = w2
        cones[4 * job + 3] = math.sqrt(size_s / size_z)
        half = size / 2.0
        both = math.sqrt(size_s * size_z)
        share = both / (s[at] / size_s + z[at] / size_z + 2.0 * half)
        of_s = share * (half + z[at] / size_z) / size_s
        of_z = share * (half + s[at] / size_s) / size_z
        middle[at] = both * half
        middle[at + 1] = of_s * s[at + 1] + of_z * z[at + 1]
        middle[at + 2] = of_s * s[at + 2] + of_z * z[at + 2]
    return True


def correct(
    shape: Any, s: Any, z: Any, ds: Any, dz: Any, middle: Any, cones: Any, offset: Any, bend: float, goal: float
) -> None:
    """What complementarity lacks to `goal` after the predictor's step, in units of the slack."""
    num_jobs, num_types, num_local, cone = shape[0], len(shape[1]), len(shape[2]), len(shape[3])
    stride = num_types + num_local
    linear = stride - 3 * cone
    for job in range(num_jobs):
        for at in range(job * stride, job * stride + linear):
            offset[at] = s[at] + (bend * dz[at] * ds[at] - goal) / z[at]
    for at in range(num_jobs * stride, len(s)):
        offset[at] = s[at] + (bend * dz[at] * ds[at] - goal) / z[at]
    for job in range(num_jobs * cone):
        at = job * stride + linear
        squeeze(cones, job, ds, at, ds, at)
        stretch(cones, job, dz, at, dz, at)
        l0, l1, l2 = middle[at], middle[at + 1], middle[at + 2]
        a0, a1, a2 = ds[at], ds[at + 1], ds[at + 2]
        c0, c1, c2 = bend * dz[at], bend * dz[at + 1], bend * dz[at + 2]
        v0 = l0 * l0 + l1 * l1 + l2 * l2 + a0 * c0 + a1 * c1 + a2 * c2 - goal
        v1 = 2.0 * l0 * l1 + a0 * c1 + c0 * a1
        v2 = 2.0 * l0 * l2 + a0 * c2 + c0 * a2
        far = math.sqrt(l1 * l1 + l2 * l2)
        rest = (l0 - far) * (l0 + far)
        along = l1 * v1 + l2 * v2
        offset[at] = (l0 * v0 - along) / rest
        offset[at + 1] = (along / l0 - v0) * l1 / rest + v1 / l0
        offset[at + 2] = (along / l0 - v0) * l2 / rest + v2 / l0
        stretch(cones, job, offset, at, offset, at)


def longest_inside(shape: Any, v: Any, dv: Any, most: float) -> float:
    """How far one may go, up to `most`, before a row leaves its cone."""
    num_jobs, num_types, num_local, cone = shape[0], len(shape[1]), len(shape[2]), len(shape[3])
    stride = num_types + num_local
    shared = num_jobs * stride
    linear = stride - 3 * cone
    for job in range(num_jobs):
        for at in range(job * stride, job * stride + linear):
            if dv[at] * most < -v[at]:
                most = -v[at] / dv[at]
        if cone:
            most = longest_in_cone(v, dv, job * stride + linear, most)
    for at in range(shared, len(v)):
        if dv[at] * most < -v[at]:
            most = -v[at] / dv[at]
    return most


def longest_in_cone(v: Any, dv: Any, at: int, most: float) -> float:
    """The first root of the square that bounds the cone, if it comes before `most`."""
    far = math.sqrt(v[at + 1] * v[at + 1] + v[at + 2] * v[at + 2])
    a = dv[at] * dv[at] - dv[at + 1] * dv[at + 1] - dv[at + 2] * dv[at + 2]
    b = 2.0 * (v[at] * dv[at] - v[at + 1] * dv[at + 1] - v[at + 2] * dv[at + 2])
    c = max(0.0, (v[at] - far) * (v[at] + far))
    under = b * b - 4.0 * a * c
    if (a > 0.0 and b > 0.0) or under < 0.0:
        return most
    t = -b - math.sqrt(under) if b >= 0.0 else -b + math.sqrt(under)
    if t != 0.0 and 2.0 * c / t >= 0.0:
        most = min(most, 2.0 * c / t)
    if a != 0.0 and t / (2.0 * a) >= 0.0:
        most = min(most, t / (2.0 * a))
    return most
