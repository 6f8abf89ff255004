"""What the interaction network adds to the time of a forecast: python benchmarks/interaction.py. CPU time, best of several."""

import time

from traincast import catalog
from traincast.cost.interaction import Interacting, load_network
from traincast.cost.pricing import Pricing
from traincast.forecast import forecast
from traincast.spec import Job


def best_s(job: Job, costs: Pricing | Interacting, *, times: int = 7) -> float:
    cluster = catalog.cluster(device="a100-80g", nodes=1, devices_per_node=4)
    found = []
    for _ in range(times):
        began = time.process_time()
        forecast(job, cluster, costs=costs)
        found.append(time.process_time() - began)
    return min(found)


def main() -> None:
    base = Pricing()
    wrapped = Interacting(base=base, network=load_network())
    for name in ("resnet50", "gpt2", "bert-base", "t5-small"):
        job = Job(graph=catalog.workload(name, batch=4))
        before, after = best_s(job, base), best_s(job, wrapped)
        share = (after - before) / after
        print(f"{name}: {1e3 * before:.1f} ms without, {1e3 * after:.1f} ms with: {share:.0%} of the forecast")


if __name__ == "__main__":
    main()
