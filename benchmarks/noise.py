"""The noise floor of the measuring protocol: how far repeated estimates of the same configuration lie apart.

python benchmarks/noise.py [--estimates 5] [--rounds 5] [--share 0.25] [--json]

Every estimate is what `traincast profile steps` would keep: the median over the blocks of interleaved rounds. Estimates of
all configurations are taken in turn, so that they lie minutes apart. The spread is the standard deviation over the mean.
"""

import argparse
import json
import statistics
import sys
import time

from traincast.profile.machine import Steadiness, make_canary, steady
from traincast.profile.protocol import Protocol, measure
from traincast.profile.steps import step_experiment, step_subjects
from traincast.spec.measurement import Block

CONFIGURATIONS = (
    ("mlp(depth=2,width=128)", 16), ("vgg(depth=2,width=16,size=24)", 8), ("resnet(depth=2,width=8)", 8),
    ("convnext(depth=2,width=48)", 4), ("vit(depth=2,width=48,patch=4)", 8), ("gpt(depth=2,width=128,length=32)", 4),
    ("bert(depth=2,width=64,length=64)", 4), ("lstm(layers=1,width=128,length=32)", 8),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--estimates", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=None, help="CPU quota in cores; default: none")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    experiments = [step_experiment(name, batch=batch) for name, batch in CONFIGURATIONS]
    found: dict[str, list[tuple[float, float, float]]] = {each.key: [] for each in experiments}
    begun = time.monotonic()
    with steady(Steadiness(cores=(1,), num_threads=1, cpu_share=options.share)) as steadiness:
        for seed in range(options.estimates):
            blocks: dict[str, list[Block]] = {each.key: [] for each in experiments}
            protocol = Protocol(num_rounds=options.rounds, seed=seed)
            for visit in measure(step_subjects(experiments), protocol=protocol, canary=make_canary()):
                if visit.block is None:
                    print(f"{visit.experiment.key}: {visit.failure}", file=sys.stderr)
                    return 1
                blocks[visit.experiment.key].append(visit.block)
            for key, taken in blocks.items():
                wall_s = statistics.median(block.seconds for block in taken)
                cpu_s = statistics.median(block.cpu_seconds or block.seconds for block in taken)
                scaled = statistics.median(
                    (block.cpu_seconds or block.seconds) / (block.canary_s or 1) for block in taken
                )
                found[key].append((wall_s, cpu_s, scaled))
            print(f"estimate {seed + 1} of {options.estimates} after {time.monotonic() - begun:.0f} s", file=sys.stderr)
    spreads = {key: tuple(spread([each[at] for each in values]) for at in range(3)) for key, values in found.items()}
    if options.json:
        print(json.dumps({"share": steadiness.cpu_share, "spread": spreads, "estimates": found}))
        return 0
    print(f"quota {steadiness.cpu_share or 'none'}; {options.estimates} estimates of {options.rounds} blocks each")
    print(f"{'configuration':60} {'wall':>7} {'CPU':>7} {'CPU over canary':>16}")
    for key, row in spreads.items():
        print(f"{key[:60]:60} {row[0]:7.1%} {row[1]:7.1%} {row[2]:16.1%}")
    for label, choose in (("median", statistics.median), ("worst", max)):
        row = [choose(values) for values in zip(*spreads.values(), strict=True)]
        print(f"{label:60} {row[0]:7.1%} {row[1]:7.1%} {row[2]:16.1%}")
    return 0


def spread(values: list[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values)


if __name__ == "__main__":
    sys.exit(main())
