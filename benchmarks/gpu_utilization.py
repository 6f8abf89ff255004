"""Forecast against measured mean GPU utilisation: python benchmarks/gpu_utilization.py CASES.parquet ... [--save]

Prints the mean absolute error in points for the timeline alone, for a constant (the median of the known rows) and for the
learned correction, with a model left out, a device left out and a random fifth left out. Runs whose log has no throughput
(they failed) are never learned from; they count only in the line "all". --save fits on all learned rows and writes the
coefficients into the package.
"""

import itertools
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from traincast.accuracy import parse_case, read_rows, translate
from traincast.errors import TraincastError
from traincast.forecast import forecast
from traincast.resources import Setting, fit_correction, save_correction, setting_of

COLUMN = "measured_gpu_util_pct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    setting: Setting
    batch: float
    forecast: float
    shipped: float | None
    """What a forecast says today, by the coefficients in the package, which have seen the row."""
    measured: float
    quality: str
    fold: int

    @property
    def learned(self) -> bool:
        return self.quality != "memory_only"


def load_runs(paths: Sequence[str]) -> list[Run]:
    order = random.Random(0)
    runs = []
    for path in paths:
        for row in read_rows(path):
            if row.get(COLUMN) is None:
                continue
            try:
                case = parse_case(row)
                question = translate(case)
                answer = forecast(question.job, question.cluster, question.parallelism)
            except TraincastError as error:
                print(f"{row['case_id']}: {error}", file=sys.stderr)
                continue
            shares = answer.timeline.shares
            setting = setting_of(question.job.graph, device=answer.device, num_devices=answer.num_devices)
            runs.append(
                Run(
                    setting=setting,
                    batch=case.micro_batch or 0.0,
                    forecast=1.0 - shares.get("host", 0.0) - shares.get("bubble", 0.0),
                    shipped=answer.run_utilization,
                    measured=row[COLUMN] / 100,
                    quality=row.get("quality") or "clean",
                    fold=order.randrange(5),
                )
            )
    return runs


def leave_out(runs: Sequence[Run], key: Callable[[Run], object]) -> list[tuple[Run, float, float]]:
    """(run, constant, corrected) for every run, each fold answered by the others."""
    answers = []
    for value in dict.fromkeys(key(run) for run in runs):
        known = [run for run in runs if key(run) != value and run.learned]
        constant = statistics.median(run.measured for run in known)
        correction = fit_correction(
            [run.setting for run in known],
            forecast=[run.forecast for run in known],
            measured=[run.measured for run in known],
        )
        answers.extend(
            (run, constant, correction.correct(run.forecast, run.setting)) for run in runs if key(run) == value
        )
    return answers


def report(title: str, answers: Sequence[tuple[Run, float, float]]) -> None:
    def points(errors: list[float]) -> str:
        return f"{100 * statistics.fmean(errors):6.2f}"

    for name, chosen in (("clean", ("clean",)), ("timed", ("clean", "suspect")), ("all", None)):
        rows = [answer for answer in answers if chosen is None or answer[0].quality in chosen]
        cells = [
            points([abs(run.forecast - run.measured) for run, _, _ in rows]),
            points([abs(constant - run.measured) for run, constant, _ in rows]),
            points([abs(corrected - run.measured) for run, _, corrected in rows]),
        ]
        print(f"| {title} | {name} | {len(rows)} | {' | '.join(cells)} |")


def report_repeats(runs: Sequence[Run]) -> None:
    """The same configuration on two machines, over the root of two: what no model of configurations can fall below."""
    for name, chosen in (("clean", ("clean",)), ("timed", ("clean", "suspect"))):
        alike: dict[object, list[float]] = {}
        for run in runs:
            if run.quality in chosen:
                alike.setdefault((run.setting, run.batch), []).append(run.measured)
        pairs = [found for found in alike.values() if len(found) > 1]
        apart = [abs(left - right) / 2**0.5 for found in pairs for left, right in itertools.combinations(found, 2)]
        print(
            f"noise, {name}: {100 * statistics.fmean(apart):.2f} points from {len(apart)} pairs of equal configurations"
        )


def main() -> None:
    paths = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    if not paths:
        sys.exit(__doc__)
    runs = load_runs(paths)
    print("| left out | rows | n | timeline | constant | corrected |\n|---|---|--:|--:|--:|--:|")
    by_model = leave_out(runs, lambda run: run.setting.workload)
    report("model", by_model)
    for workload in dict.fromkeys(run.setting.workload for run in runs):
        report(f"  of which {workload}", [one for one in by_model if one[0].setting.workload == workload])
    report("device", leave_out(runs, lambda run: run.setting.device))
    report("random fifth", leave_out(runs, lambda run: run.fold))
    report("nothing: as shipped", [(run, run.measured, run.shipped or run.forecast) for run in runs])
    report_repeats(runs)
    if "--save" in sys.argv:
        learned = [run for run in runs if run.learned]
        correction = fit_correction(
            [run.setting for run in learned],
            forecast=[run.forecast for run in learned],
            measured=[run.measured for run in learned],
        )
        save_correction(correction, command="python benchmarks/gpu_utilization.py CASES.parquet ... --save")


if __name__ == "__main__":
    main()
