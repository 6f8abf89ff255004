import logging
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning.pytorch")

from traincast.integrate.lightning import ForecastCallback  # noqa: E402
from traincast.store import Store  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")


class Net(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


def train(tmp_path: Path, callbacks: list[Any], **changes: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    data = torch.utils.data.TensorDataset(torch.randn(30 * 16, 128), torch.randn(30 * 16, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, callbacks=callbacks, val_check_interval=10,
        **changes,
    )  # fmt: skip
    model = Net()
    trainer.fit(model, loader, loader)
    return trainer, model


def test_a_trainer_forecasts_before_step_0_and_logs_its_eta(tmp_path: Path) -> None:
    lines: list[str] = []
    watcher = ForecastCallback(store=tmp_path / "runs.db", measuring_s=0.5, check_every=10, say=lines.append)
    trainer, _ = train(tmp_path, [watcher])
    assert "forecast for Net" in lines[0]
    compared = watcher.compare()
    assert compared is not None
    assert compared.num_done == compared.num_steps == 30
    assert compared.ratio is not None
    assert "eta_s" in trainer.callback_metrics
    assert not isinstance(trainer.callback_metrics["loss"], torch._subclasses.FakeTensor)
    with Store(tmp_path / "runs.db", create=False) as store:
        assert store.measurements(subject="step", name="Net")[0].num_repeats == 27


def test_the_callback_changes_nothing_of_the_training(tmp_path: Path) -> None:
    _, plain = train(tmp_path, [])
    _, watched = train(tmp_path, [ForecastCallback(measuring_s=0.2, say=lambda _: None)])
    for (name, left), (_, right) in zip(plain.named_parameters(), watched.named_parameters(), strict=True):
        assert torch.equal(left, right), name


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    watcher = ForecastCallback(measuring_s=0.2, say=lambda _: None)
    train(tmp_path, [watcher], accumulate_grad_batches=2)
    assert watcher.forecast is not None
    assert watcher.forecast.global_batch == 32
    compared = watcher.compare()
    assert compared is not None
    assert compared.num_done == 15
