"""Plans answered per CPU second on one core, beside plain forecasts of the same plans.

python benchmarks/plan.py [--nodes 8,16,32,64] [--batches 1,2] [--context 1,2] [--exhaustive] [--sample 20]

A plan counts as answered when its memory and then its time, money and energy were worked out, or when it was discarded: by
memory, by the model (a split that it cannot run), or by a bound that shows it to be no better than what is known. The graphs
of llama-3-70b are loaded before the clock starts. Plain forecasts are run on a random sample of the same plans.
"""

import argparse
import random
import time

from traincast import catalog
from traincast.errors import IllegalPlan
from traincast.forecast import forecast
from traincast.plan.nouns import Space
from traincast.plan.search import Settings, sift
from traincast.plan.space import Shape, list_candidates
from traincast.spec import Job

AIM_PER_S = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="8,16,32,64", help="nodes of 8 H100 each")
    parser.add_argument("--batches", default="1,2")
    parser.add_argument("--context", default="1,2")
    parser.add_argument("--exhaustive", action="store_true")
    parser.add_argument("--sample", type=int, default=20, help="plain forecasts to compare with")
    asked = parser.parse_args()
    batches, context = ([int(part) for part in text.split(",")] for text in (asked.batches, asked.context))
    clusters = [catalog.cluster("aws-p5.48xlarge", nodes=int(part)) for part in asked.nodes.split(",")]
    space = Space(global_batch=1024, batches=tuple(batches), context=tuple(context))
    graphs = {
        (batch, recompute): Job(
            graph=catalog.workload("llama-3-70b", batch=batch, seq=8192, precision="bf16", recompute=recompute),
            steps=1000,
        )
        for batch in batches
        for recompute in space.recompute
    }

    def pose(batch: int, recompute: str) -> Job:
        return graphs[batch, recompute]

    started = time.process_time()
    found = sift(clusters, pose, space, Settings(exhaustive=asked.exhaustive))
    spent_s = time.process_time() - started
    print(
        f"{found.num_plans:,} plans on {', '.join(str(c.num_devices) for c in clusters)} devices in {spent_s:.1f} CPU s"
    )
    print(f"  {found.num_plans / spent_s:,.0f} plans answered per CPU second (aim: {AIM_PER_S:,})")
    print(f"  worked out {found.num_evaluated:,}, discarded by a bound {found.num_pruned:,}, excluded {found.excluded}")
    shape = Shape.of(pose(batches[0], space.recompute[0]).graph)
    candidates = [candidate for cluster in clusters for candidate in list_candidates(space, cluster, shape)]
    sample = random.Random(0).sample(candidates, min(asked.sample, len(candidates)))
    started = time.process_time()
    for candidate in sample:
        try:
            forecast(pose(candidate.batch, candidate.parallelism.recompute), candidate.cluster, candidate.parallelism)
        except IllegalPlan:
            continue
    plain_s = (time.process_time() - started) / len(sample)
    ratio = plain_s * found.num_plans / spent_s
    print(f"plain forecasts: {1 / plain_s:,.0f} per CPU second; the search is {ratio:,.0f} times as fast")


if __name__ == "__main__":
    main()
