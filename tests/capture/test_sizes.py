"""Sizes of configs: refused before a framework is imported, and no sound config among them."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from traincast.__main__ import main
from traincast.capture._sizes import check_sizes
from traincast.errors import InvalidInput

SMALL = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 100}


@pytest.mark.parametrize(
    "changes",
    [
        {"n_layer": 2**63}, {"n_layer": 1e18}, {"num_hidden_layers": 10**6}, {"depths": [10**6]}, {"depths": [[600], [600]]},
        {"encoder_layers": 10**5}, {"num_blocks": [10**9]}, {"n_embd": 2**40}, {"vocab_size": 10**400},
        {"text_config": {"num_hidden_layers": 10**9}}, {"num_local_experts": 10**9},
        {"n_layer": 1000, "num_experts": 10_000}, {"x": list(range(5000))}, {"x": {str(n): n for n in range(5000)}},
        {"n_layer": float("inf")}, {"n_layer": 512, "n_embd": 262_144}, {"x": [[{"a": n}] * 100 for n in range(300)]},
    ],
)  # fmt: skip
def test_a_size_that_no_model_has_is_refused_at_once(changes: dict[str, Any]) -> None:
    began = time.process_time()
    with pytest.raises(InvalidInput, match="the config "):
        check_sizes({**SMALL, **changes})
    assert time.process_time() - began < 0.5


def test_places_labels_and_long_contexts_are_no_sizes() -> None:
    check_sizes({**SMALL, "moe_layers": list(range(90)), "id2label": {str(n): "x" for n in range(30_000)},
                 "max_position_embeddings": 10_485_760, "rope_theta": 1e12, "eos_token_id": -1, "n_positions": float("inf"),
                 "depths": [3, 3, 27, 3], "layer_types": ["full"] * 128})  # fmt: skip


def test_no_default_config_of_the_library_is_refused() -> None:
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    names = (
        "llama",
        "llama4_text",
        "deepseek_v3",
        "doge",
        "swin",
        "convnext",
        "resnet",
        "t5",
        "whisper",
        "mixtral",
        "qwen3_moe",
        "jamba",
    )
    for name in names:
        if name in transformers.CONFIG_MAPPING:
            check_sizes(transformers.CONFIG_MAPPING[name]().to_dict())


@pytest.mark.parametrize("changes", [{"n_layer": 2**63}, {"n_layer": 10**7}])
def test_the_command_line_refuses_an_endless_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, **changes}))
    assert main(["forecast", str(tmp_path / "config.json"), "-d", "a100-80g"]) == 2
    assert "at most 1,024 is taken" in capsys.readouterr().err


def test_ten_times_a_refused_size_is_refused_as_fast() -> None:
    took = []
    for power in range(4, 19):
        began = time.perf_counter()
        for _ in range(50):
            with pytest.raises(InvalidInput):
                check_sizes({**SMALL, "n_layer": 10**power})
        took.append(time.perf_counter() - began)
    assert max(took) < 20 * min(took) + 0.05
