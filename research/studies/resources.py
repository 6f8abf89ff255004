"""The twelve resource numbers on our corpus: the noise of their labels, unseen architectures and families, Driple, transfer.

python -m research.studies.resources noise  # how far two measurements of the same lie apart (seconds)
python -m research.studies.resources ours   # physics, the process and the graph network (two minutes for each seed)
python -m research.studies.resources transfer # to each setting, never seen (twenty seconds for each and each seed)
python -m research.studies.resources driple 4x1gbit # Driple's network beside ours (two CPU minutes for each setting and seed)
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from research.corpus import load_corpus
from research.papers.driple import (
    METHODS,
    NAMES,
    Measured,
    TargetScore,
    TransferPoint,
    coverage,
    errors_of,
    find_ranges,
    fold_of,
    label_noise,
    mean_over_targets,
    predict_left_out,
    read_runs,
    relative_error,
    repeat_noise,
    saved_times,
    split_by,
    summarise,
    transfer,
)
from research.papers.stack import Learner
from traincast.files import write_whole
from traincast.profile import SETTINGS, Setting, total_memory_bytes
from traincast.report import Curve, draw_curves
from traincast.resources import profile_samples
from traincast.spec import ResourceProfile

COUNTS = (0, 2, 5, 10, 20, 40, 80)


def print_noise(rows: Sequence[Measured]) -> None:
    _print_scores("noise of the labels, from neighbouring settings", label_noise(rows))
    if any(row.step.visited_often for row in rows):
        _print_scores("noise of the labels of steps visited often, from their visits", repeat_noise(rows))


def _print_scores(what: str, scores: Sequence[TargetScore]) -> None:
    print(f"{what}: {mean_over_targets(scores):.1%} mean over the twelve")
    for score in scores:
        print(f"  {score.target:18} n {score.num_rows:5}  {score.mean:7.1%} / {score.median:6.1%}")


def print_repeats(path: Path) -> None:
    """Blocks that a campaign measured twice: the first and the second of each, over the root of two."""
    settings = {setting.name: setting for setting in SETTINGS}
    blocks: dict[str, list[dict[str, Any]]] = {}
    with path.open() as stream:
        for line in stream:
            block = json.loads(line)
            blocks.setdefault(block["experiment"], []).append(block)
    errors: dict[str, list[float]] = {name: [] for name in NAMES}
    for experiment, found in blocks.items():
        if len(found) < 2 or any(len(block["ranks"][0]) < 4 for block in found):
            continue
        words = dict(pair.split("=") for pair in experiment.rpartition("(")[2].rstrip(")").split(", "))
        setting = settings[f"{words['num_ranks']}x{words['network']}"]
        one, other = (_profile_block(block, setting) for block in found[:2])
        for name in NAMES:
            if setting.num_ranks > 1 or not name.startswith(("received", "sent")):
                pairs = ((one, other), (other, one))
                missed = [
                    relative_error(name, predicted=b.twelve()[name], measured=a.twelve()[name], step_s=a.step_s)
                    for a, b in pairs
                ]
                errors[name].append(statistics.fmean(missed) / 2**0.5)
    _print_scores("noise of the labels, from repeated blocks", summarise(errors))


def _profile_block(block: Mapping[str, Any], setting: Setting) -> ResourceProfile:
    times_s, cpu_s, received, sent, resident = zip(*block["ranks"][0], strict=True)
    node_bytes = total_memory_bytes() / setting.num_ranks
    return profile_samples(
        times_s,
        busy_s=[value / setting.nodes[0].cpu_share for value in cpu_s],
        memory_share=[value / node_bytes for value in resident],
        received_bytes=received,
        sent_bytes=sent,
        num_steps=block["num_steps"],
    )


def print_ours(rows: Sequence[Measured], seeds: range) -> None:
    print(f"{len(rows)} ranks; mean / median relative error; times against at least a tenth of the step")
    ranges: Mapping[str, tuple[float, float]] = {}
    learner = Learner.of(load_corpus())
    often = [row.step.visited_often for row in rows]
    print(f"{sum(often)} of them of steps visited often: learned from all, these judged apart")
    for split in ("architecture", "family", "random"):
        tables: dict[str, tuple[TargetScore, ...]] = {}
        steadiest: dict[str, tuple[TargetScore, ...]] = {}
        for method in METHODS:
            started, means = time.process_time(), []
            for seed in seeds:
                answers = predict_left_out(rows, split=split, method=method, seed=seed, learner=learner)
                scores = summarise(errors_of(rows, answers))
                means.append(mean_over_targets(scores))
                if seed == seeds[0]:
                    tables[method] = scores
                    if any(often):
                        few, found = (
                            [each for each, use in zip(every, often, strict=True) if use] for every in (rows, answers)
                        )
                        steadiest[method] = summarise(errors_of(few, found))
                    if method == "network":
                        ranges = ranges or find_ranges(rows, answers)
                        print(f"  {split}: {coverage(rows, answers, ranges):.1%} inside the ranges of 90%")
            spent_s = (time.process_time() - started) / len(seeds)
            span = f"{min(means):.1%} to {max(means):.1%} over {len(means)} seeds"
            print(
                f"{split} left out, {method:8}: {statistics.fmean(means):6.1%} ({span}; {spent_s:.0f} CPU s)",
                flush=True,
            )
        for label, found_by in (("all", tables), ("visited often", steadiest)):
            if not found_by:
                continue
            print(f"  {label}: " + ", ".join(f"{m} {mean_over_targets(found_by[m]):.1%}" for m in METHODS))
            for index, score in enumerate(found_by["network"]):
                cells = "  ".join(f"{found_by[m][index].mean:7.1%} / {found_by[m][index].median:6.1%}" for m in METHODS)
                print(f"  {score.target:18} n {score.num_rows:5}  {cells}")


def print_transfer(rows: Sequence[Measured], settings: Sequence[str], seeds: range, plot: Path | None) -> None:
    from research.fits.resources.network import Training

    print("transfer to a setting never seen, mean error over the twelve numbers (median over seeds)")
    print("setting      runs  seconds  with transfer  seconds  from scratch")
    whole: dict[str, list[TransferPoint]] = {}
    for setting in settings:
        one = Training(num_members=1)
        found = [transfer(rows, setting=setting, counts=COUNTS, seed=seed, training=one) for seed in seeds]
        points = [_middle(same, statistics.median) for same in zip(*found, strict=True)]
        for point in points:
            print(
                f"{setting:11} {point.num_samples:5} {point.seconds:8.1f} {point.with_transfer:14.1%} "
                f"{point.scratch_seconds:8.1f} {point.from_scratch:13.1%}"
            )
        times = {count: saved_times(points, num_samples=count) for count in COUNTS[-3:]}
        print(f"{setting:11} fewer seconds for the error from scratch of so many runs: {times}", flush=True)
        whole[setting] = points
    if plot is not None:
        write_whole(plot, draw_transfer(whole).encode())


def draw_transfer(whole: Mapping[str, Sequence[TransferPoint]]) -> str:
    """Errors against seconds, on average over the settings and for the one that needs its own runs most."""
    hardest = max(whole, key=lambda setting: whole[setting][0].with_transfer)
    mean = [_middle(same, statistics.fmean) for same in zip(*whole.values(), strict=True)]
    curves = []
    for name, points in ((f"mean of {len(whole)} settings", mean), (hardest, whole[hardest])):
        own = [point for point in points if point.num_samples]
        ours, theirs = (
            [100 * min(1.0, getattr(point, each)) for point in own] for each in ("with_transfer", "from_scratch")
        )
        curves.append(Curve(name=f"{name}: transfer", x=[point.seconds for point in own], y=ours, marks=True))
        curves.append(Curve(name=f"{name}: scratch", x=[point.scratch_seconds for point in own], y=theirs, marks=True))
    return draw_curves(
        curves, title="Error in a setting never seen, against seconds of measuring in it", x_label="measured seconds",
        y_label="mean error over the twelve, %", log_x=True,
    )  # fmt: skip


def _middle(points: Sequence[TransferPoint], middle: Callable[[list[float]], float]) -> TransferPoint:
    """Of the same number of samples, over seeds or settings."""
    names = ("seconds", "with_transfer", "scratch_seconds", "from_scratch")
    return replace(points[0], **{name: middle([getattr(point, name) for point in points]) for name in names})


def print_driple(rows: Sequence[Measured], settings: Sequence[str], *, split: str, training: Mapping[str, int],
                 size: Mapping[str, int], groups: int, batches: Sequence[int], seeds: range) -> None:  # fmt: skip
    """One model for each setting, as Driple has it; ours is one network for all. Neither has seen the rows asked for."""
    import torch

    from research.baselines import driple

    torch.set_num_threads(1)
    graphs = load_corpus().graphs
    codes = driple.count_codes(list(graphs.values()))
    grouped = {key: driple.group(graph, codes, num_groups=groups) for key, graph in graphs.items() if key[1] in batches}
    key = split_by(split)

    # Driple has no way to leave a number out: where it is unknown it gets the usual one.
    usual = {name: float(np.nanmedian([row.run.twelve[name] for row in rows])) for name in NAMES}

    def example(row: Measured) -> driple.Example:
        targets = tuple(usual[name] if np.isnan(row.run.twelve[name]) else row.run.twelve[name] for name in NAMES)
        return driple.Example(graph=grouped[row.step.key], targets=targets)

    found: dict[tuple[str, str], list[dict[str, list[float]]]] = {}
    for seed in seeds:
        ours = predict_left_out(rows, split=split, seed=seed, folds=(0,))
        for setting in settings:
            inside = [
                (row, answer, fold_of(key(row), seed=seed))
                for row, answer in zip(rows, ours, strict=True)
                if row.step.setting.name == setting and row.step.batch in batches
            ]
            asked = [(row, answer) for row, answer, fold in inside if fold == 0]
            check = [example(row) for row, _, fold in inside if fold == 1]
            known = [example(row) for row, _, fold in inside if fold > 1]
            started = time.process_time()
            torch.manual_seed(seed)
            chosen = driple.Training(**training, seed=seed)
            model = driple.fit(known, check, training=chosen, network=driple.Network(**size))
            spent_s = time.process_time() - started
            theirs = model.predict([grouped[row.step.key] for row, _ in asked])
            scores = {
                "Driple": errors_of(
                    [row for row, _ in asked], [dict(zip(NAMES, each, strict=True)) for each in theirs]
                ),
                "network": errors_of([row for row, _ in asked], [answer for _, answer in asked]),
            }
            for method, errors in scores.items():
                found.setdefault((setting, method), []).append(errors)
            means = {method: f"{mean_over_targets(summarise(errors)):.1%}" for method, errors in scores.items()}
            print(
                f"{setting}, {split} left out, seed {seed}, {len(known)} known, {len(check)} to stop by, {len(asked)} asked: "
                f"{means}, Driple {model.num_epochs} epochs (best {model.best_epoch}), {spent_s:.0f} CPU s",
                flush=True,
            )
        print_beside(found, settings)


def print_beside(
    found: Mapping[tuple[str, str], Sequence[Mapping[str, Sequence[float]]]], settings: Sequence[str]
) -> None:
    for setting in settings:
        whole = [
            summarise({name: [value for one in found[setting, method] for value in one[name]] for name in NAMES})
            for method in ("Driple", "network")
        ]
        means = [f"{mean_over_targets(scores):.1%}" for scores in whole]
        print(f"{setting}, {len(found[setting, 'Driple'])} seeds: Driple {means[0]}, network {means[1]}")
        for theirs, ours in zip(*whole, strict=True):
            print(
                f"  {theirs.target:18} n {theirs.num_rows:4}  Driple {theirs.mean:7.1%} / {theirs.median:6.1%}   "
                f"network {ours.mean:7.1%} / {ours.median:6.1%}",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("noise", "ours", "transfer", "driple"))
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--samples", type=Path, help="readings of a campaign (corpus.samples.jsonl), for blocks measured twice"
    )
    parser.add_argument(
        "--split", choices=("architecture", "family", "random"), default="architecture", help="of Driple"
    )
    parser.add_argument("--epochs", type=int, default=600, help="of Driple, at most")
    parser.add_argument("--layers", type=int, default=8, help="of Driple; theirs has 50, which learn nothing here")
    parser.add_argument("--readings", type=int, default=10, help="of Driple's pool; theirs has 100")
    parser.add_argument("--logarithms", action="store_true", help="of Driple's features and labels, which helps it")
    parser.add_argument("--patience", type=int, default=150, help="of Driple: epochs without a better validation error")
    parser.add_argument("--groups", type=int, default=32, help="of operators in Driple's graphs; theirs has 100")
    parser.add_argument("--update", type=int, default=32, help="graphs of one update of Driple")
    parser.add_argument("--batches", type=int, nargs="+", default=(4, 16), help="of the runs Driple learns")
    parser.add_argument("--plot", type=Path, help="of the transfer: an SVG file")
    options = parser.parse_args()
    table = read_runs(load_corpus())
    if options.what == "noise":
        print_noise(table)
        if options.samples is not None:
            print_repeats(options.samples)
    elif options.what == "ours":
        print_ours(table, range(options.seeds))
    elif options.what == "transfer":
        every = [setting.name for setting in SETTINGS]
        print_transfer(table, options.settings or every, range(options.seeds), options.plot)
    else:
        chosen = options.settings or ("4x1gbit", "2x100mbit")
        recipe = {
            "max_epochs": options.epochs,
            "patience": options.patience,
            "batch": options.update,
            "logarithms": options.logarithms,
        }
        size = {"num_layers": options.layers, "num_steps": options.readings}
        print_driple(
            table, chosen, split=options.split, training=recipe, size=size, groups=options.groups, batches=options.batches,
            seeds=range(options.seeds),
        )  # fmt: skip
