"""A Lightning Trainer under watch: `Trainer(..., callbacks=[ForecastCallback()])`."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from traincast.capture import capture
from traincast.errors import MissingExtra
from traincast.integrate.pytorch import RunCallback, TorchRun, foresee, optimizer_name
from traincast.spec import Graph

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError as error:
        raise MissingExtra("lightning", "integrate", "the callback for a Lightning Trainer") from error

PRECISIONS = {"bf16-mixed": "bf16-amp", "16-mixed": "fp16-amp", "bf16-true": "bf16", "16-true": "fp16"}


class ForecastCallback(RunCallback, Callback):  # type: ignore[misc]
    """Forecasts with the first batch, before step 0, then compares step by step.

    Logs `forecast_speed` (share of the forecast speed) and `eta_s` every `check_every` steps. With `store`, a file, the
    measurements of this run are kept and used by the next.
    """

    _num_updates = 0
    _batch_ended: float | None = None
    _outside_begun: float | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        planned = trainer.estimated_stepping_batches
        num_steps = int(planned) - trainer.global_step if planned not in (float("inf"), -1) else None
        self.run = TorchRun(pl_module, num_steps=num_steps, **self._options)
        self._num_updates = trainer.global_step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        run = self.run
        if run is None:
            return
        if run.prepared is None and run.watch.num_done == 0 and self._batch_ended is None:
            self._foresee(run, trainer, pl_module, batch, batch_idx)
            run.start()
        elif self._batch_ended is not None:
            run.batch_arrives(time.perf_counter() - self._batch_ended)
        self._batch_ended = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        run = self.run
        self._batch_ended = time.perf_counter()
        # With accumulation several batches make one update.
        if run is None or trainer.global_step == self._num_updates:
            return
        self._num_updates = trainer.global_step
        run.step()
        if run.watch.num_done % run.check_every == 0:
            compared = run.compare()
            if compared.ratio is not None:
                pl_module.log("forecast_speed", compared.ratio)
            if compared.remaining is not None:
                pl_module.log("eta_s", compared.remaining.seconds, prog_bar=True)
        self._batch_ended = time.perf_counter()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._outside_begun = time.perf_counter()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self.run is not None and self._outside_begun is not None and not trainer.sanity_checking:
            seconds = time.perf_counter() - self._outside_begun
            self.run.spent_outside(seconds)
            if self._batch_ended is not None:
                self._batch_ended += seconds
        self._outside_begun = None

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.run is not None:
            self.run.finish()

    def _foresee(self, run: TorchRun, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        update = trainer.optimizers[0] if trainer.optimizers else "adamw"
        update = getattr(update, "optimizer", update)
        precision = PRECISIONS.get(str(trainer.precision), "fp32")

        def record() -> Graph:
            with _unlogged(pl_module):
                return capture(
                    _TrainingStep(pl_module, batch_idx), (batch,), optimizer=update, precision=precision,
                    name=type(pl_module).__name__, max_grad_norm=trainer.gradient_clip_val or None,
                )  # fmt: skip

        foresee(
            run, record, accumulate=trainer.accumulate_grad_batches, **self._pricing,
            attrs={"optimizer": optimizer_name(update), "precision": precision},
        )  # fmt: skip


class _TrainingStep(nn.Module):  # type: ignore[misc]
    """`training_step` as a forward pass that returns the loss."""

    def __init__(self, module: nn.Module, batch_idx: int) -> None:
        super().__init__()
        self.module = module
        self.batch_idx = batch_idx

    def forward(self, batch: Any) -> torch.Tensor:
        output = self.module.training_step(batch, self.batch_idx)
        loss: torch.Tensor = output["loss"] if isinstance(output, Mapping) else output
        return loss


@contextlib.contextmanager
def _unlogged(module: Any) -> Iterator[None]:
    """While it is recorded, a step must not log: its values are not real."""
    names = ("log", "log_dict")
    for name in names:
        # On the instance, so that the class and every other instance keep theirs.
        module.__dict__[name] = _nothing
    try:
        yield
    finally:
        for name in names:
            module.__dict__.pop(name, None)


def _nothing(*_: Any, **__: Any) -> None:
    """Stands in for the log of a module."""
