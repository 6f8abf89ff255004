"""Simulated and measured steps to the graph network of the twelve resource numbers."""

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from research.fits.interaction_gpu.data import TWELVE, Data, Program, Row
from research.fits.methods.__main__ import Array, fold_rows, tell
from traincast.resources._twelve import CLIP, OUTPUTS, Rank, TwelveNetwork, measure_outputs, save_twelve
from traincast.spec import RESOURCES

WIDTH, HIDDEN = 32, 32
NEW_SETTINGS = ("sia", "mlperf")
STEPS, TUNING_STEPS, BATCH, RATE = 900, 500, 96, 4e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All steps as flat arrays: nodes of all programs, and for each step its program, setting and targets."""

    classes: dict[str, int]
    numbers: Array
    node_class: NDArray[np.intp]
    share: Array
    first: NDArray[np.intp]
    program: NDArray[np.intp]
    setting: Array
    targets: Array
    """Not a number where nothing is known."""


def rank_of(program: Program, row: Row) -> Rank:
    spent = np.maximum(program.reference_s, 1e-15)
    caps = dict(zip(RESOURCES, row.of("caps").tolist(), strict=True))
    if row.of("setting")[10] == 0:
        caps |= {"received": 0.0, "sent": 0.0}
    return Rank(
        numbers=np.concatenate([program.own, program.around], axis=1), classes=program.classes, shares=spent / spent.sum(),
        setting=row.of("setting"), guess_s=float(row.of("roofline_s")[0]), caps=caps,
    )  # fmt: skip


def target_of(row: Row, rank: Rank) -> list[float]:
    """Of a measured step its length and utilisation; the rest, as shares of a step, is what the timeline derives."""
    twelve = dict(zip(TWELVE, row.of("twelve").tolist(), strict=True))
    derived_s = twelve["gpu_idle_s"] + twelve["gpu_burst_s"]
    found = measure_outputs(derived_s, twelve, rank) if math.isfinite(derived_s) else {}
    watched = float(row.of("utilization")[0])
    if math.isfinite(watched):
        found["gpu_burst"] = measure_outputs(1.0, {"gpu_burst_s": watched}, rank)["gpu_burst"]
    step_s = row.measured_s if math.isfinite(row.measured_s) else float(row.of("layers_s")[0])
    found["step"] = math.log(step_s / rank.guess_s)
    return [found.get(name, math.nan) for name in OUTPUTS]


def tabulate(data: Data, classes: dict[str, int]) -> Table:
    sizes = [len(one.classes) for one in data.programs]
    ranks = [rank_of(data.programs[row.program], row) for row in data.rows]
    shares = [np.maximum(one.reference_s, 1e-15) for one in data.programs]
    return Table(
        classes=classes, numbers=np.concatenate([np.concatenate([one.own, one.around], axis=1) for one in data.programs]),
        node_class=np.array(
            [classes.get(name, len(classes)) for one in data.programs for name in one.classes], dtype=np.intp
        ),
        share=np.concatenate([one / one.sum() for one in shares]), first=np.concatenate([[0], np.cumsum(sizes)]),
        program=np.array([row.program for row in data.rows], dtype=np.intp),
        setting=np.array([rank.setting for rank in ranks]),
        targets=np.array([target_of(row, rank) for row, rank in zip(data.rows, ranks, strict=True)]),
    )  # fmt: skip


def _begin(simulated: Table, measured: Table, seed: int) -> tuple[dict[str, Array], dict[str, Any]]:
    import torch

    fixed = {
        "centre": np.concatenate([simulated.numbers, measured.numbers]).mean(axis=0),
        "scale": np.concatenate([simulated.numbers, measured.numbers]).std(axis=0) + 1e-2,
        "setting_centre": np.concatenate([simulated.setting, measured.setting]).mean(axis=0),
        "setting_scale": np.concatenate([simulated.setting, measured.setting]).std(axis=0) + 1e-2,
    }
    goals = np.concatenate([simulated.targets, measured.targets])
    fixed |= {"mean": np.nanmean(goals, axis=0), "spread": np.nanstd(goals, axis=0) + 0.02}
    draw = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Any:
        return (torch.randn(rows, columns, generator=draw) / rows**0.5).requires_grad_()

    wide, told = simulated.numbers.shape[1], simulated.setting.shape[1]
    weights = {
        "enter": matrix(wide, WIDTH), "enter_class": torch.zeros(len(simulated.classes) + 1, WIDTH).requires_grad_(),
        "mix": matrix(WIDTH + told, HIDDEN), "mix_bias": torch.zeros(HIDDEN).requires_grad_(),
        "second": matrix(HIDDEN, HIDDEN), "second_bias": torch.zeros(HIDDEN).requires_grad_(),
        "head": (0.05 * torch.randn(HIDDEN + 1, len(OUTPUTS), generator=draw)).requires_grad_(),
    }  # fmt: skip
    return fixed, weights


def fit(
    table: Table, rows: NDArray[np.intp], fixed: dict[str, Array], weights: dict[str, Any], *, steps: int, rate: float
) -> None:
    """By gradient descent on outputs that are known, in units of their deviation; beyond one an error counts linearly."""
    import torch

    torch.set_num_threads(1)
    numbers = torch.tensor(
        np.clip((table.numbers - fixed["centre"]) / fixed["scale"], -CLIP, CLIP), dtype=torch.float32
    )
    setting = torch.tensor(
        np.clip((table.setting - fixed["setting_centre"]) / fixed["setting_scale"], -CLIP, CLIP), dtype=torch.float32
    )
    goals = torch.tensor((table.targets - fixed["mean"]) / fixed["spread"], dtype=torch.float32)
    sorts, share = torch.tensor(table.node_class), torch.tensor(table.share, dtype=torch.float32)
    optimizer = torch.optim.AdamW(list(weights.values()), lr=rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=steps + 1)
    draw = np.random.default_rng(0)
    for _ in range(steps):
        batch = draw.choice(rows, size=min(BATCH, len(rows)), replace=False)
        spans = [np.arange(table.first[one], table.first[one + 1]) for one in table.program[batch].tolist()]
        nodes = torch.tensor(np.concatenate(spans))
        owner = torch.tensor(np.repeat(np.arange(len(batch)), [len(one) for one in spans]))
        state = torch.tanh(numbers[nodes] @ weights["enter"] + weights["enter_class"][sorts[nodes]])
        pooled = torch.zeros(len(batch), WIDTH).index_add(0, owner, share[nodes, None] * state)
        first = torch.tanh(torch.cat([pooled, setting[batch]], dim=1) @ weights["mix"] + weights["mix_bias"])
        last = torch.tanh(first @ weights["second"] + weights["second_bias"])
        told = torch.cat([last, torch.ones(len(batch), 1)], dim=1) @ weights["head"]
        known = ~torch.isnan(goals[batch])
        missed = torch.where(known, told - torch.nan_to_num(goals[batch]), torch.zeros(()))
        loss = torch.nn.functional.huber_loss(missed, torch.zeros_like(missed), reduction="sum") / known.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def export(
    table: Table, fixed: dict[str, Array], weights: dict[str, Any], sigma: dict[str, float], num_steps: int
) -> TwelveNetwork:
    arrays = {name: each for name, each in fixed.items() if name not in ("mean", "spread")}
    arrays |= {name: each.detach().double().numpy() for name, each in weights.items()}
    arrays["head"] = arrays["head"] * fixed["spread"]
    arrays["head"][-1] += fixed["mean"]
    return TwelveNetwork(classes=table.classes, arrays=arrays, log_sigma=sigma, num_steps=num_steps)


def answer(network: TwelveNetwork, data: Data, rows: NDArray[np.intp]) -> Array:
    ranks = [rank_of(data.programs[data.rows[row].program], data.rows[row]) for row in rows.tolist()]
    return np.array([network.answer(rank) for rank in ranks])


def train(data: Data, simulated: Data | None, *, write: bool) -> None:
    """Without simulated steps only what a new setting gains is printed."""
    if simulated is None:
        names = sorted({name for one in data.programs for name in one.classes})
        seen = tabulate(data, {name: place for place, name in enumerate(names)})
        compare_transfer(data, seen, None)
        return
    names = sorted({name for one in (*data.programs, *simulated.programs) for name in one.classes})
    classes = {name: place for place, name in enumerate(names)}
    taught, seen = tabulate(simulated, classes), tabulate(data, classes)
    fold, other = fold_rows(data), fold_rows(simulated)
    fixed, weights = _begin(taught, seen, 0)
    fit(taught, np.flatnonzero(other != 0), fixed, weights, steps=STEPS, rate=RATE)
    before = export(taught, fixed, weights, {}, 0)
    fit(seen, np.flatnonzero(fold != 0), fixed, weights, steps=TUNING_STEPS, rate=RATE / 2)
    left_out = np.flatnonzero(fold == 0)
    after = export(taught, fixed, weights, {}, 0)
    sigma: dict[str, float] = {}
    told, untuned, goals = answer(after, data, left_out), answer(before, data, left_out), seen.targets[left_out]
    for place, name in enumerate(OUTPUTS):
        known = np.isfinite(goals[:, place])
        if not known.any():
            sigma[name] = 1.0
            continue
        constant = float(np.nanmedian(seen.targets[fold != 0, place]))
        errors = [np.abs(each - goals[known, place]) for each in (told[known, place], untuned[known, place], constant)]
        sigma[name] = float(np.quantile(errors[0], 0.9)) / 1.645
        cells = " ".join(
            f"{label} {each.mean():.3f}"
            for label, each in zip(("tuned", "pre-trained", "constant"), errors, strict=True)
        )
        tell(f"{name} n {int(known.sum())}: mean absolute error of the output, left out: {cells}")
    compare_transfer(data, seen, taught)
    if write:
        fixed, weights = _begin(taught, seen, 0)
        fit(taught, np.arange(len(taught.program)), fixed, weights, steps=STEPS, rate=RATE)
        fit(seen, np.arange(len(seen.program)), fixed, weights, steps=TUNING_STEPS, rate=RATE / 2)
        save_twelve(export(taught, fixed, weights, sigma, len(taught.program) + len(seen.program)))


def compare_transfer(data: Data, seen: Table, taught: Table | None) -> None:
    """The clusters of a publisher as the new setting: layers moved by few runs, against a network trained on them alone."""
    for new in NEW_SETTINGS:
        _compare_transfer(data, seen, taught, new)


def _compare_transfer(data: Data, seen: Table, pretrained: Table | None, new: str) -> None:
    taught = pretrained or seen
    sources = np.array([data.programs[row.program].source for row in data.rows])
    here, elsewhere = np.flatnonzero(sources == new), np.flatnonzero(sources != new)
    fixed, weights = _begin(taught, seen, 1)
    if pretrained is None:
        fit(seen, elsewhere, fixed, weights, steps=STEPS, rate=RATE)
    else:
        fit(taught, np.arange(len(taught.program)), fixed, weights, steps=STEPS, rate=RATE)
        fit(seen, elsewhere, fixed, weights, steps=TUNING_STEPS, rate=RATE / 2)
    sigma = dict.fromkeys(OUTPUTS, 0.4)
    start = export(taught, fixed, weights, sigma, 0)
    order = np.random.default_rng(0).permutation(here)
    asked = order[len(order) // 2 :]
    goals = seen.targets[asked, 0]
    base = np.abs(np.expm1(answer(start, data, asked)[:, 0] - goals)).mean()
    tell(f"new clusters of {new}, {len(here)} runs: without runs {100 * base:.1f}%")
    for count in (2, 5, 10, 20, 40):
        rows = order[: min(count, len(order) // 2)]
        ranks = [rank_of(data.programs[data.rows[row].program], data.rows[row]) for row in rows.tolist()]
        known = [
            {name: float(value) for name, value in zip(OUTPUTS, seen.targets[row], strict=True) if math.isfinite(value)}
            for row in rows.tolist()
        ]
        began = time.process_time()
        moved = start.adapted(ranks, known)
        adapting_s = time.process_time() - began
        began = time.process_time()
        alone_fixed, alone = _begin(taught, seen, 2)
        fit(seen, rows, alone_fixed, alone, steps=TUNING_STEPS, rate=RATE)
        scratch_s = time.process_time() - began
        scratch = export(taught, alone_fixed, alone, sigma, 0)
        errors = [np.abs(np.expm1(answer(one, data, asked)[:, 0] - goals)).mean() for one in (moved, scratch)]
        tell(
            f"{len(rows)} runs: adapted {100 * errors[0]:.1f}% in {adapting_s:.3f} CPU s, from scratch {100 * errors[1]:.1f}% in "
            f"{scratch_s:.1f} CPU s"
        )
