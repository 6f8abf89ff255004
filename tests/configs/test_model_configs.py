"""A config.json as the source: the same answer as by name, at the model's own length, recorded only where it must be."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from traincast.configs import DESCRIBED
from traincast.configs._models import describes_whole, read_sizes
from traincast.forecast import answer
from traincast.plan import decide
from traincast.spec import Question, WorkloadOptions

EIGHT = {"device": "h100", "nodes": 1, "devices_per_node": 8}
LLAMA_3_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip


def write(folder: Path, config: dict[str, Any]) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return str(file)


def test_a_config_and_a_name_get_the_same_answer(tmp_path: Path) -> None:
    by_file = answer(decide(Question(source=write(tmp_path, LLAMA_3_8B), cluster=EIGHT, job={"tokens": 1e9})))
    by_name = answer(decide(Question(source="llama-3-8b", cluster=EIGHT, job={"tokens": 1e9})))
    assert by_file.step == by_name.step
    assert by_file.memory.needed_bytes == by_name.memory.needed_bytes
    assert any("has the sizes of llama-3-8b" in words for words in by_file.assumptions)


def test_other_sizes_are_built_without_recording_at_the_models_own_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("traincast.capture._huggingface"), "describe_config", None)
    source = write(tmp_path, {**LLAMA_3_8B, "num_hidden_layers": 20, "max_position_embeddings": 32_768})
    found = decide(Question(source=source, cluster=EIGHT, job={"tokens": 1e9}))
    assert found.settings["seq"] == 8192
    assert found.settings["precision"] == "bf16"
    assert any("the model takes 32,768" in words for words in found.assumptions)
    assert found.job.samples == pytest.approx(1e9 / 8192)
    said = decide(Question(source=source, cluster=EIGHT, workload=WorkloadOptions(seq=2048)))
    assert said.settings["seq"] == 2048


def test_what_sizes_do_not_say_is_recorded() -> None:
    assert describes_whole(LLAMA_3_8B)
    assert not describes_whole({**LLAMA_3_8B, "attention_bias": True})
    assert not describes_whole({**LLAMA_3_8B, "model_type": "electra"})


@pytest.mark.parametrize("kind", sorted(DESCRIBED))
def test_the_sizes_of_these_describe_every_parameter(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    small = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 32000,
             "num_key_value_heads": 4, "n_embd": 512, "n_layer": 4, "n_head": 8, "d_model": 512, "n_layers": 4, "n_heads": 8,
             "head_dim": 64}  # fmt: skip
    config = transformers.AutoConfig.for_model(kind)
    for key, value in small.items():
        if hasattr(config, key) and (key != "head_dim" or isinstance(config.head_dim, int)):
            setattr(config, key, value)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:4]
    content = {**config.to_dict(), "model_type": kind}
    sizes = read_sizes(content)
    assert sizes is not None
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    options = WorkloadOptions(**sizes, seq=128, batch=1, precision="bf16")
    found = decide(
        Question(source=kind, workload=options, cluster={"device": "h100", "nodes": 1, "devices_per_node": 1})
    )
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert found.job.graph.num_parameters == pytest.approx(counted, rel=1e-6)
