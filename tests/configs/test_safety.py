"""Configurations are foreign texts: nothing in them runs, and none of them takes more than its share."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.configs import read_config
from traincast.errors import TraincastError
from traincast.spec import ConfigText


def test_nothing_in_a_recipe_or_a_script_runs(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    recipe = (
        f"open({str(mark)!r}, 'w').write('x')\n"
        "def main():\n"
        f"    cfg = open({str(mark)!r}, 'w')\n"
        f"    cfg.model.tensor_model_parallel_size = __import__('os').system('touch {mark}') or 4\n"
        "    cfg.train.global_batch_size = 64\n"
        "    cfg.train.micro_batch_size = 1\n"
        "    return cfg\n"
    )
    reading = read_config(ConfigText(name="recipe.py", text=recipe))
    assert reading.settings["job.global_batch"].value == 64
    assert "parallelism.tensor" not in reading.settings
    script = (
        f"X=$(touch {mark})\n`touch {mark}`\n"
        f"torchrun pretrain_gpt.py --micro-batch-size 1 --num-layers 2 --hidden-size 64 --train-iters $(touch {mark})"
    )
    read_config(ConfigText(name="run.sh", text=script))
    assert not mark.exists()


def test_yaml_that_builds_objects_is_refused() -> None:
    with pytest.raises(TraincastError, match="plain values"):
        read_config(ConfigText(name="x.yaml", text="base_model: !!python/object/apply:os.system ['true']\n"))


def test_yaml_that_unfolds_is_refused() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    with pytest.raises(TraincastError, match="aliases"):
        read_config(ConfigText(name="x.yaml", text="\n".join(lines)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.json", "[" * 100_000),
        ("x.json", '{"train_batch_size": NaN}'),
        ("x.yaml", "a: " * 2 + "[" * 5000),
        ("x.yaml", "- 1\n- 2\n"),
        ("x.toml", "a = [" * 3000),
        ("x.py", "def main():\n    return " + "(" * 500 + ")" * 500),
        ("x.sh", "A=a\n" + "A=$A$A$A$A$A$A$A$A$A$A\n" * 60 + "torchrun x.py --a $A"),
        ("x.sh", "echo hello\n"),
        ("x.yaml", "x" * (2**20)),
    ],
)
def test_odd_texts_are_refused_in_a_sentence(name: str, text: str) -> None:
    with pytest.raises(TraincastError) as raised:
        read_config(ConfigText(name=name, text=text))
    assert len(str(raised.value)) < 1000


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    file.write_bytes(b"{" + b" " * (2**21) + b"}")
    with pytest.raises(TraincastError, match="at most"):
        read_config(str(file))
    with pytest.raises(TraincastError, match="cannot read"):
        read_config(str(tmp_path / "missing.yaml"))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_KEYS = st.sampled_from(
    ["train_batch_size", "zero_optimization.stage", "base_model", "micro_batch_size", "lora_r", "fsdp", "fsdp_config",
     "deepspeed",
     "per_device_train_batch_size", "model.flavor", "training.seq_len", "parallelism.data_parallel_shard_degree",
     "trainer.strategy",
     "trainer.devices", "trainer.precision", "distributed_type", "num_processes", "model._component_", "checkpoint_dir",
     "train.micro_batch_size", "devices", "per_device_batch_size", "max_target_length", "ici_fsdp_parallelism", "num_layers",
     "tensor_model_parallel_size", "actor_rollout_ref.model.path", "data.train_batch_size", "finetuning_type", "cutoff_len",
     "lora_target", "optim", "bf16", "precision", "model_type", "hidden_size", "vocab_size", "gradient_checkpointing", "quantize"]
)  # fmt: skip


@given(tree=st.dictionaries(_KEYS, _VALUES, min_size=2, max_size=10))
@settings(max_examples=150, deadline=None)
def test_any_values_under_known_keys_are_read_or_refused(tree: dict[str, object]) -> None:
    import json

    try:
        reading = read_config(ConfigText(name="x.json", text=json.dumps(tree, allow_nan=False)))
    except (TraincastError, ValueError):
        return
    assert reading.format


@given(text=st.text(alphabet=st.sampled_from(list("abAB01 =-$(){}[]\"'\\\n#;|&.:")), max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_script_is_read_or_refused(text: str) -> None:
    try:
        read_config(
            ConfigText(name="x.sh", text=f"{text}\ntorchrun pretrain_gpt.py --num-layers 2 --micro-batch-size 1")
        )
    except TraincastError:
        return
