"""The papers' comparisons on GPUs: what was left out stays unseen, and what is done is kept."""

import tempfile
from pathlib import Path

import numpy as np
import pytest

from research.baselines.driple import Grouped
from research.papers import __main__ as on_gpus
from research.papers.driple_gpus import predict_left_out


def test_what_the_graph_network_says_of_a_fold_does_not_depend_on_the_labels_of_that_fold() -> None:
    sizes = np.exp(np.random.default_rng(0).uniform(0, 4, 9))
    graphs = [Grouped(nodes=((float(size), 1.0, 0.1), (1.0, 2.0, 0.1)), edges=((0, 1),)) for size in sizes]
    fold = np.arange(9) % 3
    said = predict_left_out(graphs, sizes, fold, seed=0, epochs=20)
    changed = np.where(fold == 1, 7.0 * sizes, sizes)
    again = predict_left_out(graphs, changed, fold, seed=0, epochs=20)
    assert again[fold == 1] == pytest.approx(said[fold == 1])
    assert again[fold == 0] != pytest.approx(said[fold == 0])


def test_a_table_that_is_done_is_not_made_again_by_the_same_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    assert on_gpus.recall("a title", "code", lambda: "first") == "first"
    assert on_gpus.recall("a title", "code", lambda: "second") == "first"
    assert on_gpus.recall("a title", "other code", lambda: "second") == "second"
    assert on_gpus.name_code() == on_gpus.name_code()
