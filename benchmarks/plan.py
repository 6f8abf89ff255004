"""Plans answered and plans worked out per CPU second on one core, beside plain forecasts of the same plans.

python benchmarks/plan.py [--nodes 8,16,32,64] [--batches 1,2] [--context 1,2] [--sample 200] [--small] [--beside FOLDER]

A plan counts as answered when its memory and then its time, money and energy were worked out, or when it was discarded: by
memory, by the model (a split that it cannot run), or by a bound that shows it to be no better than what is known. The graphs
of llama-3-70b are loaded before the clock starts. A random sample of the same plans is then worked out in full, in the order in
which a search meets them: by the search's engine, and each by a new one, which is what one forecast alone costs. `--small`: only
`plan llama-3-8b` for 8 H100, with everything but the start of Python. `--beside`: the src folder of another version, which
answers the same in the same run.
"""

import argparse
import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from traincast import catalog
from traincast.errors import IllegalPlan
from traincast.forecast import Engine
from traincast.plan import Space, search_plans
from traincast.plan._nouns import Candidate
from traincast.plan._search import search
from traincast.plan._space import Shape, list_candidates
from traincast.spec import Forecast, Job, Parallelism, Question, WorkloadOptions

try:
    from traincast.resolve import build_cluster
except ImportError:  # 0.4.0, with which we are compared
    from traincast.forecast import build_cluster

AIM_PER_S = 1_000
AIM_FULL_PER_S = 600
AIM_WARM_S = 3e-3
AIM_SMALL_S = 1.2
MARK = "rates: "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="8,16,32,64", help="nodes of 8 H100 each")
    parser.add_argument("--batches", default="1,2")
    parser.add_argument("--context", default="1,2")
    parser.add_argument("--sample", type=int, default=200, help="plans to work out in full")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--beside", type=Path)
    asked = parser.parse_args()
    # As the command does: a process whose nouns live to its end looks for cycles less often.
    gc.set_threshold(200_000, 20, 50)
    ours = plan_small() if asked.small else plan_large(asked)
    print(MARK + json.dumps(ours), flush=True)
    if asked.beside:
        print(f"\n{asked.beside}:", flush=True)
        rest = [word for word in sys.argv[1:] if word not in ("--beside", str(asked.beside))]
        ran = subprocess.run(
            [sys.executable, __file__, *rest], env={"PYTHONPATH": str(asked.beside)}, check=True, text=True,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        print(ran.stdout)
        theirs = json.loads(next(line for line in ran.stdout.splitlines() if line.startswith(MARK))[len(MARK) :])
        print(
            "ours over theirs:", ", ".join(f"{name} {ours[name] / theirs[name]:.2f}" for name in ours if name in theirs)
        )


def plan_small() -> dict[str, float]:
    request = Question(
        source="llama-3-8b",
        workload=WorkloadOptions(precision="bf16"),
        cluster={"device": "h100", "nodes": 1, "devices_per_node": 8},
    )
    cluster = build_cluster(request)
    started = time.process_time()
    found = search_plans(request, cluster, space=Space(global_batch=64))
    spent_s = time.process_time() - started
    print(f"llama-3-8b on 8 H100: {found.num_plans:,} plans in {spent_s:.2f} CPU s (aim: {AIM_SMALL_S:g})")
    print(f"  best: {found.plans[0].parallelism}, {found.plans[0].forecast.step.seconds:.6f} s")
    return {"CPU seconds of a small search": spent_s}


def plan_large(asked: argparse.Namespace) -> dict[str, float]:
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

    def job_at(batch: int, plan: Parallelism) -> Job:
        return graphs[batch, plan.recompute]

    started = time.process_time()
    found = search(job_at, clusters, space)
    spent_s = time.process_time() - started
    print(
        f"{found.num_plans:,} plans on {', '.join(str(c.num_devices) for c in clusters)} devices in {spent_s:.1f} CPU s"
    )
    print(f"  {found.num_plans / spent_s:,.0f} plans answered per CPU second (aim: {AIM_PER_S:,})")
    print(f"  worked out {found.num_evaluated:,}, discarded by a bound {found.num_pruned:,}, excluded {found.excluded}")
    shape = Shape.of(graphs[batches[0], space.recompute[0]].graph)
    candidates = list(list_candidates(space, clusters[0], shape))
    chosen = random.Random(0).sample(candidates, min(asked.sample, len(candidates)))
    alone_s = _spend(chosen[:20], job_at, lambda *question: Engine().forecast(*question))
    engine = Engine()
    together_s = _spend(candidates[:: max(1, len(candidates) // asked.sample)], job_at, engine.forecast)
    every_s = _spend(candidates[: asked.sample], job_at, engine.forecast)
    warm_s = _spend([candidates[0]] * asked.sample, job_at, engine.forecast)
    print(f"plans worked out in full: {1 / alone_s:,.0f} per CPU second by new engines, ", end="")
    print(
        f"{1 / together_s:,.0f} spread over the space by one, {1 / every_s:,.0f} in the order of the space by one ",
        end="",
    )
    print(f"(aim: {AIM_FULL_PER_S}); the same again: {warm_s * 1e3:.2f} ms (aim: {AIM_WARM_S * 1e3:g})")
    return {
        "plans answered": found.num_plans / spent_s, "new engines": 1 / alone_s, "spread": 1 / together_s,
        "in order": 1 / every_s, "the same again": 1 / warm_s,
    }  # fmt: skip


def _spend(
    candidates: list[Candidate], job_at: Callable[[int, Parallelism], Job], ask: Callable[..., Forecast]
) -> float:
    """CPU seconds of one plan."""
    started = time.process_time()
    for candidate in candidates:
        try:
            ask(job_at(candidate.batch, candidate.parallelism), candidate.cluster, candidate.parallelism)
        except IllegalPlan:
            continue
    return (time.process_time() - started) / len(candidates)


if __name__ == "__main__":
    main()
