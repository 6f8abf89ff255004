"""Models from strangers: read for their shapes, never for code, files or other people's data."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from traincast.capture import _untrusted as untrusted
from traincast.capture._untrusted import MODEL_TYPES, _keep_inside, _refuse, check_config
from traincast.errors import CaptureFailed, InvalidInput, TraincastError
from traincast.service._requests import parse_json
from traincast.service._uploads import guess_kind, unpack


def config(**changes: Any) -> dict[str, Any]:
    return {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 128, "vocab_size": 100, **changes}  # fmt: skip


def test_the_kind_of_an_upload_is_told_by_its_content() -> None:
    assert guess_kind(b'  {"format": "traincast-graph"}') == "graph"
    assert guess_kind(json.dumps(config()).encode()) == "config"
    assert guess_kind(b"\x08\x07") == "onnx"


def test_a_packed_upload_is_unpacked_within_bounds() -> None:
    packed = gzip.compress(b"{}" * 500)
    assert unpack(packed, most=1000) == b"{}" * 500
    assert unpack(b"{}", most=1) == b"{}"
    for content, words in ((packed, "more than 999 B"), (packed[:-9], "ends too early"), (packed[:4], "ends too early"),
                           (b"\x1f\x8bxxxxxxxxxxxx", "damaged gzip")):  # fmt: skip
        with pytest.raises(InvalidInput, match=words):
            unpack(content, most=999 if content is packed else 2000)


@pytest.mark.parametrize("key", ["auto_map", "backbone", "quantization_config", "_attn_implementation", "peft_config"])
def test_a_config_that_names_code_or_files_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match=f"sets {key}"):
        check_config(config(**{key: "kernels/evil"}))
    with pytest.raises(InvalidInput, match=f"sets {key}"):
        check_config(config(text_config={key: {"a": "b"}}))


def test_models_that_load_others_are_not_taken() -> None:
    assert not MODEL_TYPES & {
        "detr",
        "dpt",
        "encoder-decoder",
        "timm_wrapper",
        "vision-encoder-decoder",
        "rag",
        "maskformer",
    }


def test_a_small_and_deep_json_is_as_bounded_as_a_large_one() -> None:
    assert parse_json(b'{"a": [1, {"b": 2}]}', depth=3) == {"a": [1, {"b": 2}]}
    for content in (b'{"a": [1, {"b": [2]}]}', b"[" * 5000 + b"]" * 5000):
        with pytest.raises(InvalidInput, match="nested deeper than 3"):
            parse_json(content, depth=3)


def make_onnx(tmp_path: Path, *, location: str) -> bytes:
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    tensor = kinds(name="w", data_type=kinds.FLOAT, dims=[4, 4], data_location=kinds.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    shape = kinds(name="s", data_type=kinds.INT64, dims=[2], data_location=kinds.EXTERNAL)
    shape.external_data.add(key="location", value=location)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Reshape", ["y", "s"], ["z"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kinds.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("z", kinds.FLOAT, [4, 2])],
        [tensor, shape],
    )
    return bytes(helper.make_model(graph).SerializeToString())


def test_an_onnx_file_cannot_point_at_other_files(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"\x04\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0" + b"\0" * 64)
    blob = make_onnx(tmp_path, location=str(secret))
    kept = onnx.load_model_from_string(_keep_inside(blob))
    assert not any(tensor.external_data or tensor.data_location for tensor in kept.graph.initializer)
    with pytest.raises(InvalidInput, match="not a readable ONNX file"):
        _keep_inside(b"\xff\xff\xffgarbage")


@pytest.mark.parametrize("event", ["subprocess.Popen", "os.system", "socket.connect", "pickle.find_class"])
def test_the_recording_worker_may_not_start_or_call_anything(event: str) -> None:
    with pytest.raises(TraincastError, match=event):
        _refuse(event, ())


def test_the_recording_worker_opens_only_libraries_and_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrusted, "_own_folders", [tmp_path.resolve()])
    _refuse("open", (str(tmp_path / "model.onnx"), "w", 0))
    _refuse("open", (json.__file__, "r", 0))
    for path in ("/etc/passwd", "../elsewhere", str(Path.home() / ".ssh" / "id_rsa")):
        with pytest.raises(CaptureFailed, match="tried to open a file"):
            _refuse("open", (path, "r", 0))
