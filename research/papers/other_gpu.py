"""A step measured on one GPU carried to another: Habitat's wave scaling beside ours. Run: python -m research.papers.other_gpu

Image models measured on an RTX 3090 and an RTX 4090 with the same software; the newer GPU is asked. *Known step*: the method is
told what the same model took on the older GPU. Wave scaling gets, as Habitat does, the time of each kind of operators: the
measured step shared out by the roofline. Ours multiplies the measured step by the ratio of two forecasts. Without a known step:
ours with the members fitted without the newer GPU and without the family, and the roofline.
"""

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from research.baselines.operators import peak_flop_per_s, scale_by_intensity
from research.fits.interaction_gpu.__main__ import leave_newer_out, recall_left_out
from research.fits.interaction_gpu.blend import LeftOut, correct, cross_fit
from research.fits.interaction_gpu.data import Data, Program, read_everything
from research.fits.interaction_gpu.members import Table
from research.output import say
from traincast import catalog
from traincast.spec import Device

Array = NDArray[np.float64]
PAIRS = (("3090 eager 2.4", "4090 eager 2.4"), ("3090 NHWC 2.4", "4090 NHWC 2.4"))
ORIGIN, TARGET = "rtx-3090", "rtx-4090"
INFERENCE = "inference on images"


def roofline_by_kind(program: Program, device: Device) -> Array:
    peak = peak_flop_per_s(device, "fp16")
    return np.array([max(flop / peak, moved / device.memory_bytes_per_s) for flop, moved, _ in program.totals.values()])


def carry_by_waves(program: Program, measured_s: float) -> float:
    origin, target = catalog.device(ORIGIN), catalog.device(TARGET)
    spent = roofline_by_kind(program, origin)
    intensity = np.array([flop / max(moved, 1.0) for flop, moved, _ in program.totals.values()])
    seconds = measured_s * spent / max(float(spent.sum()), 1e-30)
    return float(scale_by_intensity(seconds, intensity, origin=origin, target=target).sum())


def compare(data: Data, table: Table, newer: Sequence[LeftOut]) -> str:
    """Markdown, both layouts."""
    lines = [
        "| condition | method | n | mean % | median % | p90 % | RMSE ms | x ours with a known step |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    plain = np.exp(table.log_step(np.zeros(len(table.node_class))))
    answers = [answer_left_out(table, one) for one in newer]
    for known, asked in PAIRS:
        place_of = {_model(data, place): place for place, row in enumerate(data.rows) if row.condition == known}
        pairs = [
            (place_of[_model(data, place)], place)
            for place, row in enumerate(data.rows)
            if row.condition == asked and _model(data, place) in place_of
        ]
        old, new = (np.array(column) for column in zip(*pairs, strict=True))
        measured = np.exp(table.log_measured)
        programs = [data.programs[table.row_program[place]] for place in new.tolist()]
        found = {
            "ours, known step x ratio of forecasts": measured[old] * plain[new] / plain[old],
            "wave scaling, known step": np.array(
                [carry_by_waves(one, measured[place]) for one, place in zip(programs, old.tolist(), strict=True)]
            ),
            "ours, GPU and family left out": np.exp(np.mean([np.log(one[new]) for one in answers], axis=0)),
            "layers alone": plain[new],
            "roofline": np.array([float(roofline_by_kind(one, catalog.device(TARGET)).sum()) for one in programs]),
        }
        best = float(np.abs(found["ours, known step x ratio of forecasts"] / measured[new] - 1).mean())
        for name, said in found.items():
            lines.append(_line(asked, name, said, measured[new], best))
    return "\n".join(lines)


def answer_left_out(table: Table, newer: LeftOut) -> Array:
    """Seconds of every row by the blend of the behaviour."""
    blend, _ = cross_fit(table, newer, newer.behaviour == INFERENCE)
    return np.exp(table.log_step(correct(table, newer, blend)))


def _model(data: Data, place: int) -> str:
    return data.programs[data.rows[place].program].name


def _line(condition: str, name: str, said: Array, truth: Array, best: float) -> str:
    errors = np.abs(said / truth - 1)
    rmse_s = float(np.sqrt(np.mean((said - truth) ** 2)))
    cells = [f"{100 * value:.1f}" for value in (errors.mean(), np.median(errors), np.quantile(errors, 0.9))]
    return f"| {condition} | {name} | {len(truth)} | {' | '.join(cells)} | {1000 * rmse_s:.0f} | {errors.mean() / best:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    data = read_everything()
    table = Table.of(data)
    seeds = [recall_left_out(data, table, seed=seed) for seed in range(parser.parse_args().seeds)]
    newer = [leave_newer_out(data, table, one, seed=seed) for seed, one in enumerate(seeds)]
    say(compare(data, table, newer))


if __name__ == "__main__":
    main()
