"""What the service answers is what the command line answers."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from builders import make_mlp
from service.conftest import SMALL, Running
from traincast.__main__ import main
from traincast.files import GRAPH_FORMAT, GRAPH_VERSION, encode
from traincast.spec._graph import Scalable

DEVICE = {"device": "a100-80g", "devices_per_node": 1}


def asked(**changes: Any) -> dict[str, Any]:
    return {**SMALL, **changes}


def saved_graph(*, batch: int = 32, any_batch: bool = False) -> dict[str, Any]:
    small = make_mlp(batch=batch)
    if any_batch:
        noun: Any = Scalable(small=small, large=make_mlp(batch=2 * batch))
        return {"format": GRAPH_FORMAT, "version": GRAPH_VERSION, "scalable": encode(noun)}
    return {"format": GRAPH_FORMAT, "version": GRAPH_VERSION, "graph": encode(small)}


def test_a_forecast_is_that_of_the_command_line(service: Running, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        [
            "forecast",
            "gpt2",
            *["-d", "a100-80g", "--nodes", "1", "-g", "8", "-b", "4", "--seq", "512", "--precision", "bf16", "--json"],
        ]
    )
    assert code == 0
    printed = json.loads(capsys.readouterr().out)
    # The command line draws the step; so does a request for details.
    reply = service.post("/forecast", asked(detail=True))
    assert reply.status == 200
    for part in ("step", "memory", "job", "usd", "global_batch", "grounds"):
        assert reply.body[part] == printed[part]


def test_a_rectangle_means_the_same_everywhere(service: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["forecast", "resnet50", "-d", "a100-80g", "-g", "1", "-b", "4", "--input-size", "384x768", "--json"]) == 0
    )
    printed = json.loads(capsys.readouterr().out)
    body = {"workload": {"name": "resnet50", "batch": 4, "input_size": "3x384x768"}, "cluster": DEVICE}
    reply = service.post("/forecast", body)
    assert reply.status == 200, reply.body
    assert reply.body["step"] == printed["step"]
    square = {**body, "workload": {**body["workload"], "input_size": 384}}
    assert service.post("/forecast", square).body["step"]["seconds"] < printed["step"]["seconds"]


def test_a_fit_is_that_of_the_command_line(service: Running, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-d", "t4", "-g", "1", "-b", "64", "--seq", "512", "--json"]
    assert main(["fit", "gpt2", *words]) == 0
    printed = json.loads(capsys.readouterr().out)
    body = {"workload": {"name": "gpt2", "batch": 64, "seq": 512}, "cluster": {"device": "t4", "devices_per_node": 1}}
    reply = service.post("/fit", body)
    assert reply.status == 200
    assert reply.body == printed


def test_a_short_question_means_what_the_command_means(service: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forecast", "llama-3-8b", "--gpus", "8xh100", "--tokens", "15B", "--tp", "2", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    reply = service.post("/forecast", {"model": "llama-3-8b", "gpus": "8xh100", "tokens": "15B", "tp": 2})
    assert reply.status == 200
    for key in ("step", "memory", "job", "usd", "assumptions", "settings"):
        assert reply.body[key] == printed[key]
    tables = {"workload": {"name": "llama-3-8b"}, "cluster": {"device": "h100", "devices_per_node": 8}}
    long = service.post("/forecast", {**tables, "parallelism": {"tensor": 2}, "job": {"tokens": "15B"}})
    assert long.body["step"] == reply.body["step"]
    assert reply.body["mfu"] == printed["utilization"]
    assert reply.body["tokens_per_s"] == pytest.approx(printed["samples_per_s"] * printed["settings"]["seq"])
    unknown = service.post("/forecast", {"model": "gpt2", "gpus": "8xh100", "tokns": "15B"})
    assert unknown.status == 422
    assert "unknown key 'tokns'" in unknown.error
    refused = service.post("/forecast", {"model": "gpt2", "gpus": "many"})
    assert (refused.status, refused.headers["content-type"]) == (422, "application/problem+json")
    assert refused.body["title"] == "Unprocessable Entity"
    assert "write 8xh100" in refused.error


def test_advice_is_that_of_the_command_line(service: Running, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--gpus", "8xa100-80g", "--batch", "4", "--seq", "1024", "--steps", "10000"]
    assert main(["advise", "gpt2-xl", *words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    body = {"model": "gpt2-xl", "gpus": "8xa100-80g", "batch": 4, "seq": 1024, "steps": 10000}
    reply = service.post("/advise", body)
    assert reply.status == 200
    for key in ("sentences", "suggestions", "assumptions"):
        assert reply.body[key] == printed[key]


def test_a_trace_is_compared_as_by_the_command_line(
    service: Running, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 9000, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "kernel", "name": "ampere_sgemm_128x64_tn", "ts": 10, "dur": 5000, "pid": 0, "tid": 7},
    ]
    document = {"traceEvents": events, "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]}
    trace.write_text(json.dumps(document))
    code = main(["compare", str(trace), "gpt2", "--batch", "4", "--seq", "256", "--json"])
    said = capsys.readouterr()
    reply = service.post("/compare", {"model": "gpt2", "batch": 4, "seq": 256, "trace": document})
    if code == 0:
        assert reply.status == 200, reply.body
        assert reply.body == json.loads(said.out)
    else:
        assert reply.status == 422
        assert str(trace) not in reply.error


def read_metric(service: Running, name: str) -> float:
    lines = service.get("/metrics").body.splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def test_details_show_the_step_and_the_memory(service: Running) -> None:
    body = asked(detail=True)
    answer = service.post("/forecast", body).body
    detail = answer["detail"]
    spans = [span for lane in detail["lanes"] for span in lane["spans"]]
    assert 10 < len(spans) <= 900 * len(detail["lanes"])
    for lane in detail["lanes"]:
        starts = [start for start, _, _, _ in lane["spans"]]
        assert starts == sorted(starts)
        assert all(end >= start for start, end, _, _ in lane["spans"])
    levels = [amount for _, amount in detail["memory"]["points"]]
    # The highest point of the chart is the number on the card.
    assert max(levels) == pytest.approx(answer["needed_bytes"], rel=1e-9)
    assert answer["needed_bytes"] > answer["memory"]["peak_bytes"] > 0
    assert 0 < detail["memory"]["outside_bytes"] < answer["needed_bytes"]
    assert detail["slowest"]


def test_an_uploaded_graph_is_forecast_by_its_id(service: Running) -> None:
    upload = service.ask("POST", "/models", raw=gzip.compress(json.dumps(saved_graph()).encode()))
    assert upload.status == 200
    assert (upload.body["kind"], upload.body["batch_size"], upload.body["any_batch"]) == ("graph", 32, False)
    by_id = service.post("/forecast", {"workload": {"model": upload.body["model"]}, "cluster": DEVICE})
    assert by_id.status == 200
    assert service.upload(saved_graph()) != upload.body["model"]  # other bytes, the same graph
    node = {"device": "a100-80g", "devices_per_node": 8}
    chosen = service.post("/forecast", {"workload": {"model": upload.body["model"]}, "cluster": node}).body
    assert any("no plan is named: data parallel (DDP)" in said for said in chosen["assumptions"])
    assert chosen["parallelism"]["data"] == 8


def test_a_graph_of_one_batch_refuses_another(service: Running) -> None:
    reply = service.post(
        "/forecast", {"workload": {"model": service.upload(saved_graph()), "batch": 7}, "cluster": DEVICE}
    )
    assert reply.status == 422
    assert "captured at a batch of 32, not 7" in reply.error


def test_a_graph_recorded_at_two_batches_takes_any(service: Running) -> None:
    workload = {"model": service.upload(saved_graph(any_batch=True)), "batch": 48}
    assert service.post("/forecast", {"workload": workload, "cluster": DEVICE}).body["global_batch"] == 48


@pytest.mark.parametrize("any_batch", [False, True])
def test_an_upload_is_advised_like_any_model(service: Running, any_batch: bool) -> None:
    workload = {"model": service.upload(saved_graph(any_batch=any_batch)), "batch": 32}
    body = service.post("/forecast", {"workload": workload, "cluster": DEVICE, "advice": True}).body
    said = body["advice"]["sentences"]
    assert said[0].startswith(f"One step of {body['workload']} with 32 samples")
    assert not any("uploaded.graph" in sentence for sentence in said)
    assert body["advice"]["suggestions"]


def test_a_fit_of_an_upload_finds_its_largest_batch(service: Running) -> None:
    reply = service.post(
        "/fit", {"workload": {"model": service.upload(saved_graph(any_batch=True))}, "cluster": DEVICE}
    )
    assert reply.status == 200
    assert reply.body["largest_batch"] > 1000
    assert reply.body["longest_sequence"] is None


def test_a_hugging_face_config_is_recorded_and_forecast_at_any_batch(service: Running) -> None:
    pytest.importorskip("transformers")
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "intermediate_size": 128, "vocab_size": 100}  # fmt: skip
    asked = {"workload": {"model": service.upload(config), "seq": 16, "batch": 6}, "cluster": DEVICE}
    reply = service.post("/forecast", asked)
    assert (reply.status, reply.body["global_batch"]) == (200, 6)
    assert reply.body["workload"] == "llama"


def test_an_onnx_file_is_recorded_and_forecast(service: Running) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    weight = helper.make_tensor("w", kinds.FLOAT, [64, 32], b"\0" * (64 * 32 * 4), raw=True)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
    ends = [helper.make_tensor_value_info(name, kinds.FLOAT, ["n", size]) for name, size in (("x", 64), ("z", 32))]
    model = helper.make_model(helper.make_graph(nodes, "tiny", ends[:1], ends[1:], [weight]))
    upload = service.ask("POST", "/models", raw=model.SerializeToString(), content_type="application/octet-stream")
    assert upload.status == 200, upload.body
    assert (upload.body["kind"], upload.body["name"], upload.body["parameters"]) == ("onnx", "tiny", 64 * 32)
    reply = service.post("/forecast", {"workload": {"model": upload.body["model"], "batch": 5}, "cluster": DEVICE})
    assert (reply.status, reply.body["global_batch"]) == (200, 5)


@pytest.mark.parametrize("kind", ["devices", "links", "nodes", "workloads", "datasets"])
def test_the_catalogue_is_listed_and_searched(service: Running, kind: str) -> None:
    everything = service.get(f"/catalog/{kind}").body
    assert len(everything) == service.get("/catalog").body[kind]
    name = everything[0]["name"]
    assert service.get(f"/catalog/{kind}/{name}").body == everything[0]
    found = service.get(f"/catalog/{kind}?filter={name}&brief=true").body
    assert name in [each["name"] for each in found]
    assert set(found[0]) <= set(everything[0])


def test_health_and_metrics_speak_prometheus(service: Running) -> None:
    assert service.get("/health").body["status"] == "ok"
    reply = service.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    for name in ("requests_total", "request_seconds_bucket", "cache_hits_total", "jobs", "resident_bytes"):
        assert f"traincast_{name}" in reply.body


def test_the_openapi_document_has_examples_that_work(service: Running) -> None:
    document = service.get("/openapi.json").body
    for path, schema in (("/forecast", "ForecastBody"), ("/fit", "FitBody")):
        assert path in document["paths"]
        example = document["components"]["schemas"][schema]["examples"][0]
        assert service.post(path, example).status == 200


def test_a_request_and_a_command_that_ask_the_same_get_the_same_digits(
    service: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["gpt2", "--gpus", "2x4xh100", "--batch", "2", "--seq", "256", "--precision", "bf16", "--tp", "2", "--zero", "1",
             "--stack", "nanotron", "--global-batch", "32", "--json"]  # fmt: skip
    assert main(["forecast", *words]) == 0
    printed = json.loads(capsys.readouterr().out)
    body = {
        "workload": {"name": "gpt2", "batch": 2, "seq": 256, "precision": "bf16"},
        "cluster": {"device": "h100", "nodes": 2, "devices_per_node": 4},
        "parallelism": {"tensor": 2, "zero": 1},
        "job": {"stack": "nanotron", "global_batch": 32},
    }
    reply = service.post("/forecast", body)
    same = ("step", "memory", "job", "usd", "energy_range", "narrowing")
    for key in (*same, "assumptions", "settings", "global_batch"):
        assert reply.body[key] == printed[key]


def test_a_configuration_is_read_as_on_the_command_line(
    service: Running, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    batches = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    text = json.dumps({**batches, "zero_optimization": {"stage": 1}, "odd_knob": 1})
    file = tmp_path / "ds.json"
    file.write_text(text)
    code = main(["forecast", "gpt2", "--config", str(file), "-d", "a100-80g", "-g", "8", "--seq", "512", "--json"])
    assert code == 0
    printed = json.loads(capsys.readouterr().out)
    body = {"workload": {"name": "gpt2", "seq": 512}, "cluster": {"device": "a100-80g", "devices_per_node": 8}}
    answer = service.post("/forecast", {**body, "configs": [{"name": "ds.json", "text": text}]}).body
    assert answer["step"] == printed["step"]
    assert any("ds.json: not used: odd_knob" in said for said in answer["assumptions"])
    model = {
        "workload": {},
        "cluster": body["cluster"],
        "configs": [{"name": "a.yml", "text": "base_model: openai/gpt2\nmicro_batch_size: 1"}],
    }
    assert service.post("/forecast", model).body["workload"] == "gpt2"
    missing = {
        "workload": {},
        "cluster": body["cluster"],
        "configs": [{"name": "a.yml", "text": "base_model: a/b\nmicro_batch_size: 1"}],
    }
    refused = service.post("/forecast", missing)
    assert refused.status == 422
    assert "a/b is neither in the catalogue" in refused.error


def test_a_regime_is_answered_as_by_the_command_line(service: Running, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "-d",
        "a100-80g",
        "-g",
        "8",
        "-b",
        "4",
        "--precision",
        "bf16",
        "--zero",
        "3",
        "--regime",
        "dpo",
        "--seq",
        "512",
    ]
    assert main(["forecast", "gpt2", *words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    reply = service.post("/forecast", asked(parallelism={"zero": 3}, job={"regime": "dpo"}, detail=True))
    assert reply.status == 200
    for part in ("step", "memory", "phases", "global_batch"):
        assert reply.body[part] == printed[part]
    assert service.post("/forecast", asked(job={"regime": "dop"})).status == 422
