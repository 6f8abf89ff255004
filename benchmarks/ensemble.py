"""What the learned parts add to a forecast on a GPU, in CPU time: python benchmarks/ensemble.py [REPEATS].

Taken in turns, with and without the ensemble and the reuse predictor, best and median of the repeats, so that the load of the
machine does not matter. `question`: `traincast.forecast("resnet50", "1xrtx-3090")`, from words to the answer, with nothing
remembered of the model. `engine`: a captured graph whose operators were never seen, and a new engine. `again`: the same engine
once more.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from traincast import catalog, forecast
from traincast.catalog import workload
from traincast.cost import Pricing
from traincast.forecast import Engine
from traincast.spec import Cluster, Graph, Job, Parallelism

MODELS = ("resnet50", "vgg16", "efficientnet-b0", "convnext-base", "swin-t", "vit-b-16")
DEVICE = "rtx-3090"
AIM = 0.2


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    print(f"{'model':<18}{'ops':>5}" + "".join(f"{name:>26}" for name in ("question", "engine", "again")))
    worst = 0.0
    for name in MODELS:
        graph = workload(name, batch=16, precision="fp16")
        cells = []
        for measure in (ask, run_engine, run_again):
            without_s, with_s = [], []
            for _ in range(repeats):
                without_s.append(measure(name, graph, learned=False))
                with_s.append(measure(name, graph, learned=True))
            added = min(with_s) / min(without_s) - 1, median(with_s) / median(without_s) - 1
            cells.append(f"{1e3 * min(without_s):>9.2f} ms {100 * added[0]:+4.0f}% ({100 * added[1]:+.0f})")
            worst = max(worst, added[0]) if measure is ask else worst
        print(f"{name:<18}{len(graph.ops):>5}" + "".join(f"{cell:>26}" for cell in cells))
    print(f"largest share of a whole forecast: {100 * worst:.0f}% (aim: below {100 * AIM:.0f}%)")


def ask(name: str, _: Graph, *, learned: bool) -> float:
    """From words; another batch every time, so that no graph is at hand."""
    ask.batch = 17 + (getattr(ask, "batch", 17) - 16) % 40  # type: ignore[attr-defined]
    costs = Pricing() if learned else Pricing(interaction=None)
    return spend(lambda: forecast(name, f"1x{DEVICE}", batch=ask.batch, costs=costs))  # type: ignore[attr-defined]


def run_engine(_: str, graph: Graph, *, learned: bool) -> float:
    job, cluster, engine = prepare(graph, learned=learned)
    return spend(lambda: engine.forecast(job, cluster, Parallelism()))


def run_again(_: str, graph: Graph, *, learned: bool) -> float:
    job, cluster, engine = prepare(graph, learned=learned)
    engine.forecast(job, cluster, Parallelism())
    return spend(lambda: engine.forecast(job, cluster, Parallelism()))


def prepare(graph: Graph, *, learned: bool) -> tuple[Job, Cluster, Engine]:
    # Operators that were never seen: nothing is remembered of them by their identity.
    copied = replace(graph, ops=tuple([replace(op) for op in graph.ops]))
    stack = catalog.stack("pytorch")
    engine = Engine(costs=Pricing(stack=stack) if learned else Pricing(stack=stack, interaction=None), most=100)
    cluster = catalog.cluster(device=DEVICE, nodes=1, devices_per_node=1)
    return Job(graph=copied, stack=stack), cluster, engine


def spend(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
