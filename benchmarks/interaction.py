"""What the interaction network adds to the time of a forecast: python benchmarks/interaction.py. CPU time, best of several.

Both forecasts of a pair are made in turn, so that whatever else the machine does hits both alike. *first*: a graph that nobody
has looked at (for a captured one, its distance from all we know is measured, in both); *again*: the same graph, as a search does.
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


def compare(graph: Graph, cluster: Cluster, base: CostModel, wrapped: CostModel) -> list[float]:
    """Best seconds: without and with the network for the first time, without and with it again."""
    found: list[list[float]] = [[], [], [], []]
    for _ in range(TIMES):
        # Copies: what a cost model may keep of an operator, neither has.
        jobs = [Job(graph=copy.deepcopy(graph)) for _ in range(2)]
        for place in range(4):
            job, costs = jobs[place % 2], (base, wrapped)[place % 2]
            found[place].append(spent_s(lambda job=job, costs=costs: forecast(job, cluster, costs=costs)))  # type: ignore[misc]
    return [min(each) for each in found]


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
        first, first_with, again, again_with = compare(graph, cluster, base, wrapped)
        shares.append((1 - first / first_with, 1 - again / again_with))
        print(
            f"{graph.name} ({len(graph.ops)} ops): first {1e3 * first:.1f} ms without, {1e3 * first_with:.1f} ms with; again "
            f"{1e3 * again:.1f} and {1e3 * again_with:.1f} ms: {shares[-1][0]:.0%} and {shares[-1][1]:.0%} of the forecast"
        )
    for name, found in zip(("first", "again"), zip(*shares, strict=True), strict=True):
        print(f"{name}: mean {sum(found) / len(found):.0%}, largest {max(found):.0%}")


if __name__ == "__main__":
    main()
