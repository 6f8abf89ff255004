"""Trains the encoders and fits the reuse predictor and the atlas of known workloads to our corpus; writes what ships.

Run: make fit-embedding, or python -m research.fits.embedding [--part encoders|predictor] [--generated FILE]
"""

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from research.corpus import FOLDER as CORPUS
from research.corpus import Corpus, CorpusStep, load_corpus, load_graphs, write_graphs
from research.papers.beside import answer_layers, merge_groups
from research.papers.predictddl import ENCODERS, know
from research.papers.stack import Learner, Parts
from traincast.catalog import cluster, workload, workloads
from traincast.cost import Pricing
from traincast.embed import (
    FOLDER,
    LOG_SCALE,
    KnownWorkload,
    draw_atlas,
    fit_predictor,
    load_encoder,
    save_atlas,
    save_encoder,
    save_predictor,
    summarize,
)
from traincast.files import encode, write_json
from traincast.forecast import CORE, LAYERS, forecast
from traincast.spec import Cluster, Graph, Job, Parallelism

Array = NDArray[np.float64]

FIRST_SEED, NUM_GENERATED = 1000, 64
"""Random architectures that no corpus holds: its own have seeds below 100."""
GENERATED_BATCHES = (2, 4, 8, 16, 32)
CATALOGUE_BATCH = 8
MAX_NODES = 110
"""Longer graphs are encoded as well, but training on them would take most of the time."""
SEEDS = (0, 1, 2)


def generated_keys() -> list[tuple[str, int]]:
    return [
        (f"random(seed={FIRST_SEED + number})", GENERATED_BATCHES[number % len(GENERATED_BATCHES)])
        for number in range(NUM_GENERATED)
    ]


def catalogue_graphs() -> list[Graph]:
    return [workload(entry.name, batch=CATALOGUE_BATCH) for entry in workloads()]


def structure(graph: Graph) -> list[float]:
    """What a graph hyper-network knows of a whole step: its parameters and its length, no cost."""
    return [math.log1p(graph.num_parameters) / LOG_SCALE, math.log1p(len(graph.ops)) / LOG_SCALE]


def train_all(corpus_graphs: Sequence[Graph], generated: Sequence[Graph], catalogue: Sequence[Graph], *, epochs: int,
              folder: Path = FOLDER) -> None:  # fmt: skip
    """The shipped encoder sees every graph; the strict ones, for the tables, none of the corpus."""
    from research.baselines.ghn_svr import describe_plainly
    from research.fits.embedding.encoder import Training, train_encoder

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    def short(graphs: Sequence[Graph]) -> list[Graph]:
        return [graph for graph in graphs if len(graph.ops) <= MAX_NODES]

    # Every third of the catalogue: its many sizes of one transformer teach the same.
    strict = short([*generated, *catalogue[::3]])
    for seed in SEEDS:
        say(f"strict encoder {seed}: {len(strict)} graphs")
        training = Training(seed=seed, epochs=epochs)
        save_encoder(train_encoder(strict, training=training, say=say), ENCODERS / f"strict-{seed}.json.gz")
    say("plain encoder")
    plain = train_encoder(strict, how=describe_plainly, targets=structure, training=Training(epochs=epochs), say=say)
    save_encoder(plain, ENCODERS / "plain.json.gz")
    everything = [*strict, *short(corpus_graphs)]
    say(f"encoder: {len(everything)} graphs")
    save_encoder(train_encoder(everything, training=Training(epochs=epochs), say=say), folder / "encoder.json.gz")
    load_encoder.cache_clear()


def ask_rival(corpus: Corpus, steps: Sequence[CorpusStep]) -> list[float | None]:
    """What physics and layers, as shipped, say of every third step: the forecast that the reuse predictor must beat."""
    core = cluster(device=CORE, nodes=1, devices_per_node=1, price=None).groups[0]

    def ask(step: CorpusStep) -> float:
        links = [
            replace(core.inter, bytes_per_s=node.bits_per_s / 8, latency_s=node.latency_s)
            for node in step.setting.nodes
        ]
        nodes = zip(step.setting.nodes, links, strict=True)
        groups = tuple(replace(core, inter=link, speed=node.cpu_share) for node, link in nodes)
        plan = Parallelism(data=step.setting.num_ranks)
        where = Cluster(name=step.setting.name, groups=groups)
        return forecast(Job(graph=corpus.graphs[step.key]), where, plan, costs=Pricing()).step.seconds

    return [ask(step) if place % 3 == 0 else None for place, step in enumerate(steps)]


def fit_layers(corpus: Corpus, steps: Sequence[CorpusStep]) -> tuple[Array, Array]:
    """Writes the layers that answer beside the predictor; what they say of rows whose architecture or family is left out."""
    learner = Learner.of(corpus)
    write_json(LAYERS, encode(learner.learn(steps, Parts(own=False)).calibration))
    everything = np.ones(len(steps), dtype=bool)
    by_name = merge_groups([step.name for step in steps], num_folds=20, seed=0)
    return (
        answer_layers(learner, steps, by_name, everything),
        answer_layers(learner, steps, [step.family for step in steps], everything),
    )


def fit_all(corpus: Corpus, catalogue: Sequence[Graph]) -> None:
    steps = [step for step in corpus.steps if step.key in corpus.graphs]
    rows = know(corpus, steps)
    predictor = fit_predictor(rows, rival_s=ask_rival(corpus, steps), layers_s=fit_layers(corpus, steps))
    save_predictor(predictor)
    sys.stderr.write(
        f"{len(rows)} steps; sigma {predictor.sigma:.3f}, {predictor.family_sigma:.3f} for left-out families; {predictor.proof}\n"
    )
    measured: dict[tuple[str, int], dict[str, float]] = {}
    for step in steps:
        measured.setdefault(step.key, {})[step.setting.name] = step.seconds
    known, summaries = [], []
    for summary in {row.architecture + str(row.summary.batch_size): row.summary for row in rows}.values():
        known.append(KnownWorkload(
            name=summary.name, source="corpus", dataset_type=summary.dataset_type, batch_size=summary.batch_size,
            measured_s=measured[summary.name, summary.batch_size],
        ))  # fmt: skip
        summaries.append(summary)
    for graph in catalogue:
        summary = summarize(graph)
        known.append(KnownWorkload(
            name=graph.name, source="catalogue", dataset_type=summary.dataset_type, batch_size=graph.batch_size, measured_s={}
        ))  # fmt: skip
        summaries.append(summary)
    save_atlas(draw_atlas(known, summaries))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m research.fits.embedding", description=__doc__)
    parser.add_argument("--part", choices=("all", "encoders", "predictor"), default="all")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder of the corpus")
    parser.add_argument("--generated", type=Path, help="file that keeps the captured random architectures between runs")
    parser.add_argument("--epochs", type=int, default=12)
    given = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    corpus = load_corpus(given.corpus)
    catalogue = catalogue_graphs()
    if given.part != "predictor":
        path = given.generated or Path(tempfile.gettempdir()) / "traincast-generated.json.gz"
        write_graphs(generated_keys(), path)
        train_all([graph for (_, batch), graph in sorted(corpus.graphs.items()) if batch == min(b for _, b in corpus.graphs)],
                  list(load_graphs(path).values()), catalogue, epochs=given.epochs)  # fmt: skip
    if given.part != "encoders":
        fit_all(corpus, catalogue)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
