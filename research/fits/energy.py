"""Fits what GPUs draw, and how a step stretches under a power limit: python -m research.fits.energy (two minutes).

Labels: mean watts and epoch times of one GPU at a time under power limits (../shared/data/energy). Each GPU is left out in turn;
every pair of GPU and network weighs alike. The constants that are printed stand in the document `power`.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from traincast.cost._power import needs_of, power, work_of
from traincast.errors import TraincastError
from traincast.forecast import answer
from traincast.plan import decide
from traincast.spec import Question, WorkloadOptions

Array = NDArray[np.float64]
Draw = Callable[[Array, dict[str, NDArray[Any]]], Array]
PER_FLOP = 1e-11
STARTS = (0.2, 1.0, 0.5)
TABLE = Path(__file__).resolve().parents[3] / "shared" / "data" / "energy" / "zeus_power.parquet"
DEVICES = {"a40": "a40", "p100": "p100-pcie-16g", "rtx6000": "quadro-rtx-6000"}
WORKLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "shufflenetv2": ("shufflenet_v2_x1_0", {"input_size": 128, "num_classes": 100}), "resnet50": ("resnet50", {}),
    "deepspeech2": ("deepspeech2", {}), "ncf": ("neumf-ml1m", {}), "squad": ("bert-base-squad", {"seq": 384}),
    "sentiment140": ("bert-base-uncased", {"seq": 64}),
}  # fmt: skip
"""The shufflenet of CIFAR keeps the size of its images in the first layer, as the catalogue's does with 128 pixels."""
LOADED = ("ncf", "deepspeech2")
"""Networks whose epochs wait for the host or the loader, of which the source says nothing: they teach no draw at work."""


def read_table() -> dict[str, NDArray[Any]]:
    """Columns of the labels with what a forecast says of each step: how busy it is, rated watts, FLOP and bytes in a second."""
    from pyarrow import parquet

    rows = parquet.read_table(TABLE).to_pylist()
    told: dict[tuple[Any, ...], tuple[float, ...]] = {}
    for row in rows:
        key = row["gpu"], row["network"], row["dataset"], row["batch_size"]
        if key not in told:
            told[key] = _forecast(*key)
    kept = [(row, told[row["gpu"], row["network"], row["dataset"], row["batch_size"]]) for row in rows]
    table = {name: np.array([row[name] for row, _ in kept]) for name in rows[0]}
    names = ("busy", "rated", "lanes", "bandwidth")
    table |= {name: np.array([found[place] for _, found in kept]) for place, name in enumerate(names)}
    first = {
        (row["gpu"], row["network"], row["dataset"], row["batch_size"]): (row["average_watts"], row["epoch_s"])
        for row, found in kept
        if row["power_limit_watts"] == found[1]
    }
    keys = [(row["gpu"], row["network"], row["dataset"], row["batch_size"]) for row, _ in kept]
    table["free_watts"] = np.array([first[key][0] for key in keys])
    table["stretch"] = table["epoch_s"] / np.array([first[key][1] for key in keys])
    return table


def _forecast(gpu: str, network: str, dataset: str, batch: int) -> tuple[float, ...]:
    source, said = WORKLOADS.get(network) or WORKLOADS[dataset]
    workload = WorkloadOptions(batch=int(batch), precision="tf32" if gpu == "a40" else "fp32", optimizer="sgd", **said)
    question = Question(
        source=source, workload=workload, cluster={"device": DEVICES[gpu], "nodes": 1, "devices_per_node": 1},
        parallelism={"micro_batches": 1, "zero": 0, "recompute": "none"}, job={"steps": 1},
    )  # fmt: skip
    try:
        resolved = decide(question)
        found, device = answer(resolved), resolved.cluster.groups[0].device
    except TraincastError as error:
        raise SystemExit(f"{gpu} {network} {batch}: {error}") from error
    needs = needs_of(device, work_of(resolved.job.graph), passes_per_s=1 / found.step.seconds)
    if needs is None or device.power_watts is None:
        raise SystemExit(f"{gpu}: no GPU whose power is known")
    busy = found.timeline.busy_s / found.timeline.duration_s
    return busy, device.power_watts, needs.lane_flop_per_s, needs.bandwidth_share


def draw(p: Array, t: dict[str, NDArray[Any]]) -> Array:
    """Watts without a limit: of waiting, of arithmetic in units of PER_FLOP, and of memory."""
    return np.asarray(
        np.minimum(t["rated"], t["rated"] * (p[0] + p[2] * t["bandwidth"]) + p[1] * PER_FLOP * t["lanes"])
    )


def draw_busy(p: Array, t: dict[str, NDArray[Any]]) -> Array:
    """The same where only how long kernels run is known."""
    return np.asarray(t["rated"] * (p[0] + p[1] * t["busy"]))


def hold(p: Array, t: dict[str, NDArray[Any]], free: Array) -> tuple[Array, Array]:
    """Watts and stretch under a limit: the clock follows what is left above the static draw, and part of the work the clock."""
    kept = np.minimum(free, t["power_limit_watts"] * p[1])
    static = np.minimum(p[0] * t["rated"], 0.7 * free)
    slower = np.where(
        kept < free, (free - static) / np.maximum(kept - static, power().least_left * (free - static)), 1.0
    )
    return kept, np.asarray(1 + p[2] * (slower - 1))


def _weights(t: dict[str, NDArray[Any]]) -> Array:
    names = np.char.add(t["gpu"].astype(str), t["network"].astype(str))
    counts = {name: (names == name).sum() for name in set(names.tolist())}
    return np.asarray(np.sqrt([1.0 / counts[name] for name in names]))


def fit_draw(t: dict[str, NDArray[Any]], form: Draw, start: Sequence[float]) -> Array:
    part = _pick(t, (t["power_limit_watts"] == t["rated"]) & ~np.isin(t["network"], LOADED))
    return np.asarray(
        least_squares(
            lambda p: _weights(part) * np.log(form(p, part) / part["average_watts"]), start, loss="soft_l1", f_scale=0.1,
            bounds=(1e-3, 10.0),
        ).x
    )  # fmt: skip


def fit_hold(t: dict[str, NDArray[Any]]) -> Array:
    def missed(p: Array) -> Array:
        watts, stretched = hold(p, t, t["free_watts"])
        both = [np.log(watts / t["average_watts"]), np.log(stretched / t["stretch"])]
        return np.concatenate([_weights(t) * one for one in both])

    bounds = ([0.05, 0.85, 0.0], [0.35, 1.05, 1.0])
    return np.asarray(least_squares(missed, [0.2, 0.95, 0.3], loss="soft_l1", f_scale=0.02, bounds=bounds).x)


def _pick(t: dict[str, NDArray[Any]], rows: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    return {name: column[rows] for name, column in t.items()}


def _off(told: Array, seen: Array) -> str:
    errors = np.abs(told / seen - 1)
    return f"mean {100 * errors.mean():.1f}% median {100 * np.median(errors):.1f}%"


def main() -> int:
    table = read_table()
    errors: list[Array] = []
    for gpu in DEVICES:
        known, asked = _pick(table, table["gpu"] != gpu), _pick(table, table["gpu"] == gpu)
        held, drawn = fit_hold(known), fit_draw(known, draw, STARTS)
        plain = fit_draw(known, draw_busy, STARTS[:2])
        asked = _pick(asked, asked["power_limit_watts"] < asked["rated"])
        watts, stretched = hold(held, asked, asked["free_watts"])
        energy = _off(watts * stretched, asked["average_watts"] * asked["stretch"])
        sys.stdout.write(
            f"{gpu} left out, {len(watts)} limited runs, free draw given: watts {_off(watts, asked['average_watts'])}; "
            f"stretch {_off(stretched, asked['stretch'])}; energy per step {energy}\n"
        )
        watts, stretched = hold(held, asked, draw(drawn, asked))
        told = ~np.isin(asked["network"], LOADED)
        errors.append(np.log(asked["average_watts"] / watts)[told])
        busy, _ = hold(held, asked, draw_busy(plain, asked))
        rated = np.minimum(asked["rated"] * (asked["busy"] + 0.25 * (1 - asked["busy"])), asked["power_limit_watts"])
        others = {"how busy it is alone": busy, "rated power at work and a quarter while it waits": rated}
        cells = "; ".join(f"{name} {_off(one[told], asked['average_watts'][told])}" for name, one in others.items())
        sys.stdout.write(
            f"  nothing given: watts {_off(watts[told], asked['average_watts'][told])} ({cells}); networks that wait for a "
            f"loader {_off(watts[~told], asked['average_watts'][~told])}\n"
        )
    missed = np.abs(np.expm1(-np.concatenate(errors)))
    sys.stdout.write(f"all three, nothing given: watts mean {100 * missed.mean():.1f}% off, n {len(missed)}\n")
    drawn, held = fit_draw(table, draw, STARTS), fit_hold(table)
    plain = fit_draw(table, draw_busy, STARTS[:2])
    low, high = (float(np.quantile(np.concatenate(errors), each)) for each in (0.05, 0.95))
    sys.stdout.write(
        f"idle {drawn[0]:.3f} lane_joules_per_flop {drawn[1] * PER_FLOP:.2e} traffic {drawn[2]:.3f} full {plain.sum():.3f} "
        f"static {held[0]:.3f} kept {held[1]:.3f} follows {held[2]:.3f} drawn_low {np.exp(low):.2f} "
        f"drawn_high {np.exp(high):.2f}\n"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
