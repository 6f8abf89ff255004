"""The twelve resource numbers on our corpus: unseen architectures, unseen families, and the transfer to a new setting.

python benchmarks/resources.py            # the tables (about a minute on an idle machine)
python benchmarks/resources.py --driple 4x1gbit --epochs 300   # Driple's network on one setting (an hour)
"""

import argparse
import statistics
import time

from traincast.accuracy.corpus import load_corpus
from traincast.accuracy.paper.driple import (
    NAMES,
    Measured,
    errors_of,
    fold_of,
    mean_over_targets,
    predict_left_out,
    read_runs,
    split_by,
    summarise,
    transfer,
)  # fmt: skip

COUNTS = (2, 5, 10, 20, 40, 80)
TRANSFER = ("4x100mbit", "4xmixed", "3x10gbit")


def print_ours(rows: list[Measured], seeds: range) -> None:
    print(f"{len(rows)} ranks; mean / median relative error; times against at least a tenth of the step")
    for split in ("random", "architecture", "family"):
        found = [summarise(errors_of(rows, predict_left_out(rows, split=split, seed=seed))) for seed in seeds]
        means = [mean_over_targets(scores) for scores in found]
        print(
            f"\n{split} left out: mean over targets {statistics.fmean(means):.1%} (seeds {min(means):.1%} to {max(means):.1%})"
        )
        for score in found[0]:
            print(
                f"  {score.target:18} n {score.num_rows:5}  {score.mean:7.1%} / {score.median:6.1%}   p90 {score.p90:7.1%}"
            )


def print_transfer(rows: list[Measured], seeds: range) -> None:
    print("\ntransfer to a setting never seen, mean error over the twelve numbers (median over seeds)")
    print("setting      runs  seconds  with transfer  from scratch")
    for setting in TRANSFER:
        curves = [transfer(rows, setting=setting, counts=COUNTS, seed=seed) for seed in seeds]
        for points in zip(*curves, strict=True):
            seconds = statistics.median(point.seconds for point in points)
            ours = statistics.median(point.with_transfer for point in points)
            alone = statistics.median(point.from_scratch for point in points)
            print(f"{setting:11} {points[0].num_samples:5} {seconds:8.1f} {ours:14.1%} {alone:13.1%}")


def print_driple(rows: list[Measured], setting: str, epochs: int) -> None:
    from traincast.accuracy.baselines import driple

    graphs = load_corpus().graphs
    codes = driple.count_codes(list(graphs.values()))
    inside = [row for row in rows if row.step.setting.name == setting]
    examples = {
        id(row): driple.Example(
            graph=driple.group(graphs[row.step.key], codes), targets=tuple(row.run.twelve[name] for name in NAMES)
        )
        for row in inside
    }
    for split in ("random", "architecture", "family"):
        key = split_by(split)
        asked = [row for row in inside if fold_of(key(row)) == 0]
        check = [examples[id(row)] for row in inside if fold_of(key(row)) == 1]
        known = [examples[id(row)] for row in inside if fold_of(key(row)) > 1]
        started = time.perf_counter()
        model = driple.fit(known, check, training=driple.Training(max_epochs=epochs))
        answers = [
            dict(zip(NAMES, row, strict=True)) for row in model.predict([examples[id(row)].graph for row in asked])
        ]
        theirs = mean_over_targets(summarise(errors_of(asked, answers)))
        ours = predict_left_out(rows, split=split)
        places = [
            index for index, row in enumerate(rows) if row.step.setting.name == setting and fold_of(key(row)) == 0
        ]
        mine = mean_over_targets(summarise(errors_of([rows[i] for i in places], [ours[i] for i in places])))
        seconds = time.perf_counter() - started
        print(
            f"{setting}, {split} left out, n {len(asked)}: Driple {theirs:.1%}, ours {mine:.1%} ({seconds:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--driple", metavar="SETTING")
    parser.add_argument("--epochs", type=int, default=300)
    options = parser.parse_args()
    table = read_runs(load_corpus())
    if options.driple:
        print_driple(table, options.driple, options.epochs)
    else:
        print_ours(table, range(options.seeds))
        print_transfer(table, range(options.seeds))
