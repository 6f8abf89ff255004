import gzip
import json
from pathlib import Path

import pytest

from builders import make_cluster, make_mlp
from traincast import files
from traincast.errors import InvalidInput
from traincast.spec import Cluster, Graph, Parallelism
from traincast.spec._graph import Scalable


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_saved_graph_loads_equal(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"mlp{suffix}"
    files.save_graph(make_mlp(), path)
    assert files.load_graph(path) == make_mlp()


def test_a_saved_scalable_graph_loads_equal(tmp_path: Path) -> None:
    family = Scalable(small=make_mlp(batch=2), large=make_mlp(batch=4))
    files.save_graph(family, tmp_path / "g.json.gz")
    assert files.load_graph(tmp_path / "g.json.gz") == family


def test_the_same_graph_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        files.save_graph(make_mlp(), tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_a_misspelt_key_names_the_nearest_right_one() -> None:
    with pytest.raises(InvalidInput, match=r"unknown key 'tensr'.*did you mean 'tensor'"):
        files.decode(Parallelism, {"tensr": 2})


def test_a_wrong_type_names_the_place() -> None:
    with pytest.raises(InvalidInput, match=r"parallelism.data must be a whole number, not str 'two'"):
        files.decode(Parallelism, {"data": "two"})


def test_true_is_not_a_number() -> None:
    with pytest.raises(InvalidInput, match="whole number"):
        files.decode(Parallelism, {"data": True})


def test_nouns_survive_a_round_trip_through_json() -> None:
    cluster = make_cluster(nodes=2, devices_per_node=4, usd_per_hour=3.5)
    assert files.decode(Cluster, json.loads(json.dumps(files.encode(cluster)))) == cluster


@pytest.mark.parametrize(
    "content", [b'{"format": "traincast-gr', b"\x1f\x8bbroken", b"[" * 100_000, b'{"format": 3}', b"\xff\xfe"]
)
def test_a_damaged_graph_file_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"bad\.json"):
        files.load_graph(path)


def test_a_number_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nan.json"
    path.write_text('{"price": NaN}')
    with pytest.raises(InvalidInput, match="NaN is not allowed"):
        files.read_json(path)


def test_a_file_beyond_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as stream:
        stream.truncate(10 * 10**9)
    with pytest.raises(InvalidInput, match="files of at most"):
        files.load_graph(path)


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_UNPACKED_BYTES", 1000)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 5000))
    with pytest.raises(InvalidInput, match="unpacks to more"):
        files.read_json(path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="Out of range"):
        files.write_json(path, {"a": float("nan")})
    assert files.read_json(path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["g.json"]


def test_an_unknown_device_key_in_a_graph_file_is_named(tmp_path: Path) -> None:
    data = {"format": "traincast-graph", "version": 1, "graph": {**files.encode(make_mlp()), "colour": "red"}}
    path = tmp_path / "g.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InvalidInput, match="unknown key 'colour'"):
        files.load_graph(path)


def test_decoding_gives_the_declared_types() -> None:
    graph = files.decode(Graph, files.encode(make_mlp()))
    assert isinstance(graph.ops, tuple)
    assert isinstance(graph.ops[0].flop, float)
