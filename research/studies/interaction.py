"""What the interaction network adds to the time of a forecast, and what GPU steps and nodes teach it.

python -m research.studies.interaction [speed]: CPU time, best of several.
python -m research.studies.interaction nodes: errors of left-out models and chips with networks taught by steps or by nodes; needs
the measured data in ../shared.

Both forecasts of a pair are made in turn, so that whatever else the machine does hits both alike. *first*: a graph that nobody
has looked at (for a captured one, its distance from all we know is measured, in both); *again*: the same graph, as a search does.
"""

import copy
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from research.corpus import FOLDER, GRAPHS, corpus_is_here, load_graphs
from research.fits.interaction.network import Example, Training, fit_network
from research.fits.operators.data import DEVICE_OF
from research.papers.gpu_steps import OPERATORS, GpuStep, read_gpu_steps
from research.papers.gpus import corrected, make_folds, reprice, see
from traincast import catalog
from traincast.accuracy import Case
from traincast.cost import CostModel, Interacting, Network, Pricing, load_network
from traincast.forecast import forecast
from traincast.spec import Cluster, Graph, Job, Op

TIMES = 25
SEEDS = (0, 1, 2)
FAMILIES = {"Linear": "linear", "BMM": "bmm", "VECsoftmax": "softmax", "VECln": "norm"}
Part = tuple[str, str]
"""Pass and family of operators: the parts of a step that its nodes were timed for."""


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


def read_nodes() -> dict[tuple[str, str, str, int], dict[Part, float]]:
    """Seconds of each part of a step, by GPU, model, mode and batch; nodes of doubtful quality are left out."""
    import pyarrow.parquet as pq

    found: dict[tuple[str, str, str, int], dict[Part, float]] = {}
    for node in pq.read_table(OPERATORS / "gpu_nodes.parquet").to_pylist():
        if node["node_quality"] != "ok":
            continue
        step = found.setdefault((DEVICE_OF[node["gpu"]], node["model"], node["mode"], node["batch"]), {})
        for phase, took_ms in (("forward", node["fw_ms"]), ("backward", node["bw_ms"])):
            if took_ms:
                part = phase, FAMILIES.get(node["op_kind"], "rest")
                step[part] = step.get(part, 0.0) + 1e-3 * took_ms * node["n_repeat"]
    return found


def part_of(op: Op) -> Part:
    family = {"softmax": "softmax", "norm": "norm"}.get(op.kind, "rest")
    if op.kind == "matmul":
        family = "bmm" if int(op.attrs["batch"]) > 1 else "linear"
    return ("forward" if op.phase == "forward" else "backward"), family


def key_of(case: Case) -> tuple[str, str, str, int]:
    mode = "inference" if case.mode == "inference" else "training"
    return case.gpu, case.model or "", mode, round(case.micro_batch or 0)


def parts_of(step: GpuStep) -> list[Part]:
    return [part_of(task) for task in step.known.step.program.stages[0].tasks if isinstance(task, Op)]


def teach(
    steps: Sequence[GpuStep], nodes: dict[tuple[str, str, str, int], dict[Part, float]], how: str, seed: int
) -> Network:
    """`how`: steps (their sums), nodes (parts as timed alone), or shares (parts scaled so that they add up to the step)."""
    examples = []
    for step in steps:
        timed, parts = nodes[key_of(step.case)], parts_of(step)
        names = list(dict.fromkeys(parts))
        scale = step.seconds / sum(timed.values()) if how == "shares" else 1.0
        example = Example(seen=see(step), seconds=step.seconds)
        if how != "steps":
            seconds = tuple(scale * timed.get(name, float("nan")) for name in names)
            example = replace(example, parts=tuple(names.index(part) for part in parts), part_seconds=seconds)
        examples.append(example)
    return fit_network(examples, Training(seed=seed))


def missed(step: GpuStep, timed: dict[Part, float], network: Network | None) -> tuple[float, float]:
    """Relative errors of the step and of its parts, these weighed by their time."""
    seen, parts = see(step), parts_of(step)
    spent = seen.seconds * seen.counts * (1.0 if network is None else network.factors(seen))
    priced = {part: sum(s for s, own in zip(spent.tolist(), parts, strict=True) if own == part) for part in timed}
    off = sum(abs(priced[part] - took) for part, took in timed.items()) / sum(timed.values())
    return abs(corrected(step, network) / step.seconds - 1), off


def run_nodes() -> None:
    nodes = read_nodes()
    steps = [
        step for step in read_gpu_steps() if step.peers_s and not step.case.compiled and key_of(step.case) in nodes
    ]
    for by in ("workload", "chip"):
        found: dict[str, list[tuple[float, float]]] = {}
        for fold in make_folds(steps, by=by):
            for seed in SEEDS:
                asked = reprice(fold, seed=seed)
                for how in ("without", "steps", "nodes", "shares"):
                    network = None if how == "without" else teach(fold.known, nodes, how, seed)
                    found.setdefault(how, []).extend(missed(step, nodes[key_of(step.case)], network) for step in asked)
        for how, errors in found.items():
            step_error, node_error = np.mean(errors, axis=0)
            print(
                f"{by} left out, {how:8} {len(steps)} steps: step {step_error:6.1%}, nodes {node_error:6.1%}",
                flush=True,
            )


def run_speed() -> None:
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


PARTS = {"speed": run_speed, "nodes": run_nodes}


def main() -> None:
    part = sys.argv[1] if len(sys.argv) > 1 else "speed"
    if part not in PARTS:
        raise SystemExit(f"unknown part {part!r}; known parts: {', '.join(PARTS)}")
    PARTS[part]()


if __name__ == "__main__":
    main()
