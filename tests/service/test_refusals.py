"""What a stranger sends: refused with a sentence, never with a fault of ours, and no file is ever reached."""

import http.client
import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from service.conftest import PATIENCE_S, SMALL, Running, start
from traincast.__main__ import main


def forecast(service: Running, **changes: Any) -> Any:
    return service.post("/forecast", {**SMALL, **changes})


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (["gpt2", "-d", "b20"], {"cluster": {"device": "b20"}}),
        (["gtp2", "-d", "h100"], {"workload": {"name": "gtp2"}, "cluster": {"device": "h100"}}),
        (["gpt2"], {"cluster": {}}),
        (["gpt2", "-d", "h100", "--tp", "3", "-g", "8"], {"cluster": {"device": "h100", "devices_per_node": 8},
                                                          "parallelism": {"tensor": 3}}),
        (["gpt2", "-d", "h100", "--zero", "7"], {"cluster": {"device": "h100"}, "parallelism": {"zero": 7}}),
        (["gpt2", "-d", "h100", "-b", "0"], {"workload": {"name": "gpt2", "batch": 0}, "cluster": {"device": "h100"}}),
        (["gpt2", "-d", "h100", "--steps", "-1"], {"cluster": {"device": "h100"}, "job": {"steps": -1}}),
        (["gpt2", "-d", "h100", "--epochs", "2"], {"cluster": {"device": "h100"}, "job": {"epochs": 2}}),
        (["gpt2", "-d", "h100", "--intra", "string"], {"cluster": {"device": "h100", "intra": "string"}}),
    ],
)  # fmt: skip
def test_an_error_is_the_sentence_of_the_command_line(
    service: Running, arguments: list[str], changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forecast", *arguments]) == 2
    said = capsys.readouterr().err.removeprefix("traincast: ").strip()
    reply = forecast(service, **{"workload": {"name": "gpt2"}, **changes})
    assert (reply.status, reply.error) == (422, said)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workload": {}}, "gives nothing to forecast"),
        ({"workload": {"name": "gpt2", "model": "0" * 64}}, "gives name and model"),
        ({"workload": {"graph": {}}}, "gives nothing to forecast"),
        ({"workload": {"name": 5}}, "workload.name must be a text, not int 5"),
        ({"parallelism": {"zero": "1"}}, "parallelism.zero must be a whole number, not str '1'"),
        ({"workload": {"name": "gpt2", "bach": 8}}, "did you mean 'batch'?"),
        ({"workload": {"model": "../../etc/passwd"}}, "workload.model is str '../../etc/passwd'; it must"),
        ({"workload": {"model": "0" * 64}}, "there is no model 000000000000..."),
        ({"cluster": {"device": "h100", "nodes": 60000, "devices_per_node": 60000}}, "at most 65,536"),
        ({"cluster": {"device": "h100", "nodes": 10**9}}, "cluster.nodes is int 1000000000"),
        ({"parallelism": {"micro_batches": 60000}}, "micro_batches = 60,000"),
        ({"surprise": 1}, "the request has the unknown key 'surprise'"),
    ],
)
def test_what_is_not_a_request_is_refused_by_name(service: Running, changes: dict[str, Any], words: str) -> None:
    reply = forecast(service, **changes)
    assert reply.status in (404, 422)
    assert words in reply.error


@pytest.mark.parametrize("path", ["{0}", "{0}/model.py", "{0}/model.py:build", "{0}/graph.json", "file://{0}/graph.json",
                                  "{0}/model.onnx", "../{0}/job.toml"])  # fmt: skip
def test_no_name_reaches_a_file(service: Running, tmp_path: Path, path: str) -> None:
    mark = tmp_path / "was-run"
    (tmp_path / "model.py").write_text(f"open({str(mark)!r}, 'w').close()\ndef build(): ...\n")
    for name in ("graph.json", "model.onnx", "job.toml", "config.json"):
        (tmp_path / name).write_text('{"format": "traincast-graph"}')
    reply = forecast(service, workload={"name": path.format(tmp_path)})
    assert reply.status == 422
    assert reply.error.startswith("unknown model ")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the request has no body"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"workload": {"name": "gpt2", "batch": NaN}}', "the number NaN is not allowed"),
        (b'{"workload": {"graph": ' + b'{"a":' * 60 + b"1" + b"}" * 60 + b"}}", "nested deeper than 40"),
        (b"[" * 100_000 + b"]" * 100_000, "nested deeper than 40"),
        (b'{"workload": {"name": "\\ud800"}, "cluster": {}}', "half a character"),
        (b"[]", "the request must be a table"),
        (b'{"workload": {"name": "gpt2", "batch": 1e999}}', "workload.batch"),
    ],
)
def test_what_is_not_sound_json_is_refused(service: Running, content: bytes, words: str) -> None:
    reply = service.ask("POST", "/forecast", raw=content)
    assert reply.status in (400, 422)
    assert words in reply.error


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hidden_size": 4}, "neither model_type nor architectures"),
        ({"model_type": "detr"}, "unknown model_type 'detr'"),
        ({"model_type": "llama", "auto_map": {"AutoModel": "x--y.Z"}}, "sets auto_map"),
        ({"model_type": "llama", "num_hidden_layers": 10**6}, "at most 1,024"),
        ({"format": "traincast-graph-of-others"}, "is not a traincast graph"),
    ],
)
def test_an_upload_that_cannot_be_recorded_is_refused_by_name(
    service: Running, config: dict[str, Any], words: str
) -> None:
    reply = service.post("/models", config)
    assert reply.status == 422
    assert words in reply.error


@pytest.mark.parametrize("content", [b"", b"\x08\x07garbage", b"{}", b'{"format": "traincast-graph", "version": 9}', b"[1]",
                                     b'{"model_type": "llama", "hidden_size": "wide"}'])  # fmt: skip
def test_an_upload_that_is_no_model_is_refused(service: Running, content: bytes) -> None:
    reply = service.ask("POST", "/models", raw=content, content_type="application/octet-stream")
    assert reply.status == 422
    assert reply.error


def test_a_body_that_is_too_large_is_not_read(service: Running) -> None:
    reply = service.ask("POST", "/forecast", raw=b" " * (7 * 2**20))
    assert reply.status == 413
    assert "more than 6 MiB" in reply.error


def test_a_body_that_hides_its_length_is_cut_off_too(service: Running) -> None:
    connection = http.client.HTTPConnection(urlsplit(service.url).netloc, timeout=PATIENCE_S)
    pieces = (b" " * 2**20 for _ in range(8))
    try:
        connection.request("POST", "/forecast", pieces, {"content-type": "application/json"}, encode_chunked=True)
        reply = connection.getresponse()
        status, body = reply.status, json.loads(reply.read())
    except (BrokenPipeError, ConnectionResetError):
        status, body = 413, {"detail": "more than 6 MiB"}
    connection.close()
    assert status == 413
    assert "more than 6 MiB" in body["detail"]


def test_what_is_not_http_does_not_stop_the_service(service: Running) -> None:
    where = urlsplit(service.url)
    with socket.create_connection((where.hostname or "", where.port or 0), timeout=PATIENCE_S) as raw:
        raw.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        raw.recv(200)
    assert service.get("/health").status == 200


def test_unknown_paths_and_methods_are_named(service: Running) -> None:
    assert "nothing at '/nowhere'" in service.get("/nowhere").error
    assert service.get("/forecast").status == 405
    assert service.get("/catalog/planets").status == 404
    assert "did you mean" in service.get("/catalog/devices/h10000").error
    assert service.get("/jobs/none").status == 404


def test_a_page_of_another_site_is_refused(service: Running) -> None:
    reply = service.post("/forecast", SMALL, origin="https://evil.example")
    assert reply.status == 403
    assert "access-control-allow-origin" not in {key.lower() for key in reply.headers}
    assert service.post("/forecast", SMALL, origin=service.url).status == 200


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    running = start(tmp_path / "state.db", "--workers", "1", token="correct horse")
    try:
        assert running.get("/health").status == 200
        assert running.get("/").status == 200
        for path in ("/catalog", "/metrics", "/openapi.json", "/jobs"):
            reply = running.get(path)
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
            assert running.get(path, authorization="Bearer wrong").status == 401
            assert running.get(path, authorization="Bearer correct horse").status == 200
    finally:
        running.stop()


def test_the_command_refuses_what_it_cannot_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["serve", "--token", "short"]) == 2
    assert "use at least 8" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["serve", "--port", "0", "--state", str(tmp_path / "file" / "state.db")]) == 2
    assert "cannot keep the service's state" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1]), "--state", str(tmp_path / "s.db")]) == 2
    assert "choose another --port" in capsys.readouterr().err
