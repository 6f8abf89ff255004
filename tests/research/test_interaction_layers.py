"""The labels of the interaction network, from a corpus of a few made-up steps with known constants."""

from dataclasses import replace

import pytest

from research.corpus import Corpus, CorpusStep
from research.corpus.testbed import SETTINGS
from research.fits.interaction.layers import clean_labels, study_graph
from tests.builders import make_mlp
from traincast.errors import InvalidInput
from traincast.spec._graph import Graph


def make_graph(width: int, layers: int) -> Graph:
    return make_mlp(width=width, layers=layers, batch=8)


def make_corpus() -> Corpus:
    """Steps that follow the physics exactly: work at fixed rates, a quarter of a core, a ring over the link."""
    steps, graphs = [], {}
    for family, layers in (("vgg", 2), ("resnet", 3), ("gpt", 5), ("bert", 8)):
        for width in (64, 128, 192, 256):
            name = f"{family}(width={width})"
            graph = make_graph(width, layers)
            graphs[name, 8] = graph
            cpu_s = graph.flop / 2e9 + graph.num_bytes / 4e9 + 1e-5 * sum(graph.counts())
            for setting in SETTINGS:
                speed = min(node.cpu_share for node in setting.nodes)
                link = min(node.bits_per_s for node in setting.nodes) / 8
                ranks = setting.num_ranks
                wire = 2 * (ranks - 1) / ranks * graph.role_bytes("parameter")
                sync_s = 2e-3 * 2 * (ranks - 1) + wire / link + 1e-9 * wire / speed
                steps.append(
                    CorpusStep(
                        name=name, batch=8, setting=setting, seconds=cpu_s / speed + sync_s, cpu_seconds=cpu_s,
                        noise=None, resources={},
                    )
                )  # fmt: skip
    return Corpus(steps=tuple(steps), operators=(), graphs=graphs)


def test_steps_of_several_workers_pull_the_label_of_a_workload_towards_what_was_measured() -> None:
    corpus, key = make_corpus(), ("gpt(width=128)", 8)
    workloads = {name: study_graph(name, graph) for name, graph in corpus.graphs.items()}
    slow = [replace(step, seconds=1.3 * step.seconds) if step.key == key else step for step in corpus.steps]
    assert clean_labels(slow, workloads, ())[key] > 1.02 * clean_labels(corpus.steps, workloads, ())[key]


def test_too_few_steps_of_one_worker_are_refused() -> None:
    corpus = make_corpus()
    workloads = {name: study_graph(name, graph) for name, graph in corpus.graphs.items()}
    with pytest.raises(InvalidInput, match="steps of one worker"):
        clean_labels([step for step in corpus.steps if step.setting.num_ranks > 1], workloads, ())
