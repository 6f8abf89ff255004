"""The rows of a share program, kept as a block per job, and Newton's equations on them at a cost linear in the jobs.

A job has `num_types` shares and, with cones, one more variable, the time a step takes. Its rows are: no share negative
(`diag`), then `num_local` rows that touch nobody else (`dense`): its time, if wanted a row of its own, and with cones the
three rows of a second-order cone, of which the third has no coefficients. All jobs meet in the capacity of each type
(`caps`) and, with cones, in one last variable that stands in each job's second local row (`last`). Vectors over variables
and rows are job-major with what all share at the end. `shape` is (jobs, types, local rows, 1 with cones).
"""

import math
from typing import Any

from traincast.schedule._kernels.program import solve_small

EQUILIBRATIONS = 10
LEAST_SCALE, MOST_SCALE = 1e-4, 1e4


def times_rows(shape: Any, matrix: Any, x: Any, out: Any) -> None:
    num_jobs, num_types, num_local, cone = shape[0], len(shape[1]), len(shape[2]), len(shape[3])
    diag, dense, caps, last = matrix
    num_own, stride = num_types + cone, num_types + num_local
    shared = num_jobs * stride
    for kind in range(num_types):
        out[shared + kind] = 0.0
    for job in range(num_jobs):
        at, row = job * num_own, job * stride
        for kind in range(num_types):
            out[row + kind] = diag[job * num_types + kind] * x[at + kind]
            out[shared + kind] += caps[job * num_types + kind] * x[at + kind]
        for local in range(num_local):
            value = 0.0
            entry = (job * num_local + local) * num_own
            for own in range(num_own):
                value += dense[entry + own] * x[at + own]
            out[row + num_types + local] = value
        if cone:
            out[row + num_types + 1] += last[job] * x[num_jobs * num_own]


def times_columns(shape: Any, matrix: Any, z: Any, out: Any) -> None:
    num_jobs, num_types, num_local, cone = shape[0], len(shape[1]), len(shape[2]), len(shape[3])
    diag, dense, caps, last = matrix
    num_own, stride = num_types + cone, num_types + num_local
    shared = num_jobs * stride
    total = 0.0
    for job in range(num_jobs):
        at, row = job * num_own, job * stride
        for own in range(num_own):
            value = 0.0
            entry = job * num_local * num_own + own
            for local in range(num_local):
                value += dense[entry + local * num_own] * z[row + num_types + local]
            if own < num_types:
                value += diag[job * num_types + own] * z[row + own]
                value += caps[job * num_types + own] * z[shared + own]
            out[at + own] = value
        if cone:
            total += last[job] * z[row + num_types + 1]
    if cone:
        out[num_jobs * num_own] = total


def largest_entries(shape: Any, matrix: Any, columns: Any, rows: Any) -> None:
    num_jobs, num_types, num_local, cone = shape[0], len(shape[1]), len(shape[2]), len(shape[3])
    diag, dense, caps, last = matrix
    num_own, stride = num_types + cone, num_types + num_local
    shared = num_jobs * stride
    for kind in range(num_types):
        rows[shared + kind] = 0.0
    if cone:
        columns[num_jobs * num_own] = 0.0
    for job in range(num_jobs):
        at, row = job * num_own, job * stride
        if cone:
            columns[at + num_types] = 0.0
        for kind in range(num_types):
            size = abs(diag[job * num_types + kind])
            rows[row + kind] = size
            taken = abs(caps[job * num_types + kind])
            columns[at + kind] = max(size, taken)
            rows[shared + kind] = max(rows[shared + kind], taken)
        for local in range(num_local):
            most = 0.0
            entry = (job * num_local + local) * num_own
            for own in range(num_own):
                size = abs(dense[entry + own])
                most = max(most, size)
                columns[at + own] = max(columns[at + own], size)
            if cone and local == 1:
                size = abs(last[job])
                most = max(most, size)
                columns[num_jobs * num_own] = max(columns[num_jobs * num_own], size)
            rows[row + num_types + local] = most


def scale_matrix(shape: Any, matrix: Any, columns: Any, rows: Any) -> None:
    num_jobs, num_types, num_local, cone = shape[0], len(shape[1]), len(shape[2]), len(shape[3])
    diag, dense, caps, last = matrix
    num_own, stride = num_types + cone, num_types + num_local
    shared = num_jobs * stride
    for job in range(num_jobs):
        at, row = job * num_own, job * stride
        for kind in range(num_types):
            diag[job * num_types + kind] *= columns[at + kind] * rows[row + kind]
            caps[job * num_types + kind] *= columns[at + kind] * rows[shared + kind]
        for local in range(num_local):
            entry = (job * num_local + local) * num_own
            for own in range(num_own):
                dense[entry + own] *= columns[at + own] * rows[row + num_types + local]
        if cone:
            last[job] *= columns[num_jobs * num_own] * rows[row + num_types + 1]


def equilibrate(shape: Any, matrix: Any, costs: Any, bounds: Any, scales: Any) -> None:
    """Rows and columns brought to a largest entry near 1 (Ruiz, 2001); the rows of a cone share one scale."""
    num_jobs, num_types, num_local, cone = shape[0], len(shape[1]), len(shape[2]), len(shape[3])
    d, e, columns, rows = scales
    for _ in range(EQUILIBRATIONS):
        largest_entries(shape, matrix, columns, rows)
        for at in range(len(d)):
            scale = 1.0 if columns[at] == 0.0 else 1.0 / math.sqrt(columns[at])
            if not LEAST_SCALE <= scale * d[at] <= MOST_SCALE:
                scale = (LEAST_SCALE if scale * d[at] < LEAST_SCALE else MOST_SCALE) / d[at]
            columns[at] = scale
            d[at] *= columns[at]
            costs[at] *= columns[at]
        for at in range(len(e)):
            scale = 1.0 if rows[at] == 0.0 else 1.0 / math.sqrt(rows[at])
            if not LEAST_SCALE <= scale * e[at] <= MOST_SCALE:
                scale = (LEAST_SCALE if scale * e[at] < LEAST_SCALE else MOST_SCALE) / e[at]
            rows[at] = scale
            e[at] *= rows[at]
            bounds[at] *= rows[at]
        scale_matrix(shape, matrix, columns, rows)
    if not cone:
        return
    for at in range(len(d)):
        columns[at] = 1.0
    for at in range(len(e)):
        rows[at] = 1.0
    for job in range(num_jobs):
        first = (job + 1) * (num_types + num_local) - 3
        mean = (e[first] + e[first + 1] + e[first + 2]) / 3.0
        for at in range(first, first + 3):
            rows[at] = mean / e[at]
            e[at] = mean
            bounds[at] *= rows[at]
    scale_matrix(shape, matrix, columns, rows)


def squeeze(cones: Any, job: int, v: Any, at: int, out: Any, to: int) -> None:
    """The cone's three rows divided by its scaling."""
    w0, w1, w2, eta = cones[4 * job], cones[4 * job + 1], cones[4 * job + 2], cones[4 * job + 3]
    dot = w1 * v[at + 1] + w2 * v[at + 2]
    lift = dot / (1.0 + w0) - v[at]
    first = (w0 * v[at] - dot) / eta
    out[to + 1] = (v[at + 1] + lift * w1) / eta
    out[to + 2] = (v[at + 2] + lift * w2) / eta
    out[to] = first


def stretch(cones: Any, job: int, v: Any, at: int, out: Any, to: int) -> None:
    """The cone's three rows times its scaling."""
    w0, w1, w2, eta = cones[4 * job], cones[4 * job + 1], cones[4 * job + 2], cones[4 * job + 3]
    dot = w1 * v[at + 1] + w2 * v[at + 2]
    lift = dot / (1.0 + w0) + v[at]
    first = (w0 * v[at] + dot) * eta
    out[to + 1] = (v[at + 1] + lift * w1) * eta
    out[to + 2] = (v[at + 2] + lift * w2) * eta
    out[to] = first


def factor_blocks(shape: Any, matrix: Any, ratios: Any, cones: Any, factors: Any) -> None:
    """Newton's matrix with every job eliminated, ready for `solve_blocks`.

    `factors` are the scaled local rows, a Cholesky factor per job (the inverse on its diagonal), what it makes of the
    columns that jobs share (the types, with cones its own last), the pivot of the second local row, the small system of
    what is shared, room for a number per job or variable, and per row what it is multiplied by (the root of it for local rows).
    """
    num_jobs, num_types, num_local, cone = shape[0], len(shape[1]), len(shape[2]), len(shape[3])
    system = factors[4]
    shared = num_jobs * (num_types + num_local)
    wide = num_types + cone + 1
    for at in range((wide - 1) * wide):
        system[at] = 0.0
    for kind in range(num_types):
        system[kind * wide + kind] = ratios[shared + kind]
    for job in range(num_jobs):
        scale_local_rows(job, shape, matrix, ratios, cones, factors)
        rotate_rows(job, shape, matrix, factors)
        reach_shared(job, shape, matrix, factors)
        if cone:
            take_out_cone(job, shape, matrix, ratios, factors)


def scale_local_rows(job: int, shape: Any, matrix: Any, ratios: Any, cones: Any, factors: Any) -> None:
    num_types, num_local, cone = len(shape[1]), len(shape[2]), len(shape[3])
    dense, scaled, soft = matrix[1], factors[0], factors[6]
    num_own = num_types + cone
    row, entry = job * (num_types + num_local), job * num_local * num_own
    for kind in range(num_types):
        soft[row + kind] = 1.0 / ratios[row + kind]
    for local in range(num_local - 3 * cone):
        by = 1.0 / math.sqrt(ratios[row + num_types + local])
        soft[row + num_types + local] = by
        for own in range(num_own):
            scaled[entry + local * num_own + own] = by * dense[entry + local * num_own + own]
    if cone:
        w0, w1, w2, eta = cones[4 * job], cones[4 * job + 1], cones[4 * job + 2], cones[4 * job + 3]
        first = entry + (num_local - 3) * num_own
        for own in range(num_own):
            a0, a1 = dense[first + own], dense[first + num_own + own]
            lift = w1 * a1 / (1.0 + w0) - a0
            scaled[first + own] = (w0 * a0 - w1 * a1) / eta
            scaled[first + num_own + own] = (a1 + lift * w1) / eta
            scaled[first + 2 * num_own + own] = lift * w2 / eta


def rotate_rows(job: int, shape: Any, matrix: Any, factors: Any) -> None:
    """A job's Cholesky factor, row by row by rotations: sums of squares would cancel where a row is tight and several shares
    are free."""
    num_types, num_local, cone = len(shape[1]), len(shape[2]), len(shape[3])
    diag, scaled, chol, turned, soft = matrix[0], factors[0], factors[1], factors[5], factors[6]
    num_own = num_types + cone
    row, entry, own_at = job * (num_types + num_local), job * num_local * num_own, job * num_own * num_own
    for i in range(num_own):
        for j in range(i):
            chol[own_at + i * num_own + j] = 0.0
        size = 0.0
        if i < num_types:
            size = abs(diag[job * num_types + i]) * math.sqrt(soft[row + i])
        chol[own_at + i * num_own + i] = size
    for local in range(num_local):
        if not (cone and local == 1):
            for own in range(num_own):
                turned[own] = scaled[entry + local * num_own + own]
            for k in range(num_own):
                old, new = chol[own_at + k * num_own + k], turned[k]
                size = math.sqrt(old * old + new * new)
                if size > 0.0:
                    chol[own_at + k * num_own + k] = size
                    by = 1.0 / size
                    cosine, sine = old * by, new * by
                    for i in range(k + 1, num_own):
                        old, new = chol[own_at + i * num_own + k], turned[i]
                        chol[own_at + i * num_own + k] = cosine * old + sine * new
                        turned[i] = cosine * new - sine * old
    for k in range(num_own):
        chol[own_at + k * num_own + k] = 1.0 / chol[own_at + k * num_own + k]


def reach_shared(job: int, shape: Any, matrix: Any, factors: Any) -> None:
    """What a job's factor makes of the columns that all share, and what that adds to their system."""
    num_types, cone = len(shape[1]), len(shape[3])
    caps, chol, reach, system = matrix[2], factors[1], factors[2], factors[4]
    num_own = num_types + cone
    wide, own_at = num_own + 1, job * num_own * num_own
    for column in range(num_own):
        for i in range(num_own):
            value = 0.0
            if i == column:
                value = caps[job * num_types + i] if i < num_types else 1.0
            for k in range(column, i):
                value -= chol[own_at + i * num_own + k] * reach[own_at + k * num_own + column]
            reach[own_at + i * num_own + column] = value * chol[own_at + i * num_own + i] if i >= column else 0.0
    for i in range(num_types):
        for j in range(num_types):
            value = 0.0
            for k in range(max(i, j), num_own):
                value += reach[own_at + k * num_own + i] * reach[own_at + k * num_own + j]
            system[i * wide + j] += value


def take_out_cone(job: int, shape: Any, matrix: Any, ratios: Any, factors: Any) -> None:
    """A job's second local row, in which the last variable stands, eliminated from the system."""
    num_types, num_local = len(shape[1]), len(shape[2])
    dense, last, reach, pivots, system = matrix[1], matrix[3], factors[2], factors[3], factors[4]
    num_own = num_types + 1
    wide, own_at = num_own + 1, job * num_own * num_own
    pull = dense[job * num_local * num_own + num_own + num_types]
    alone = reach[own_at + num_own * num_own - 1]
    pivot = ratios[job * (num_types + num_local) + num_types + 1] + pull * pull * alone * alone
    pivots[job] = pivot
    for i in range(num_types):
        drag = pull * reach[own_at + num_types * num_own + i] * alone
        for j in range(num_types):
            system[i * wide + j] -= drag * pull * reach[own_at + num_types * num_own + j] * alone / pivot
        system[i * wide + num_types] += drag * last[job] / pivot
        system[num_types * wide + i] -= drag * last[job] / pivot
    system[num_types * wide + num_types] += last[job] * last[job] / pivot


def solve_blocks(shape: Any, matrix: Any, cones: Any, factors: Any, right: Any, answer: Any) -> None:
    """x and z with `A' z` and `A x - H z` as given on the right, H being the scaling of the rows."""
    num_jobs, num_types, num_local, cone = shape[0], len(shape[1]), len(shape[2]), len(shape[3])
    system = factors[4]
    right_x, right_z = right
    x, z = answer
    num_own = num_types + cone
    shared = num_jobs * (num_types + num_local)
    wide = num_own + 1
    for kind in range(num_types):
        system[kind * wide + num_own] = -right_z[shared + kind]
    if cone:
        system[num_types * wide + num_own] = right_x[num_jobs * num_own]
    for job in range(num_jobs):
        go_forward(job, shape, matrix, cones, factors, right, answer)
    solve_small(num_own, system)
    for kind in range(num_types):
        z[shared + kind] = system[kind * wide + num_own]
    top = 0.0
    if cone:
        top = system[num_types * wide + num_own]
        x[num_jobs * num_own] = top
    for job in range(num_jobs):
        go_back(job, top, shape, matrix, cones, factors, right_z, answer)


def go_forward(job: int, shape: Any, matrix: Any, cones: Any, factors: Any, right: Any, answer: Any) -> None:
    """One job's variables as if nothing were shared, and its part of the right side of what is."""
    num_types, num_local, cone = len(shape[1]), len(shape[2]), len(shape[3])
    diag, dense, _, last = matrix
    scaled, chol, reach, pivots, system, forces, soft = factors
    right_x, right_z = right
    x, z = answer
    num_own, stride = num_types + cone, num_types + num_local
    wide = num_own + 1
    at, row, entry, own_at = job * num_own, job * stride, job * num_local * num_own, job * num_own * num_own
    for local in range(num_local - 3 * cone):
        z[row + num_types + local] = right_z[row + num_types + local] * soft[row + num_types + local]
    if cone:
        squeeze(cones, job, right_z, row + stride - 3, z, row + stride - 3)
    for i in range(num_own):
        value = right_x[at + i]
        if i < num_types:
            value += diag[job * num_types + i] * right_z[row + i] * soft[row + i]
        for local in range(num_local):
            if not (cone and local == 1):
                value += scaled[entry + local * num_own + i] * z[row + num_types + local]
        for k in range(i):
            value -= chol[own_at + i * num_own + k] * x[at + k]
        x[at + i] = value * chol[own_at + i * num_own + i]
    push = 0.0
    if cone:
        pull = dense[entry + num_own + num_types]
        alone = reach[own_at + num_own * num_own - 1]
        forces[job] = (pull * alone * x[at + num_types] - right_z[row + num_types + 1]) / pivots[job]
        push = pull * alone * forces[job]
        system[num_types * wide + num_own] -= last[job] * forces[job]
    for i in range(num_types):
        value = 0.0
        for k in range(i, num_own):
            value += reach[own_at + k * num_own + i] * x[at + k]
        if cone:
            value -= push * reach[own_at + num_types * num_own + i]
        system[i * wide + num_own] += value


def go_back(job: int, top: float, shape: Any, matrix: Any, cones: Any, factors: Any, right_z: Any, answer: Any) -> None:
    """One job's variables and prices, once what is shared is known."""
    num_jobs, num_types, num_local, cone = shape[0], len(shape[1]), len(shape[2]), len(shape[3])
    diag, scaled, chol, reach, soft = matrix[0], factors[0], factors[1], factors[2], factors[6]
    x, z = answer
    num_own, stride = num_types + cone, num_types + num_local
    shared = num_jobs * stride
    at, row, entry, own_at = job * num_own, job * stride, job * num_local * num_own, job * num_own * num_own
    price = 0.0
    if cone:
        price = price_cone(job, top, shape, matrix, factors, answer)
    for k in range(num_own):
        for i in range(min(k + 1, num_types)):
            x[at + k] -= reach[own_at + k * num_own + i] * z[shared + i]
    for i in range(num_own - 1, -1, -1):
        value = x[at + i]
        for k in range(i + 1, num_own):
            value -= chol[own_at + k * num_own + i] * x[at + k]
        x[at + i] = value * chol[own_at + i * num_own + i]
    for i in range(num_types):
        z[row + i] = (diag[job * num_types + i] * x[at + i] - right_z[row + i]) * soft[row + i]
    for local in range(num_local):
        value = -z[row + num_types + local]
        for own in range(num_own):
            value += scaled[entry + local * num_own + own] * x[at + own]
        z[row + num_types + local] = value
    for local in range(num_local - 3 * cone):
        z[row + num_types + local] *= soft[row + num_types + local]
    if cone:
        squeeze(cones, job, z, row + stride - 3, z, row + stride - 3)
        z[row + num_types + 1] = price


def price_cone(job: int, top: float, shape: Any, matrix: Any, factors: Any, answer: Any) -> float:
    """The price of a job's second local row; its last own variable moves by it."""
    num_jobs, num_types, num_local = shape[0], len(shape[1]), len(shape[2])
    dense, last, reach, pivots, forces = matrix[1], matrix[3], factors[2], factors[3], factors[5]
    x, z = answer
    num_own = num_types + 1
    shared, own_at = num_jobs * (num_types + num_local), job * num_own * num_own
    pull = dense[job * num_local * num_own + num_own + num_types]
    alone = reach[own_at + num_own * num_own - 1]
    price: float = last[job] * top
    for i in range(num_types):
        price -= pull * alone * reach[own_at + num_types * num_own + i] * z[shared + i]
    price = forces[job] + price / pivots[job]
    x[job * num_own + num_types] -= alone * pull * price
    return price


def times_scaling(shape: Any, ratios: Any, cones: Any, z: Any, out: Any) -> None:
    """H z: the rows' scaling twice."""
    num_jobs, num_types, num_local, cone = shape[0], len(shape[1]), len(shape[2]), len(shape[3])
    stride = num_types + num_local
    for at in range(len(z)):
        out[at] = ratios[at] * z[at]
    if cone:
        for job in range(num_jobs):
            first = (job + 1) * stride - 3
            stretch(cones, job, z, first, out, first)
            stretch(cones, job, out, first, out, first)
