"""The noise floor of the measuring protocol: how far repeated estimates of the same configuration lie apart.

python benchmarks/noise.py [--estimates 5] [--rounds 5] [--share 0.25] [--json]
python benchmarks/noise.py --paired          # about 4 minutes on a quiet machine

Every estimate is made of the blocks of interleaved rounds. Estimates of all configurations are taken in turn, so that they lie
apart in time. The spread is the standard deviation over the mean. Columns: medians over blocks of wall time, of CPU time and of
CPU time over the canary's; and CPU time with the drift of the machine taken out (as `calibrate` does):
each configuration is estimated anew from its own blocks of each estimate; the seven others, measured all the time,
tell what was drift.

The canary (tiny kernels) removed the machine's drift in one run and added to it in the next: it lives in the first cache and
does not feel what steps feel. `--paired` asks whether a reference does that is itself a step. Each visit is a block of the
step between blocks of two references, O S step S O: S is another size of the same family (the same mix of arithmetic, memory
and calls), O of another kind. An estimate is the median over visits of step / mean(S before, S after); a reference that feels
the same drift makes it steadier than the step's own CPU time, and O tells whether it must be of the same kind.
"""

import argparse
import datetime
import json
import statistics
import sys
import time

import numpy as np

from traincast.profile import Protocol, Steadiness, make_canary, measure, steady, step_experiment, subject_of
from traincast.profile._drift import find_drift, steady_levels
from traincast.profile._protocol import measure_block
from traincast.profile._steps import prepare_step
from traincast.spec import Block

CONFIGURATIONS = (
    ("mlp(depth=2,width=128)", 16), ("vgg(depth=2,width=16,size=24)", 8), ("resnet(depth=2,width=8)", 8),
    ("convnext(depth=2,width=48)", 4), ("vit(depth=2,width=48,patch=4)", 8), ("gpt(depth=2,width=128,length=32)", 4),
    ("bert(depth=2,width=64,length=64)", 4), ("lstm(layers=1,width=128,length=32)", 8),
)  # fmt: skip


SAME_KIND = {
    "mlp(depth=2,width=128)": "mlp(depth=4,width=128)", "vgg(depth=2,width=16,size=24)": "vgg(depth=2,width=8,size=24)",
    "resnet(depth=2,width=8)": "resnet(depth=2,width=16)", "convnext(depth=2,width=48)": "convnext(depth=2,width=24)",
    "vit(depth=2,width=48,patch=4)": "vit(depth=2,width=96,patch=4)",
    "gpt(depth=2,width=128,length=32)": "gpt(depth=2,width=64,length=32)",
    "bert(depth=2,width=64,length=64)": "bert(depth=2,width=128,length=32)",
    "lstm(layers=1,width=128,length=32)": "lstm(layers=1,width=128,length=16)",
}  # fmt: skip
OTHER_KIND = ("mlp(depth=4,width=256)", 16)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--estimates", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=None, help="CPU quota in cores; default: none")
    parser.add_argument("--paired", action="store_true", help="between blocks of reference steps")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.paired:
        return pair(options)
    experiments = [step_experiment(name, batch=batch) for name, batch in CONFIGURATIONS]
    found: dict[str, list[tuple[float, float, float]]] = {each.key: [] for each in experiments}
    visited: list[tuple[str, int, float, float]] = []
    begun = time.monotonic()
    with steady(Steadiness(cores=(1,), num_threads=1, cpu_share=options.share)) as steadiness:
        for seed in range(options.estimates):
            blocks: dict[str, list[Block]] = {each.key: [] for each in experiments}
            protocol = Protocol(num_rounds=options.rounds, seed=seed)
            for visit in measure([subject_of(each) for each in experiments], protocol=protocol, canary=make_canary()):
                if visit.block is None:
                    print(f"{visit.experiment.key}: {visit.failure}", file=sys.stderr)
                    return 1
                blocks[visit.experiment.key].append(visit.block)
                at_s = datetime.datetime.fromisoformat(visit.block.started_at).timestamp()
                visited.append((visit.experiment.key, seed, at_s, cpu_seconds(visit.block)))
            for key, taken in blocks.items():
                wall_s = statistics.median(block.seconds for block in taken)
                cpu_s = statistics.median(cpu_seconds(block) for block in taken)
                scaled = statistics.median(cpu_seconds(block) / (block.canary_s or 1) for block in taken)
                found[key].append((wall_s, cpu_s, scaled))
            print(f"estimate {seed + 1} of {options.estimates} after {time.monotonic() - begun:.0f} s", file=sys.stderr)
    steadied = {key: estimate_without_drift(visited, key) for key in found}
    spreads = {
        key: (*(spread([each[at] for each in values]) for at in range(3)), spread(steadied[key]))
        for key, values in found.items()
    }
    if options.json:
        print(json.dumps({"share": steadiness.cpu_share, "spread": spreads, "estimates": found, "steadied": steadied}))
        return 0
    print(f"quota {steadiness.cpu_share or 'none'}; {options.estimates} estimates of {options.rounds} blocks each")
    print(f"{'configuration':60} {'wall':>7} {'CPU':>7} {'CPU over canary':>16} {'CPU, drift out':>15}")
    for key, row in [*spreads.items(), *summaries(spreads)]:
        print(f"{key[:60]:60} {row[0]:7.1%} {row[1]:7.1%} {row[2]:16.1%} {row[3]:15.1%}")
    return 0


def estimate_without_drift(visited: list[tuple[str, int, float, float]], key: str) -> list[float]:
    """One for each estimate of this configuration. The machine's drift is found with this configuration as one experiment."""
    names = [f"{name} {number}" if name == key else name for name, number, _, _ in visited]
    times_s, logs = np.array([row[2] for row in visited]), np.log([row[3] for row in visited])
    drift = find_drift(logs, np.unique([row[0] for row in visited], return_inverse=True)[1], times_s)
    known, owners = np.unique(names, return_inverse=True)
    levels, _ = steady_levels(logs, owners, times_s, drift)
    return [float(np.exp(level)) for name, level in zip(known, levels, strict=True) if name.startswith(f"{key} ")]


def pair(options: argparse.Namespace) -> int:
    protocol = Protocol(block_s=0.08, warm_up_s=0.01)
    labels = ("CPU", "over same kind", "over other kind")
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name, _ in CONFIGURATIONS}
    begun = time.monotonic()
    with steady(Steadiness(cores=(1,), num_threads=1, cpu_share=options.share)):
        for number in range(options.estimates):
            taken: dict[str, list[tuple[float, ...]]] = {name: [] for name, _ in CONFIGURATIONS}
            for _ in range(options.rounds):
                for name, batch in CONFIGURATIONS:
                    taken[name].append(visit_between(name, batch, protocol))
            for name, visits in taken.items():
                found[name].append(tuple(statistics.median(column) for column in zip(*visits, strict=True)))
            print(
                f"estimate {number + 1} of {options.estimates} after {time.monotonic() - begun:.0f} s", file=sys.stderr
            )
    spreads = {name: tuple(spread(list(column)) for column in zip(*rows, strict=True)) for name, rows in found.items()}
    if options.json:
        print(json.dumps({"labels": labels, "spread": spreads, "estimates": found}))
        return 0
    print(f"{options.estimates} estimates of {options.rounds} visits each; standard deviation over mean")
    print(f"{'configuration':44}" + "".join(f"{label:>18}" for label in labels))
    for name, row in [*spreads.items(), *summaries(spreads)]:
        print(f"{name:44}" + "".join(f"{value:18.1%}" for value in row))
    return 0


def summaries(spreads: dict[str, tuple[float, ...]]) -> list[tuple[str, tuple[float, ...]]]:
    columns = list(zip(*spreads.values(), strict=True))
    return [
        (name, tuple(choose(column) for column in columns))
        for name, choose in (("median", statistics.median), ("worst", max))
    ]


def visit_between(name: str, batch: int, protocol: Protocol) -> tuple[float, ...]:
    """CPU time of the step, over that of the references around it."""
    step, same, other = (
        prepare_step(step_experiment(each, batch=size))
        for each, size in ((name, batch), (SAME_KIND[name], batch), OTHER_KIND)
    )
    outer, inner, middle, inner_again, outer_again = (
        cpu_seconds(measure_block(running, protocol=protocol)) for running in (other, same, step, same, other)
    )
    return middle, 2 * middle / (inner + inner_again), 2 * middle / (outer + outer_again)


def cpu_seconds(block: Block) -> float:
    return block.cpu_seconds or block.seconds


def spread(values: list[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values)


if __name__ == "__main__":
    sys.exit(main())
