"""Trains the encoder and draws the atlas of known workloads from our corpus and the catalogue; writes what ships.

Run: make fit-embedding, or python -m research.fits.embedding [--part encoder|atlas] [--generated FILE]
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from research.corpus import FOLDER as CORPUS
from research.corpus import Corpus, load_corpus, load_graphs, write_graphs
from traincast.catalog import load_facts, workload, workloads
from traincast.embed._encoder import FOLDER, load_encoder, save_encoder
from traincast.embed._known import KnownWorkload, draw_atlas, save_atlas
from traincast.embed._summary import summarize
from traincast.spec import Graph

FIRST_SEED, NUM_GENERATED = 1000, 64
"""Random architectures that no corpus holds: its own have seeds below 100."""
GENERATED_BATCHES = (2, 4, 8, 16, 32)
CATALOGUE_BATCH = 8
MAX_NODES = 110
"""Longer graphs are encoded as well, but training on them would take most of the time."""


def generated_keys() -> list[tuple[str, int]]:
    return [
        (f"random(seed={FIRST_SEED + number})", GENERATED_BATCHES[number % len(GENERATED_BATCHES)])
        for number in range(NUM_GENERATED)
    ]


def catalogue_graphs() -> list[Graph]:
    facts = load_facts("model").entries
    built = [entry.name for entry in workloads() if facts[entry.name]["builder"] != "recorded"]
    return [workload(name, batch=CATALOGUE_BATCH) for name in built]


def train(graphs: Sequence[Graph], *, epochs: int) -> None:
    from research.fits.embedding.encoder import Training, train_encoder

    short = [graph for graph in graphs if len(graph.ops) <= MAX_NODES]
    _tell(f"encoder: {len(short)} graphs")
    encoder = train_encoder(short, training=Training(epochs=epochs), say=_tell)
    save_encoder(encoder, FOLDER / "encoder.safetensors")
    load_encoder.cache_clear()


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def draw(corpus: Corpus, catalogue: Sequence[Graph]) -> None:
    """The atlas of known workloads: every graph of the corpus with its measured steps, and of the catalogue without."""
    measured: dict[tuple[str, int], dict[str, float]] = {}
    for step in corpus.steps:
        if step.key in corpus.graphs:
            measured.setdefault(step.key, {})[step.setting.name] = step.seconds
    graphs = [*((corpus.graphs[key], "corpus", found) for key, found in measured.items()),
              *((graph, "catalogue", dict[str, float]()) for graph in catalogue)]  # fmt: skip
    known, summaries = [], []
    for graph, source, found in graphs:
        summary = summarize(graph)
        known.append(KnownWorkload(
            name=graph.name, source=source, dataset_type=summary.dataset_type, batch_size=graph.batch_size, measured_s=found
        ))  # fmt: skip
        summaries.append(summary)
    save_atlas(draw_atlas(known, summaries))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m research.fits.embedding", description=__doc__)
    parser.add_argument("--part", choices=("all", "encoder", "atlas"), default="all")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder of the corpus")
    parser.add_argument("--generated", type=Path, help="file that keeps the captured random architectures between runs")
    parser.add_argument("--epochs", type=int, default=12)
    given = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    corpus = load_corpus(given.corpus)
    catalogue = catalogue_graphs()
    if given.part != "atlas":
        path = given.generated or Path(tempfile.gettempdir()) / "traincast-generated.json.gz"
        write_graphs(generated_keys(), path)
        smallest = min(batch for _, batch in corpus.graphs)
        own = [graph for (_, batch), graph in sorted(corpus.graphs.items()) if batch == smallest]
        # Every third of the catalogue: its many sizes of one transformer teach the same.
        train([*load_graphs(path).values(), *catalogue[::3], *own], epochs=given.epochs)
    if given.part != "encoder":
        draw(corpus, catalogue)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
