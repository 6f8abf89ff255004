"""Random questions of today's kinds beside what public runs have shown: python -m research.plausible [--questions 500]

MFU of a measured run is the forecast's times forecast over measured time; shares of communication and of the host are those of
forecasts of measured runs. A kind is a sort of network on a generation of devices, on one node or on several; MFU is also
compared within a precision, whose peak it is a share of, and the host's share within a framework instead, whose calls it is. A
random question mixes model, plan and precision of one measured run with device and scale of another. What lies outside of what
its kind has shown, by more than a tenth, is printed with its question: a finding to explain.
"""

import argparse
import contextlib
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from research.gate import Row, read_sample
from traincast.accuracy import hide_results, parse_case, translate
from traincast.certainty import label_run
from traincast.certainty._certainty import find_family
from traincast.errors import TraincastError
from traincast.forecast import Engine

MOST_ROWS = 12
"""Of one source, whose forecasts and measurements give the ranges."""
SLACK = 1.1
LEAST = {"MFU": 0.0, "communication": 0.05, "host": 0.05}
"""Shares below are like none."""
FEWEST = 5
"""Runs that make a range."""
Kind = tuple[str, ...]


def describe(engine: Engine, row: Row, *, measured_s: float | None = None) -> dict[Kind, float]:
    """The numbers of a question by their kinds, which begin with what the number is."""
    question = translate(parse_case(hide_results([dict(row)])[0]))
    found = engine.forecast(question.job, question.cluster, question.parallelism)
    device = question.cluster.groups[0].device
    where = "nodes" if question.cluster.num_nodes > 1 else "node"
    kind = find_family(question.job.graph), device.architecture, where
    over = found.step.seconds / measured_s if measured_s else 1.0
    shares = found.timeline.shares
    precision = label_run(question.job, question.cluster, question.parallelism).precision.partition(",")[0]
    return {
        ("MFU", *kind, precision.replace("bf16", "half").replace("fp16", "half")): found.utilization * over,
        ("communication", *kind): shares.get("communication", 0.0),
        ("host", kind[0], where, question.job.stack.name): shares.get("host", 0.0),
    }


def find_ranges(engine: Engine) -> dict[Kind, tuple[float, float]]:
    """By kind: the least and the most that public runs have shown."""
    sample = read_sample(MOST_ROWS)
    seen: dict[Kind, list[float]] = defaultdict(list)
    for rows in sample.rows.values():
        for row in rows:
            with contextlib.suppress(TraincastError):
                for kind, number in describe(engine, row, measured_s=sample.measured_s[str(row["case_id"])]).items():
                    seen[kind].append(number)
    return {kind: (min(own), max(own)) for kind, own in seen.items() if len(own) >= FEWEST}


MODEL = ("model", "arch", "family", "params", "n_layers", "hidden", "n_heads", "n_kv_heads", "head_dim", "ffn", "ffn_gated",
         "vocab", "seq_len", "tied_embeddings", "n_experts", "experts_per_token", "moe_ffn", "input_shape", "num_classes",
         "dataset", "mode", "optimizer", "attention", "act_ckpt", "micro_batch", "tp", "pp", "dtype", "framework")  # fmt: skip
"""Columns that stay together; devices and their number come from another run."""
PLACE = ("gpu", "gpus_per_node", "intra_bw_GBps", "inter_bw_Gbps")


def draw_questions(number: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of the tables with devices and scale of others."""
    sample = read_sample(MOST_ROWS)
    rows = [row for own in sample.rows.values() for row in own]
    draw = np.random.default_rng(seed)
    made: list[dict[str, Any]] = []
    for place in range(number):
        model, there = rows[draw.integers(len(rows))], rows[draw.integers(len(rows))]
        ranks = int(model.get("tp") or 1) * int(model.get("pp") or 1)
        replicas = int(2 ** draw.integers(0, 6))
        passes = float(model.get("global_batch") or 0) / (
            float(model.get("micro_batch") or 1) * float(model.get("dp") or 1)
        )
        per_node = int(there.get("gpus_per_node") or 1)
        number_gpus = ranks * replicas
        made.append({
            **{name: model.get(name) for name in MODEL}, **{name: there.get(name) for name in PLACE},
            "case_id": f"random-{place}", "n_gpus": number_gpus, "dp": replicas, "n_nodes": -(-number_gpus // per_node),
            "gpus_per_node": min(per_node, number_gpus), "grad_accum": max(1, round(passes)), "source": "random",
        })  # fmt: skip
    return made


def find_outside(
    numbers: Mapping[Kind, float], ranges: Mapping[Kind, tuple[float, float]]
) -> list[tuple[Kind, float, float, float]]:
    """(kind, number, least and most of its kind) where it lies outside."""
    found = []
    for kind, number in numbers.items():
        low, high = ranges.get(kind, (0.0, math.inf))
        # Less communication or host than any run has shown is a smaller question.
        least = low / SLACK if kind[0] == "MFU" else 0.0
        if not least <= number <= max(high * SLACK, LEAST[kind[0]]):
            found.append((kind, number, low, high))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    engine = Engine(most=500)
    ranges = find_ranges(engine)
    outcome: Counter[str] = Counter()
    for row in draw_questions(options.questions, seed=options.seed):
        try:
            numbers = describe(engine, row)
        except TraincastError:
            outcome["refused"] += 1
            continue
        if not numbers.keys() & ranges.keys():
            outcome["of a kind that no run has shown"] += 1
            continue
        outside = find_outside(numbers, ranges)
        outcome["outside" if outside else "inside"] += 1
        for kind, value, low, high in outside:
            sys.stdout.write(
                f"{kind[0]} {value:.3f}, public runs {low:.3f} to {high:.3f}: {row['model']} ({row['framework']}, "
                f"{row['dtype']}) micro-batch {row['micro_batch']}, tp {row['tp']}, pp {row['pp']}, dp {row['dp']}, "
                f"{row['grad_accum']} micro-batches on {row['gpu']} ({', '.join(kind[1:])})\n"
            )
    sys.stdout.write(", ".join(f"{number} {name}" for name, number in outcome.most_common()) + "\n")


if __name__ == "__main__":
    main()
