from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from traincast.integrate.huggingface import ForecastCallback  # noqa: E402
from traincast.store import Store  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")


class Tokens(torch.utils.data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = torch.arange(index, index + 32) % 100
        return {"input_ids": tokens, "labels": tokens}


def train(tmp_path: Path, callbacks: list[Any], **changes: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=100, n_positions=64)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=25, per_device_train_batch_size=4, logging_steps=10, report_to=[],
        use_cpu=True, save_strategy="no", disable_tqdm=True, **changes,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config), args=arguments, train_dataset=Tokens(), callbacks=callbacks
    )
    trainer.train()
    return trainer


def test_a_trainer_forecasts_before_step_0_logs_its_eta_and_keeps_its_steps(tmp_path: Path) -> None:
    lines: list[str] = []
    watcher = ForecastCallback(store=tmp_path / "runs.db", measuring_s=0.5, check_every=10, say=lines.append)
    trainer = train(tmp_path, [watcher])
    assert "forecast for GPT2LMHeadModel" in lines[0]
    compared = watcher.compare()
    assert compared is not None
    assert compared.num_done == compared.num_steps == 25
    assert compared.ratio is not None
    logged = [entry for entry in trainer.state.log_history if "eta_s" in entry] or lines
    assert logged
    assert any("of the forecast speed" in line for line in lines)
    with Store(tmp_path / "runs.db", create=False) as store:
        steps = store.measurements(subject="step", name="GPT2LMHeadModel")
    assert steps[0].num_repeats == 22
    assert steps[0].experiment.attrs["optimizer"] == "adamw"


def test_the_callback_changes_nothing_of_the_training(tmp_path: Path) -> None:
    plain = train(tmp_path, [])
    watched = train(tmp_path, [ForecastCallback(measuring_s=0.2, say=lambda _: None)])
    for (name, left), (_, right) in zip(plain.model.named_parameters(), watched.model.named_parameters(), strict=True):
        assert torch.equal(left, right), name


def test_accumulated_passes_are_one_step(tmp_path: Path) -> None:
    watcher = ForecastCallback(measuring_s=0.2, say=lambda _: None)
    train(tmp_path, [watcher], gradient_accumulation_steps=2)
    assert watcher.forecast is not None
    assert watcher.forecast.global_batch == 8
    compared = watcher.compare()
    assert compared is not None
    assert compared.num_done == 25
