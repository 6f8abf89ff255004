"""The twelve resource numbers on our corpus: the noise of their labels, unseen architectures and families, Driple, transfer.

python benchmarks/resources.py noise                 # how far two measurements of the same lie apart (seconds)
python benchmarks/resources.py ours                  # physics, the process and the graph network (six minutes of one core)
python benchmarks/resources.py transfer              # to settings never seen (ten minutes)
python benchmarks/resources.py driple 4x1gbit 2x1gbit --epochs 40    # Driple beside ours (minutes for each setting and seed)
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence

from traincast.accuracy.corpus import load_corpus
from traincast.accuracy.paper.driple import (
    METHODS,
    NAMES,
    Measured,
    TargetScore,
    coverage,
    errors_of,
    find_ranges,
    fold_of,
    label_noise,
    mean_over_targets,
    predict_left_out,
    read_runs,
    split_by,
    summarise,
    transfer,
)

COUNTS = (0, 2, 5, 10, 20, 40, 80)
TRANSFER = ("4x100mbit", "4xmixed", "3x10gbit")


def print_noise(rows: Sequence[Measured]) -> None:
    scores = label_noise(rows)
    print(f"noise of the labels, from neighbouring settings: {mean_over_targets(scores):.1%} mean over the twelve")
    for score in scores:
        print(f"  {score.target:18} n {score.num_rows:5}  {score.mean:7.1%} / {score.median:6.1%}")


def print_ours(rows: Sequence[Measured], seeds: range) -> None:
    print(f"{len(rows)} ranks; mean / median relative error; times against at least a tenth of the step")
    ranges: Mapping[str, tuple[float, float]] = {}
    for split in ("architecture", "family"):
        tables: dict[str, tuple[TargetScore, ...]] = {}
        for method in METHODS:
            started, means = time.process_time(), []
            for seed in seeds:
                answers = predict_left_out(rows, split=split, method=method, seed=seed)
                scores = summarise(errors_of(rows, answers))
                means.append(mean_over_targets(scores))
                if seed == seeds[0]:
                    tables[method] = scores
                    if method == "network":
                        ranges = ranges or find_ranges(rows, answers)
                        print(f"  {split}: {coverage(rows, answers, ranges):.1%} inside the ranges of 90%")
            spent_s = (time.process_time() - started) / len(seeds)
            span = f"{min(means):.1%} to {max(means):.1%} over {len(means)} seeds"
            print(
                f"{split} left out, {method:8}: {statistics.fmean(means):6.1%} ({span}; {spent_s:.0f} CPU s)",
                flush=True,
            )
        for index, name in enumerate(NAMES):
            cells = "  ".join(f"{tables[m][index].mean:7.1%} / {tables[m][index].median:6.1%}" for m in METHODS)
            print(f"  {name:18} n {tables['network'][index].num_rows:5}  {cells}")


def print_transfer(rows: Sequence[Measured], settings: Sequence[str], seeds: range) -> None:
    print("transfer to a setting never seen, mean error over the twelve numbers (median over seeds)")
    print("setting      runs  seconds  with transfer  from scratch")
    for setting in settings:
        curves = [transfer(rows, setting=setting, counts=COUNTS, seed=seed) for seed in seeds]
        for points in zip(*curves, strict=True):
            seconds = statistics.median(point.seconds for point in points)
            ours = statistics.median(point.with_transfer for point in points)
            alone = statistics.median(point.from_scratch for point in points)
            print(f"{setting:11} {points[0].num_samples:5} {seconds:8.1f} {ours:14.1%} {alone:13.1%}", flush=True)


def print_driple(rows: Sequence[Measured], setting: str, epochs: int, seeds: range) -> None:
    """Per setting, as Driple is; ours is the network over all settings that has seen none of the architectures asked for."""
    import torch

    from traincast.accuracy.baselines import driple

    torch.set_num_threads(1)
    graphs = load_corpus().graphs
    codes = driple.count_codes(list(graphs.values()))
    inside = [row for row in rows if row.step.setting.name == setting]
    grouped = {key: driple.group(graphs[key], codes) for key in sorted({row.step.key for row in inside})}
    key = split_by("architecture")

    def example(row: Measured) -> driple.Example:
        return driple.Example(graph=grouped[row.step.key], targets=tuple(row.run.twelve[name] for name in NAMES))

    found: dict[str, list[dict[str, list[float]]]] = {"Driple": [], "network": []}
    for seed in seeds:
        asked = [row for row in inside if fold_of(key(row), seed=seed) == 0]
        check = [example(row) for row in inside if fold_of(key(row), seed=seed) == 1]
        known = [example(row) for row in inside if fold_of(key(row), seed=seed) > 1]
        started = time.process_time()
        training = driple.Training(max_epochs=epochs, patience=max(10, epochs // 3), batch=16, seed=seed)
        model = driple.fit(known, check, training=training)
        answers = [dict(zip(NAMES, row, strict=True)) for row in model.predict([grouped[r.step.key] for r in asked])]
        found["Driple"].append(errors_of(asked, answers))
        spent_s = time.process_time() - started
        started = time.process_time()
        ours = predict_left_out(rows, split="architecture", seed=seed, folds=(0,))
        places = [index for index, row in enumerate(rows) if ours[index] and row.step.setting.name == setting]
        found["network"].append(errors_of([rows[i] for i in places], [ours[i] for i in places]))
        means = [mean_over_targets(summarise(errors[-1])) for errors in found.values()]
        print(
            f"{setting} seed {seed}, n {len(asked)}: Driple {means[0]:.1%} ({spent_s:.0f} CPU s), "
            f"network {means[1]:.1%} ({time.process_time() - started:.0f} CPU s, all settings)",
            flush=True,
        )
    whole = {
        method: summarise({name: [value for one in errors for value in one[name]] for name in NAMES})
        for method, errors in found.items()
    }
    for theirs, ours_ in zip(whole["Driple"], whole["network"], strict=True):
        print(
            f"  {setting} {theirs.target:18} n {theirs.num_rows:4}  Driple {theirs.mean:7.1%} / {theirs.median:6.1%}   "
            f"network {ours_.mean:7.1%} / {ours_.median:6.1%}"
        )
    print(json.dumps({method: mean_over_targets(scores) for method, scores in whole.items()}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("noise", "ours", "transfer", "driple"))
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    table = read_runs(load_corpus())
    if options.what == "noise":
        print_noise(table)
    elif options.what == "ours":
        print_ours(table, range(options.seeds))
    elif options.what == "transfer":
        print_transfer(table, options.settings or TRANSFER, range(options.seeds))
    else:
        for chosen in options.settings or ("4x1gbit", "2x1gbit"):
            print_driple(table, chosen, options.epochs, range(options.seeds))
