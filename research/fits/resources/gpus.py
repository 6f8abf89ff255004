"""Fits the two networks of the twelve numbers on GPUs: python -m research.fits.resources.gpus [-o FILE].

GPU utilisation: runs of ../shared/cases that nvidia-smi watched; devices, then workloads, then random fifths are left out.
Sockets: runs of the CPU test-bed whose link is busy for four windows of the sampler or longer; settings are left out.

Some fifteen forms of the first network were read on these left-out rows (noise on the inputs 0.2 to 0.4, 12 or 24 wide, 100
to 300 epochs, four ways to count waiting, reach of the fading 2, 4 and none): 4.8 to 5.3 points with the device left out, 6.2
to 7.8 with the workload left out. The figures are therefore somewhat favourable.
"""

import argparse
import random
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincast.accuracy import parse_case, read_rows, translate
from traincast.errors import TraincastError
from traincast.forecast import Engine
from traincast.resources import ON_GPUS, busy_share, describe_busy
from traincast.resources._on_gpus import BUSY_BOUND, WIRE_BOUND, GpuActivity, Perceptron, save_gpu_activity
from traincast.spec import RESOURCES, Graph

Array = NDArray[np.float64]
SHARED = Path(__file__).resolve().parents[4] / "shared"
TABLES = ("single_gpu", "dp")
COLUMN = "measured_gpu_util_pct"
WIDTH, NUM_MEMBERS, NUM_EPOCHS, RATE, DECAY, BLUR = 12, 4, 200, 1e-2, 3e-2, 0.4
"""`BLUR`: standard deviation of noise on the standardised inputs in training."""
NEAR_ENOUGH = 0.02
"""Below this an error counts by its square, above it by its size."""
LEAST_WINDOWS = 4
WINDOW_S = 0.02
"""Of the sampler whose numbers are learned."""
TWELVE = tuple(f"{resource}_{name}" for resource in RESOURCES for name in ("idle_s", "burst_s", "peak"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One run that nvidia-smi watched."""

    point: Array
    derived: float
    measured: float
    graph: Graph
    workload: str
    device: str
    quality: str
    fold: int
    key: Hashable

    @property
    def teaches(self) -> bool:
        """Runs whose log has no throughput failed: never learned from, and counted in the line "all" only."""
        return self.quality != "memory_only"


def read_watched() -> list[Watched]:
    order, engine = random.Random(0), Engine(most=500)
    found = []
    for name in TABLES:
        for row in read_rows(str(SHARED / "cases" / f"{name}.parquet")):
            if row.get(COLUMN) is None:
                continue
            try:
                question = translate(parse_case(row))
                # Step by step, as a whole forecast would ask the very networks that are fitted here.
                program = engine.lower(question.job, question.cluster, question.parallelism)
                estimates = engine.cost(program, question.job, question.cluster)
                timeline = engine.simulate(program, estimates, question.job, question.cluster)
            except TraincastError as error:
                sys.stderr.write(f"{row['case_id']}: {error}\n")
                continue
            graph, cluster = question.job.graph, question.cluster
            device = cluster.groups[0].device.name
            point = describe_busy(
                graph, timeline, num_nodes=cluster.num_nodes, num_devices=cluster.num_devices,
                passes=question.parallelism.micro_batches,
            )  # fmt: skip
            found.append(
                Watched(
                    point=point,
                    derived=busy_share(timeline),
                    measured=row[COLUMN] / 100,
                    graph=graph,
                    workload=graph.name,
                    device=device,
                    quality=row.get("quality") or "clean",
                    fold=order.randrange(5),
                    key=(graph.name, device, cluster.num_devices, graph.batch_size, row["dtype"]),
                )
            )
    return found


def read_wires() -> tuple[Array, Array, list[str]]:
    """Points, logarithms of burst and peak over what bytes and link alone give, and the setting of each run."""
    from research.corpus import load_corpus

    corpus = load_corpus()
    points, targets, settings = [], [], []
    for step in corpus.steps:
        nodes, twelve = step.setting.nodes, {name: step.resources.get(f"rank0_{name}") for name in TWELVE}
        graph = corpus.graphs.get(step.key)
        # Resident memory is known only where the ranks had given back that of earlier steps.
        if graph is None or any(value is None for name, value in twelve.items() if name != "memory_peak"):
            continue
        if len(nodes) < 2 or not all(twelve[name] for name in ("gpu_peak", "received_peak", "sent_peak")):
            # Without a peak the sampler was kept from running: a step that trains is never idle from end to end.
            continue
        own, narrowest = nodes[0].bits_per_s / 8, min(node.bits_per_s for node in nodes) / 8
        # What one rank sends, and receives, in a ring (Patarasuk and Yuan 2009).
        wire_s = 2 * (len(nodes) - 1) / len(nodes) * graph.num_parameters * 4.0 / narrowest
        if wire_s < LEAST_WINDOWS * WINDOW_S:
            continue
        for resource in ("received", "sent"):
            burst_s, peak = twelve[f"{resource}_burst_s"], twelve[f"{resource}_peak"]
            if burst_s and peak:
                points.append([min(wire_s / step.seconds, 1.0), np.log2(len(nodes)), np.log(narrowest / own)])
                targets.append([np.log(burst_s / wire_s), np.log(peak / narrowest)])
                settings.append(step.setting.name)
    return np.array(points), np.array(targets), settings


def fit_perceptron(points: Array, targets: Array, *, bound: float, blur: float = BLUR) -> Perceptron:
    """By AdamW on absolute errors; the inputs are blurred, which keeps few runs from being learned by heart."""
    import torch

    torch.set_num_threads(1)
    centre, scale = points.mean(axis=0), points.std(axis=0) + 1e-6
    inputs = torch.tensor(np.clip((points - centre) / scale, -4, 4), dtype=torch.float32)
    aims = torch.tensor(targets, dtype=torch.float32)
    members = []
    for seed in range(NUM_MEMBERS):
        generator = torch.Generator().manual_seed(seed)
        wide, out = inputs.shape[1], aims.shape[1]
        weights = {
            "enter": torch.randn(wide, WIDTH, generator=generator) / wide**0.5, "enter_bias": torch.zeros(WIDTH),
            "middle": torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5, "middle_bias": torch.zeros(WIDTH),
            "leave": torch.zeros(WIDTH, out), "leave_bias": torch.zeros(out),
        }  # fmt: skip
        for one in weights.values():
            one.requires_grad_()
        optimizer = torch.optim.AdamW(weights.values(), lr=RATE, weight_decay=DECAY)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=NUM_EPOCHS + 1)
        for _ in range(NUM_EPOCHS):
            blurred = inputs + blur * torch.randn(inputs.shape, generator=generator)
            state = torch.tanh(blurred @ weights["enter"] + weights["enter_bias"])
            state = torch.tanh(state @ weights["middle"] + weights["middle_bias"])
            raw = state @ weights["leave"] + weights["leave_bias"]
            missed = (bound * torch.tanh(raw / bound) - aims).abs()
            near = NEAR_ENOUGH
            loss = torch.where(missed < near, 0.5 * missed**2 / near, missed - 0.5 * near).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        members.append({name: one.detach().double().numpy() for name, one in weights.items()})
    low, high = np.quantile(points, [0.01, 0.99], axis=0)
    return Perceptron(centre=centre, scale=scale, low=low, high=high, members=tuple(members), bound=bound)


def fit_busy(runs: Sequence[Watched]) -> Perceptron:
    points = np.array([run.point for run in runs])
    return fit_perceptron(points, np.array([[run.measured - run.derived] for run in runs]), bound=BUSY_BOUND)


def leave_out(runs: Sequence[Watched], key: Callable[[Watched], object]) -> tuple[Array, Array]:
    """What the network and a constant, the median of the known runs, say of every run when its group is left out."""
    answers, constants = np.zeros(len(runs)), np.zeros(len(runs))
    for value in sorted({str(key(run)) for run in runs}):
        known = [run for run in runs if str(key(run)) != value and run.teaches]
        network = fit_busy(known)
        middle = float(np.median([run.measured for run in known]))
        for place, run in enumerate(runs):
            if str(key(run)) == value:
                answers[place] = np.clip(run.derived + float(network.answer(run.point)[0][0]), 0.0, 1.0)
                constants[place] = middle
    return answers, constants


def report(title: str, runs: Sequence[Watched], answers: Array, constants: Array) -> None:
    measured = np.array([run.measured for run in runs])
    derived = np.array([run.derived for run in runs])
    for name, kinds in (("clean", ("clean",)), ("timed", ("clean", "suspect")), ("all", None)):
        there = np.array([kinds is None or run.quality in kinds for run in runs])
        cells = []
        for said in (derived, constants, answers):
            missed = 100 * np.abs(said - measured)[there]
            cells.append(f"{missed.mean():.1f} / {np.median(missed):.1f} / {np.quantile(missed, 0.9):.1f}")
        bias = 100 * (answers - measured)[there].mean()
        sys.stdout.write(f"| {title} | {name} | {int(there.sum())} | {' | '.join(cells)} | {bias:+.1f} |\n")


def leave_settings_out(points: Array, targets: Array, settings: Sequence[str]) -> Array:
    """Of the logarithm of each burst, what the network misses."""
    names = np.array(settings)
    missed = np.zeros(len(targets))
    for name in sorted(set(settings)):
        there = names == name
        network = fit_perceptron(points[~there], targets[~there, :1], bound=WIRE_BOUND)
        for place in np.flatnonzero(there).tolist():
            missed[place] = network.answer(points[place])[0][0] - targets[place, 0]
    return missed


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=ON_GPUS)
    asked = parser.parse_args(arguments)
    runs = read_watched()
    sys.stdout.write("| left out | rows | n | timeline | constant | network (mean / median / p90 points) | bias |\n")
    by_device, constants = leave_out(runs, lambda run: run.device)
    report("device", runs, by_device, constants)
    report("workload", runs, *leave_out(runs, lambda run: run.workload))
    report("random fifth", runs, *leave_out(runs, lambda run: run.fold))
    taught = np.array([run.teaches for run in runs])
    missed = (np.array([run.measured for run in runs]) - by_device)[taught]
    low, high = np.quantile(missed, [0.05, 0.95])
    points, targets, settings = read_wires()
    missed_bursts = leave_settings_out(points, targets, settings)
    ours, alone, peaks = (100 * np.abs(np.expm1(one)).mean() for one in (missed_bursts, -targets[:, 0], -targets[:, 1]))
    sys.stdout.write(
        f"sockets, a setting left out, n {len(points)}: burst {ours:.1f}% (bytes over the link alone {alone:.1f}%), "
        f"peak at the rate of the link {peaks:.1f}%\n"
    )
    learned = GpuActivity(
        busy=fit_busy([run for run in runs if run.teaches]),
        wire=fit_perceptron(points, targets[:, :1], bound=WIRE_BOUND),
        errors=(float(low), float(high)),
        wire_errors={
            name: (float(np.quantile(one, 0.05)), float(np.quantile(one, 0.95)))
            for name, one in (("burst", -missed_bursts), ("peak", targets[:, 1]))
        },
        about={
            "runs": str(int(taught.sum())), "devices": str(len({run.device for run in runs})),
            "workloads": str(len({run.workload for run in runs})), "testbed_runs": str(len(points)),
            "made_by": "python -m research.fits.resources.gpus",
        },
    )  # fmt: skip
    save_gpu_activity(learned, asked.output)
    sys.stdout.write(f"{asked.output}: {asked.output.stat().st_size / 1e3:.0f} kB\n")


if __name__ == "__main__":
    main()
