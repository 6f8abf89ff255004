"""Rows of measured steps to what corrects the operators of a program: a factor for each class, or a graph network."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from research.fits.interaction_gpu.data import Data
from traincast.cost._interaction.nodes import LAST

Array = NDArray[np.float64]
Places = NDArray[np.intp]

BOUND = 0.7
"""The logarithm of the largest correction of a network."""
WIDTH, EPOCHS, RATE, BATCH = 28, 20, 5e-3, 48
KEEP_SMALL = 0.05
"""Weight of the mean square of corrections, weighed by time, beside the loss of a step."""
HUBER = 0.15
NOISE, WIDE, NARROW = 0.10, 0.05, 0.05
"""Of a step's log error in the fit of factors by class; prior standard deviations of a class and of its memory format, of five
pairs the one with which also the other GPU and the other version of PyTorch gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All rows as flat arrays: entries join a row with a node of its program."""

    classes: tuple[str, ...]
    node_class: Places
    numbers: Array
    """Own numbers, then those around."""
    reference_s: Array
    node_program: Places
    first: Places
    """Of each program, its first node; one more at the end."""
    row_program: Places
    entry_row: Places
    entry_node: Places
    entry_s: Array
    entry_first: Places
    rest_s: Array
    log_measured: Array
    weight: Array

    @staticmethod
    def of(data: Data, *, cases_weight: float = 0.5) -> "Table":
        names = sorted({name for program in data.programs for name in program.classes})
        place_of = {name: place for place, name in enumerate(names)}
        sizes = np.array([len(program.classes) for program in data.programs])
        first = np.concatenate([[0], np.cumsum(sizes)])
        row_program = np.array([row.program for row in data.rows], dtype=np.intp)
        counts = sizes[row_program]
        sources = [data.programs[row.program].source for row in data.rows]
        return Table(
            classes=tuple(names),
            node_class=np.array([place_of[name] for program in data.programs for name in program.classes], dtype=np.intp),
            numbers=np.concatenate(
                [np.concatenate([program.own, program.around], axis=1) for program in data.programs]
            ),
            reference_s=np.concatenate([program.reference_s for program in data.programs]),
            node_program=np.repeat(np.arange(len(sizes)), sizes),
            first=first.astype(np.intp), row_program=row_program,
            entry_row=np.repeat(np.arange(len(counts)), counts),
            entry_node=np.concatenate([np.arange(first[place], first[place + 1]) for place in row_program.tolist()]),
            entry_s=np.concatenate([row.seconds for row in data.rows]),
            entry_first=np.concatenate([[0], np.cumsum(counts)]).astype(np.intp),
            rest_s=np.array([row.rest_s for row in data.rows]),
            log_measured=np.log([row.measured_s for row in data.rows]),
            weight=np.array([1.0 if source == "timm" else cases_weight for source in sources]),
        )  # fmt: skip

    def log_step(self, logs: Array) -> Array:
        """The logarithm of each row's step when its nodes are corrected by these logarithms."""
        spent = self.entry_s * np.exp(logs[self.entry_node])
        return np.log(np.bincount(self.entry_row, weights=spent, minlength=len(self.rest_s)) + self.rest_s)


def fit_classes(table: Table, rows: NDArray[np.bool_]) -> Array:
    """Of each class the logarithm of a factor: ridge regression towards none, by iterated least squares."""
    number = len(table.classes)
    place_of = {name: place for place, name in enumerate(table.classes)}
    base = [place_of.get(name.removesuffix(LAST), place) for place, name in enumerate(table.classes)]
    # A factor is the product of what the class has in all memory formats and in its own.
    make = np.zeros((number, 2 * number))
    make[np.arange(number), base] = WIDE
    make[np.arange(number), number + np.arange(number)] = NARROW
    chosen = np.flatnonzero(rows)
    entries = rows[table.entry_row]
    back = np.zeros(len(rows), dtype=np.intp)
    back[chosen] = np.arange(len(chosen))
    key = back[table.entry_row[entries]] * number + table.node_class[table.entry_node[entries]]
    spent = np.bincount(key, weights=table.entry_s[entries], minlength=len(chosen) * number).reshape(-1, number)
    theta = np.zeros(2 * number)
    for _ in range(8):
        scaled = spent * np.exp(make @ theta)
        total = scaled.sum(axis=1) + table.rest_s[chosen]
        slope = (scaled / total[:, None]) @ make
        missed = np.log(total) - table.log_measured[chosen]
        trust = np.minimum(1.0, HUBER / np.maximum(np.abs(missed), 1e-9)) / NOISE**2
        normal = slope.T @ (slope * trust[:, None]) + np.eye(2 * number)
        theta = np.linalg.solve(normal, slope.T @ (trust * (slope @ theta - missed)))
    return np.asarray(make @ theta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A network as numpy arrays."""

    centre: Array
    scale: Array
    enter: Array
    enter_class: Array
    middle: Array
    middle_bias: Array
    leave: Array
    bound: float

    def apply(self, table: Table) -> Array:
        scaled = np.clip((table.numbers - self.centre) / self.scale, -3.0, 3.0)
        state = np.tanh(scaled @ self.enter + self.enter_class[table.node_class])
        state = np.tanh(state @ self.middle + self.middle_bias)
        return np.asarray(self.bound * np.tanh(state @ self.leave / self.bound))


def fit_network(
    table: Table,
    rows: NDArray[np.bool_],
    *,
    seed: int = 0,
    bound: float = BOUND,
    keep_small: float = KEEP_SMALL,
) -> Trained:
    """By stochastic gradient descent on the log error of whole steps."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    known = np.zeros(len(table.first) - 1, dtype=bool)
    known[table.row_program[rows]] = True
    inside = known[table.node_program]
    numbers = table.numbers
    centre, scale = numbers[inside].mean(axis=0), numbers[inside].std(axis=0) + 1e-3
    wide = numbers.shape[1]
    inputs = torch.tensor(np.clip((numbers - centre) / scale, -3, 3), dtype=torch.float32)
    sorts = torch.tensor(table.node_class)
    generator = torch.Generator().manual_seed(seed)
    enter = (torch.randn(wide, WIDTH, generator=generator) / wide**0.5).requires_grad_()
    enter_class = torch.zeros(len(table.classes) + 1, WIDTH).requires_grad_()
    middle = (torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5).requires_grad_()
    middle_bias = torch.zeros(WIDTH).requires_grad_()
    leave = torch.zeros(WIDTH).requires_grad_()
    weights = [enter, enter_class, middle, middle_bias, leave]
    programs = np.flatnonzero(known)
    of_program: dict[int, list[int]] = {}
    for row in np.flatnonzero(rows).tolist():
        of_program.setdefault(int(table.row_program[row]), []).append(row)
    steps = EPOCHS * -(-len(programs) // BATCH)
    optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps + 1)
    draw = np.random.default_rng(seed)
    for _ in range(EPOCHS):
        draw.shuffle(programs)
        for begin in range(0, len(programs), BATCH):
            batch = _Batch.of(table, programs[begin : begin + BATCH].tolist(), of_program)
            state = torch.tanh(inputs[batch.nodes] @ enter + enter_class[sorts[batch.nodes]])
            state = torch.tanh(state @ middle + middle_bias)
            logs = bound * torch.tanh(state @ leave / bound)
            spent = batch.seconds * torch.exp(logs[batch.entry_node])
            total = batch.rest_s.index_add(0, batch.entry_row, spent)
            missed = torch.log(total) - batch.log_measured
            size = missed.abs()
            loss = torch.where(size < HUBER, 0.5 * missed**2, HUBER * (size - 0.5 * HUBER))
            small = (batch.share * logs**2).sum() / len(missed)
            optimizer.zero_grad()
            ((batch.weight * loss).mean() + keep_small * small).backward()
            optimizer.step()
            schedule.step()
    found = [one.detach().double().numpy() for one in weights]
    return Trained(
        centre=centre, scale=scale, enter=found[0], enter_class=found[1], middle=found[2], middle_bias=found[3],
        leave=found[4], bound=bound,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Some programs with their rows, as tensors. Seconds are in units of the step, which keeps single precision."""

    nodes: Any
    entry_node: Any
    entry_row: Any
    seconds: Any
    share: Any
    rest_s: Any
    log_measured: Any
    weight: Any

    @staticmethod
    def of(table: Table, programs: Sequence[int], rows_of: dict[int, list[int]]) -> "_Batch":
        import torch

        sizes = (table.first[np.array(programs) + 1] - table.first[programs]).tolist()
        nodes = np.concatenate([np.arange(table.first[one], table.first[one + 1]) for one in programs])
        start = dict(zip(programs, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
        rows = [row for one in programs for row in rows_of[one]]
        counts = table.entry_first[np.array(rows) + 1] - table.entry_first[rows]
        owner = np.repeat(np.arange(len(rows)), counts)
        entries = np.concatenate([np.arange(table.entry_first[row], table.entry_first[row + 1]) for row in rows])
        begins = np.array([start[int(table.row_program[row])] for row in rows])
        entry_node = np.arange(len(entries)) - np.repeat(np.cumsum(counts) - counts - begins, counts)
        whole = np.bincount(owner, weights=table.entry_s[entries], minlength=len(rows)) + table.rest_s[rows]
        seconds = table.entry_s[entries] / whole[owner]
        share = np.bincount(entry_node, weights=seconds, minlength=len(nodes))
        numbers = [
            seconds,
            share,
            table.rest_s[rows] / whole,
            table.log_measured[rows] - np.log(whole),
            table.weight[rows],
        ]
        seconds_, share_, rest_, measured_, weight_ = (torch.tensor(one, dtype=torch.float32) for one in numbers)
        return _Batch(
            nodes=torch.tensor(nodes), entry_node=torch.tensor(entry_node), entry_row=torch.tensor(owner), seconds=seconds_,
            share=share_, rest_s=rest_, log_measured=measured_, weight=weight_,
        )  # fmt: skip
