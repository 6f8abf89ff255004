"""What was recorded once is not recorded again, and is the same."""

from pathlib import Path

import pytest

from builders import make_cluster, make_mlp
from traincast.catalog import stack
from traincast.errors import InvalidInput
from traincast.forecast import forecast
from traincast.resolve import _recorded as room
from traincast.resolve._source import load_model
from traincast.spec import Graph, Job, Parallelism, WorkloadOptions


class Recorder:
    """Counts how often a model is recorded."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.count = graph, 0

    def __call__(self) -> Graph:
        self.count += 1
        return self.graph


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(room.FOLDER, str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_the_same_configuration_is_recorded_once_and_answered_alike(folder: Path) -> None:
    record = Recorder(make_mlp(layers=3))
    first, second = (room.recall(b"config", {"seq": 8}, record) for _ in range(2))
    assert record.count == 1
    assert second == first
    answers = [forecast(Job(graph=graph), make_cluster(), Parallelism()) for graph in (first, second)]
    assert answers[0] == answers[1]


def test_another_content_option_library_or_code_is_recorded_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Recorder(make_mlp())
    room.recall(b"config", {"seq": 8}, record)
    room.recall(b"another", {"seq": 8}, record)
    room.recall(b"config", {"seq": 16}, record)
    assert record.count == 3
    monkeypatch.setattr("importlib.metadata.version", lambda name: "99")
    room.recall(b"config", {"seq": 8}, record)
    assert record.count == 4
    monkeypatch.setattr(room, "__file__", str(Path(__file__)))
    room.recall(b"config", {"seq": 8}, record)
    assert record.count == 5


def test_a_broken_file_is_recorded_again(folder: Path) -> None:
    record = Recorder(make_mlp())
    room.recall(b"config", {}, record)
    (file,) = folder.iterdir()
    file.write_bytes(b"half a fi")
    assert room.recall(b"config", {}, record) == record.graph
    assert record.count == 2


def test_only_so_many_are_kept_and_a_folder_that_cannot_be_written_stops_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = Recorder(make_mlp())
    monkeypatch.setattr(room, "MOST_KEPT", 2)
    for number in range(4):
        room.recall(f"config {number}".encode(), {}, record)
    assert len(list(folder.iterdir())) == 2
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv(room.FOLDER, str(tmp_path / "a file" / "below"))
    assert room.recall(b"config", {}, record) == record.graph
    monkeypatch.setenv(room.FOLDER, "")
    assert room.recall(b"config", {}, record) == record.graph


def test_kernels_are_chosen_for_what_is_recorded_and_refused_for_what_is_described(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    made = "nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8)), torch.zeros(4, 8)"
    file.write_text(f"import torch\nfrom torch import nn\n\n\ndef build():\n    return {made}\n")
    fast, plain = (room.capture(str(file), WorkloadOptions(kernels=word)) for word in ("fast", "plain"))
    assert any(op.kind == "norm" for op in fast.ops)
    assert not any(op.kind == "norm" for op in plain.ops)
    with pytest.raises(InvalidInput, match="--kernels cannot change it"):
        load_model("gpt2", WorkloadOptions(kernels="plain"), Parallelism(), stack("pytorch"))
