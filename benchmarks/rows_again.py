"""Questions that must be answered alike however they are asked, as people type them.

Run: python benchmarks/rows_again.py [ROWS_PER_FRAMEWORK] (0: without ../shared/cases, which take some minutes)
"""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

from traincast import catalog
from traincast.__main__ import main
from traincast.forecast import Engine
from traincast.spec import Job, Parallelism
from traincast.units import GIB

GIVEN = ["--gpus", "8xh100", "--batch", "1", "--seq", "4096", "--precision", "bf16", "--dp", "8", "--zero", "1",
         "--micro-batches", "1"]  # fmt: skip
QWEN = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
    "max_position_embeddings": 32768, "hidden_act": "silu", "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
}  # fmt: skip
PUBLISHED = (
    "forecast llama3.1-8b --device h100-sxm-96g-500w --nodes 8 -g 8 --inter 3200Gb/s --batch 12 --seq 8192 --precision bf16 "
    "--tp 8 --dp 8 --zero 3 --recompute selective --stack torchtitan --compiled"
)
"""A run that trained, with 2.555 s for a step."""
FORGOTTEN: dict[str, Any] = {
    "overlap": False, "bucket_bytes": 2e6, "shard": 4, "offload_optimizer": True,
}  # fmt: skip
"""Fields that the planner's keys of 0.1.0 left out."""


def ask(*words: str) -> dict[str, Any]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main([*words, "--json"])
    if code:
        raise SystemExit(f"{' '.join(words)} ended with {code}")
    return json.loads(printed.getvalue())  # type: ignore[no-any-return]


def tell(answer: dict[str, Any]) -> str:
    memory = answer["memory"]
    verdict = "fits" if memory["fits"] else "does not fit"
    return f"{answer['step']['seconds']:.3f} s, {memory['peak_bytes'] / GIB:.1f} GiB, {verdict}"


def show_published() -> None:
    print(f"published torchtitan run (2.555 s, it trained): {tell(ask(*PUBLISHED.split()))}")


def show_name_and_file(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(QWEN))
    by_name, by_file = ask("forecast", "qwen2.5-7b", *GIVEN), ask("forecast", str(file), *GIVEN)
    same = by_name["step"] == by_file["step"] and by_name["memory"] == by_file["memory"]
    print(f"qwen2.5-7b by name: {tell(by_name)}; as config.json: {tell(by_file)}; the same to the last digit: {same}")


def show_advice() -> None:
    advised, forecast = ask("advise", "qwen2.5-7b", *GIVEN)["forecast"], ask("forecast", "qwen2.5-7b", *GIVEN)
    same = advised["memory"]["peak_bytes"] == forecast["memory"]["peak_bytes"]
    print(f"advise: {tell(advised)}; forecast: {tell(forecast)}; the same memory: {same}")


def show_page(folder: Path) -> None:
    short = {"workload": {"name": "gpt2-xl"}, "cluster": {"device": "a100-80g", "nodes": 1, "devices_per_node": 8}}
    command = [sys.executable, "-m", "traincast", "serve", "--port", "0", "--state", str(folder / "state.db"), "--json"]
    with subprocess.Popen([*command, "--workers", "1"], stdout=subprocess.PIPE, text=True) as service:
        try:
            url = json.loads(service.stdout.readline())["url"] if service.stdout is not None else ""
            posted = urllib.request.Request(
                f"{url}/forecast", data=json.dumps(short).encode(), headers={"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(posted) as response:
                found = json.loads(response.read())
        finally:
            service.terminate()
    typed = ask("forecast", "gpt2-xl", "--gpus", "8xa100-80g")
    found = found.get("forecast", found)
    same = found["step"] == typed["step"] and found["memory"]["peak_bytes"] == typed["memory"]["peak_bytes"]
    print(f"what is not said, by HTTP: {tell(found)}; by the command: {tell(typed)}; the same: {same}")


def show_replicas() -> None:
    words = ["--batch", "32", "--precision", "fp32", "--zero", "0", "--micro-batches", "1"]
    one = ask("forecast", "resnet50", "--gpus", "1xv100-32g", *words)["step"]["seconds"]
    four = ask("forecast", "resnet50", "--gpus", "4xv100-32g", *words)["step"]["seconds"]
    print(
        f"resnet50 fp32, 32 samples for each GPU: {one * 1e3:.1f} ms on one, {four * 1e3:.1f} ms on four ({four / one - 1:+.1%})"
    )


def show_fields() -> None:
    graph = catalog.workload("gpt2-xl", batch=4, precision="bf16")
    cluster = catalog.cluster(device="a100-80g", nodes=2, devices_per_node=8)
    used, plain = Engine(), Parallelism(data=16, zero=3)
    used.forecast(Job(graph=graph), cluster, plain)
    for name, value in FORGOTTEN.items():
        changed = replace(plain, **{name: value})
        cached, fresh = (
            engine.forecast(Job(graph=graph), cluster, changed).step.seconds for engine in (used, Engine())
        )
        print(f"  {name} = {value}: a used engine {cached:.6f} s, a new one {fresh:.6f} s, the same: {cached == fresh}")


def show_job_file(folder: Path) -> None:
    file = folder / "job.toml"
    file.write_text(
        'source = "gpt2-xl"\n[workload]\nprecision = "bf16"\n[cluster]\ndevice = "a100-80g"\nnodes = 1\ndevices_per_node = 8\n'
        "[parallelism]\noverlap = false\noffload_optimizer = true\n[job]\nglobal_batch = 64\n"
    )
    best = ask("plan", str(file))["plans"][0]["parallelism"]
    print(f"plan job.toml keeps overlap = {best['overlap']} and offload_optimizer = {best['offload_optimizer']}")


def run() -> None:
    num_rows = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    if num_rows:
        sys.path.insert(0, str(Path(__file__).parent))
        from commands import score

        score(num_rows)
    show_published()
    with tempfile.TemporaryDirectory() as folder:
        show_name_and_file(Path(folder))
        show_advice()
        show_page(Path(folder))
        show_replicas()
        print("fields that the planner's keys forgot:")
        show_fields()
        show_job_file(Path(folder))


if __name__ == "__main__":
    run()
