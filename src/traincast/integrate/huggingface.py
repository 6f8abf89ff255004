"""A Hugging Face Trainer under watch: `Trainer(..., callbacks=[ForecastCallback()])`."""

import time
from typing import Any

from traincast.capture import capture
from traincast.errors import MissingExtra
from traincast.integrate.pytorch import RunCallback, TorchRun, foresee, optimizer_name
from traincast.spec import Graph

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingExtra("transformers", "integrate", "the callback for a Hugging Face Trainer") from error


class ForecastCallback(RunCallback, TrainerCallback):  # type: ignore[misc]
    """Forecasts at the first forward pass, before anything is computed, then compares step by step.

    Adds `forecast_speed` (share of the forecast speed) and `eta_s`, with `eta_low_s` and `eta_high_s`, to what the Trainer
    logs. With `store`, a file, the measurements of this run are kept and used by the next.
    """

    _hook: Any = None
    _outside_until: float | None = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any, optimizer: Any = None, **_: Any
    ) -> None:
        num_steps = state.max_steps - state.global_step if state.max_steps > 0 else None
        inner = getattr(model, "module", model)
        self.run = run = TorchRun(inner, num_steps=num_steps, **self._options)
        update = getattr(optimizer, "optimizer", optimizer)
        precision = "bf16-amp" if args.bf16 else "fp16-amp" if args.fp16 else "fp32"
        attrs = {"optimizer": optimizer_name(update), "precision": precision}

        def first_forward(module: Any, arguments: Any, named: Any) -> None:
            self._hook.remove()
            inputs = {key: value for key, value in named.items() if key != "num_items_in_batch"} or arguments

            def record() -> Graph:
                clip = args.max_grad_norm or None
                return capture(module, inputs, optimizer=update, precision=precision, max_grad_norm=clip,
                               holds_output=False)  # fmt: skip

            with run.outside():
                foresee(
                    run, record, accumulate=args.gradient_accumulation_steps, attrs=attrs,
                    compiled=bool(args.torch_compile), **self._pricing,
                )  # fmt: skip

        # The first forward pass has the very inputs of step 0; asking the loader for a batch would change the order of data.
        self._hook = inner.register_forward_pre_hook(first_forward, with_kwargs=True)
        run.start()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.run is None:
            return
        since = self.run.since_mark_s if self._outside_until is None else time.perf_counter() - self._outside_until
        self.run.batch_arrives(since)
        self._outside_until = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.run is not None:
            self.run.step()
            self._outside_until = None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self._outside_ends()
        if self.run is None or logs is None:
            return
        compared = self.run.compare()
        if compared.ratio is not None:
            logs["forecast_speed"] = compared.ratio
        if compared.remaining is not None:
            left = compared.remaining
            logs.update(eta_s=left.seconds, eta_low_s=left.low_s, eta_high_s=left.high_s)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._outside_ends()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._outside_ends()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._hook is not None:
            self._hook.remove()
        if self.run is not None:
            self.run.finish()

    def _outside_ends(self) -> None:
        """The Trainer tells when logging, evaluation and saving have ended; they all follow a step."""
        if self.run is None:
            return
        now = time.perf_counter()
        begun_s = now - self.run.since_mark_s if self._outside_until is None else self._outside_until
        self.run.spent_outside(now - begun_s)
        self._outside_until = now
