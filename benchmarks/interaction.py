"""What the interaction network adds to the time of a forecast: python benchmarks/interaction.py. CPU time, best of several.

Both forecasts of a pair are made in turn, so that whatever else the machine does hits both alike. *first*: operators that the
network has never looked at; *again*: another forecast of the same graph, as in a search over plans.
"""

import copy
import time
from collections.abc import Callable

from traincast import catalog
from traincast.accuracy.corpus import FOLDER, GRAPHS, corpus_is_here, load_graphs
from traincast.cost import CostModel
from traincast.cost.interaction import Interacting, load_network
from traincast.cost.pricing import Pricing
from traincast.forecast import forecast
from traincast.spec import Cluster, Graph, Job

TIMES = 25


def spent_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def compare(graph: Graph, cluster: Cluster, base: CostModel, wrapped: CostModel) -> tuple[float, float, float]:
    """Best seconds without the network, with it for the first time, and with it again."""
    without, first, again = [], [], []
    for _ in range(TIMES):
        # Copies: what a cost model may keep of an operator, neither has.
        job, other = Job(graph=copy.deepcopy(graph)), Job(graph=copy.deepcopy(graph))
        without.append(spent_s(lambda job=job: forecast(job, cluster, costs=base)))  # type: ignore[misc]
        first.append(spent_s(lambda job=other: forecast(job, cluster, costs=wrapped)))  # type: ignore[misc]
        again.append(spent_s(lambda job=other: forecast(job, cluster, costs=wrapped)))  # type: ignore[misc]
    return min(without), min(first), min(again)


def main() -> None:
    base = Pricing()
    wrapped = Interacting(base=base, network=load_network())
    gpus = catalog.cluster(device="a100-80g", nodes=1, devices_per_node=4)
    asked = [(catalog.workload(name, batch=4), gpus) for name in ("resnet50", "gpt2", "bert-base", "t5-small")]
    if corpus_is_here():
        cores = catalog.cluster(device="cpu", nodes=2, devices_per_node=1)
        small = sorted((key, graph) for key, graph in load_graphs(FOLDER / GRAPHS).items() if key[1] == 4)
        asked += [(graph, cores) for _, graph in small[::20]]
    shares = []
    for graph, cluster in asked:
        before, first, again = compare(graph, cluster, base, wrapped)
        shares.append(((first - before) / first, (again - before) / again))
        print(
            f"{graph.name} ({len(graph.ops)} ops): {1e3 * before:.1f} ms without; with {1e3 * first:.1f} ms first, "
            f"{1e3 * again:.1f} ms again: {shares[-1][0]:.0%} and {shares[-1][1]:.0%} of the forecast"
        )
    for name, found in zip(("first", "again"), zip(*shares, strict=True), strict=True):
        print(f"{name}: mean {sum(found) / len(found):.0%}, largest {max(found):.0%}")


if __name__ == "__main__":
    main()
