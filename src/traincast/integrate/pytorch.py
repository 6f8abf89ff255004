"""A plain PyTorch loop under watch: `with watch_training(model, example) as run: for batch in run.batches(loader): ...`."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import nn

from traincast.capture import capture
from traincast.integrate._here import PreparedModel, find_place, forecast_here
from traincast.integrate._run import WatchedRun, tell
from traincast.integrate._watch import Comparison
from traincast.profile import DeviceSampler, find_meter
from traincast.spec import Attr, Calibration, Forecast, Graph
from traincast.store import Store


class TorchRun(WatchedRun):
    """A run of a PyTorch loop. Every rank has one; only the first of them speaks and keeps measurements."""

    def __init__(self, model: nn.Module, *, store: str | os.PathLike[str] | None = None,
                 say: Callable[[str], None] = tell, **options: Any) -> None:  # fmt: skip
        self.device = device_of(model)
        self.is_first = rank_of() == 0
        threads = torch.get_num_threads() if self.device == "cpu" else None
        super().__init__(
            store=store if self.is_first else None,
            say=say if self.is_first else _silent,
            num_threads=threads,
            has_peers=num_ranks() > 1,
            sampler=_find_sampler(self.device) if store is not None and self.is_first else None,
            **options,
        )
        self._ranks = RankClock(model) if num_ranks() > 1 else None
        self._idle: Any = None

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The batches of a loader, with the wait for each counted."""
        source = iter(loader)
        while True:
            if self._mark is None:
                self.start()
            begun = self._clock()
            try:
                batch = next(source)
            except StopIteration:
                return
            self.batch_arrives(self._clock() - begun)
            yield batch

    def batch_arrives(self, seconds: float) -> None:
        """A batch came after this long. While a GPU still works on the last step, waiting on the host costs nothing."""
        if self._idle is None or self._idle.query():
            self.waited(seconds)
            if self._ranks is not None:
                self._ranks.add(seconds)

    def step(self) -> None:
        """Call it after optimizer.step()."""
        rank_s: tuple[float, ...] = ()
        if self._ranks is not None:
            self._ranks.num_steps += 1
            if (self.watch.num_done + 1) % self.check_every == 0:
                rank_s = self._ranks.gather()
        if self.device == "cuda":
            self._idle = torch.cuda.Event()
            self._idle.record()
        self.step_ends(rank_s=rank_s)

    def _device_memory(self) -> dict[str, float]:
        if self.device != "cuda":
            return {}
        return {"peak_bytes": float(torch.cuda.max_memory_reserved())}

    def forget_ranks(self) -> None:
        """Leave out what the ranks took so far: the recording ran the model on the first of them."""
        if self._ranks is not None:
            self._ranks.reset()

    def finish(self) -> None:
        if self._ranks is not None:
            self._ranks.remove()
        super().finish()


class RunCallback:
    """What the callbacks of trainers share: one run, made when training begins."""

    def __init__(
        self,
        *,
        calibration: str | Path | Calibration | None = None,
        measuring_s: float = 2.0,
        store: str | os.PathLike[str] | None = None,
        check_every: int = 20,
        say: Callable[[str], None] = tell,
    ) -> None:
        self.run: TorchRun | None = None
        self._options: dict[str, Any] = {"store": store, "check_every": check_every, "say": say}
        self._pricing: dict[str, Any] = {"calibration": calibration, "measuring_s": measuring_s}

    @property
    def forecast(self) -> Forecast | None:
        return self.run.forecast if self.run is not None else None

    def compare(self) -> Comparison | None:
        return self.run.compare() if self.run is not None else None


def _find_sampler(device: str) -> DeviceSampler:
    """Of the GPU that this process trains on, by what the driver calls it; without one the network alone is read."""
    if device != "cuda":
        return DeviceSampler(None)
    index = torch.cuda.current_device()
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return DeviceSampler(find_meter(index=index, uuid=str(uuid) if uuid is not None else None))


class RankClock:
    """What each rank needs by itself: its forward passes and waits, which no collective of data parallelism delays."""

    def __init__(self, model: nn.Module) -> None:
        self.num_steps = 0
        self._is_cuda = device_of(model) == "cuda"
        self._seconds = 0.0
        self._begun: Any = None
        self._events: list[tuple[Any, Any]] = []
        self._hooks = [model.register_forward_pre_hook(self._begins), model.register_forward_hook(self._ends)]

    def add(self, seconds: float) -> None:
        self._seconds += seconds

    def gather(self) -> tuple[float, ...]:
        """Mean seconds of a step since the last call, of every rank; a collective, so all ranks call it."""
        for begun, ended in self._events:
            ended.synchronize()
            self._seconds += begun.elapsed_time(ended) * 1e-3
        mean_s = self._seconds / max(1, self.num_steps)
        self.reset()
        own = torch.tensor([mean_s], dtype=torch.float32, device="cuda" if self._is_cuda else "cpu")
        found = [torch.zeros_like(own) for _ in range(num_ranks())]
        torch.distributed.all_gather(found, own)
        return tuple(float(each) for each in found)

    def reset(self) -> None:
        self._seconds, self.num_steps, self._events = 0.0, 0, []

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _begins(self, *_: Any) -> None:
        self._begun = _cuda_mark() if self._is_cuda else time.perf_counter()

    def _ends(self, *_: Any) -> None:
        if self._is_cuda:
            self._events.append((self._begun, _cuda_mark()))
        elif self._begun is not None:
            self._seconds += time.perf_counter() - self._begun


class Watching(TypedDict, total=False):
    """How a run is watched: how many steps it has, where its measurements are kept, how often it is judged, who is told."""

    num_steps: int | None
    store: str | os.PathLike[str] | None
    check_every: int
    say: Callable[[str], None]


@contextlib.contextmanager
def watch_training(
    model: nn.Module,
    example: Any,
    *,
    loss: Any = None,
    target: Any = None,
    optimizer: Any = "adamw",
    precision: str = "fp32",
    accumulate: int = 1,
    name: str = "",
    calibration: str | Path | Calibration | None = None,
    measuring_s: float = 2.0,
    **watching: Unpack[Watching],
) -> Iterator[TorchRun]:
    """Forecast a training loop before step 0, then compare it step by step.

    `example` are the arguments of one forward pass, a tensor, a tuple or a mapping; `loss`, `target`, `optimizer` and
    `precision` are those of `traincast.capture`. `accumulate` passes make one step. With `store`, a file, the measurements of
    this run are kept and used by the next.
    """
    run = TorchRun(model, **watching)

    def record() -> Graph:
        inner = getattr(model, "module", model) if num_ranks() > 1 else model
        return capture(inner, example, loss=loss, target=target, optimizer=optimizer, precision=precision, name=name)

    foresee(
        run, record, accumulate=accumulate, calibration=calibration, measuring_s=measuring_s,
        attrs={"optimizer": optimizer_name(optimizer), "precision": precision},
    )  # fmt: skip
    try:
        yield run
    finally:
        run.finish()


def foresee(
    run: TorchRun,
    record: Callable[[], Graph],
    *,
    accumulate: int,
    attrs: Mapping[str, Attr],
    calibration: str | Path | Calibration | None,
    measuring_s: float,
    compiled: bool = False,
) -> None:
    """Record and forecast on the first rank; the others wait, so that they do not disturb what it measures."""

    def prepare(store: Store | None) -> PreparedModel:
        devices = [torch.cuda.current_device()] if run.device == "cuda" else []
        # Recording and measuring draw random numbers; the training must draw what it would have drawn without them.
        with torch.random.fork_rng(devices=devices):
            # An ambient autocast or no_grad belongs to the training, not to the recording, which sets its own.
            with torch.enable_grad(), torch.autocast(run.device, enabled=False), torch.autocast("cpu", enabled=False):
                graph = record()
            return forecast_here(
                graph, place=find_place(run.device), num_steps=run.watch.num_steps, accumulate=accumulate,
                compiled=compiled, attrs=attrs, calibration=calibration, measuring_s=measuring_s, store=store,
            )  # fmt: skip

    if run.is_first:
        run.foresee(prepare)
    if num_ranks() > 1:
        torch.distributed.barrier()
    run.forget_ranks()


def optimizer_name(optimizer: Any) -> str:
    return optimizer if isinstance(optimizer, str) else type(optimizer).__name__.lower()


def device_of(model: nn.Module) -> str:
    """cuda or cpu: where the weights are."""
    first = next(model.parameters(), None)
    return "cuda" if first is not None and first.device.type == "cuda" else "cpu"


def num_ranks() -> int:
    return int(torch.distributed.get_world_size()) if _is_distributed() else 1


def rank_of() -> int:
    return int(torch.distributed.get_rank()) if _is_distributed() else 0


def _is_distributed() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _cuda_mark() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _silent(_: str) -> None:
    """Ranks other than the first say nothing."""
