"""The clock of a training run: turns the events of a loop into step times, says what it sees, and keeps measurements."""

import collections
import contextlib
import datetime
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from traincast.errors import TraincastError
from traincast.integrate._here import PreparedModel
from traincast.integrate._watch import Comparison, RunWatch, StepTime
from traincast.learn import keep_graph
from traincast.profile import DeviceSampler
from traincast.resources import summarize_readings
from traincast.spec import Block, Forecast
from traincast.store import Store
from traincast.units import show_bytes, show_seconds

KEEP_EVERY = 100
"""Steps of one block in the store; a run killed in between loses fewer."""


def tell(text: str) -> None:
    """To standard error: the output of a training script belongs to the script."""
    sys.stderr.write(f"traincast: {text}\n")


class WatchedRun:
    """One run. The loop reports `waited`, `spent_outside` and `step_ends`; everything else follows from the clock."""

    def __init__(
        self,
        *,
        num_steps: int | None = None,
        store: str | os.PathLike[str] | None = None,
        check_every: int = 20,
        warm_up: int = 3,
        say: Callable[[str], None] = tell,
        clock: Callable[[], float] = time.perf_counter,
        num_threads: int | None = None,
        has_peers: bool = False,
        sampler: DeviceSampler | None = None,
    ) -> None:
        """`num_threads` that compute on a CPU; None where something else computes. A rank with peers waits for them too.
        `sampler`: reads the driver and the network beside the loop."""
        self.watch = RunWatch(None, num_steps=num_steps, warm_up=warm_up)
        self.prepared: PreparedModel | None = None
        self.check_every = max(1, check_every)
        self._say = say
        self._clock = clock
        self._store = Path(store) if store is not None else None
        self._pending: list[StepTime] = []
        self._started_at = ""
        self._mark: float | None = None
        self._num_threads = num_threads
        self._sampler = sampler
        self._may_starve = num_threads == 1 and not has_peers
        self._cpu_mark = 0.0
        self._waiting_s = 0.0
        self._outside_s = 0.0
        self._told: set[str] = set()
        self._last: collections.deque[StepTime] = collections.deque(maxlen=KEEP_EVERY)

    @property
    def forecast(self) -> Forecast | None:
        return self.watch.forecast

    def foresee(self, prepare: Callable[[Store | None], PreparedModel]) -> None:
        """Make the forecast. Training goes on without one: a run must never fail because it is watched."""
        try:
            with contextlib.nullcontext(None) if self._store is None else Store(self._store) as store:
                self.prepared = prepare(store)
        except TraincastError as error:
            self._say(f"no forecast: {error}")
            return
        except Exception as error:
            self._say(f"no forecast, please report it: {type(error).__name__}: {error}")
            return
        self.watch.forecast = answer = self.prepared.forecast
        total = f", {self.watch.num_steps:,} steps in {show_seconds(answer.job.total.seconds)}"
        memory = answer.memory
        self._say(
            f"forecast for {answer.workload} on {answer.cluster}: {show_seconds(answer.step.seconds)} per step "
            f"({show_seconds(answer.step.low_s)} to {show_seconds(answer.step.high_s)})"
            f"{total if self.watch.num_steps is not None else ''}, "
            f"{show_bytes(memory.peak_bytes)} of {show_bytes(memory.capacity_bytes)} memory"
            f"{'' if memory.fits else ': it DOES NOT FIT'}"
        )

    def start(self) -> None:
        """The loop begins now; what came before is not part of a step."""
        if self._sampler is not None:
            self._sampler.start()
        self._mark = self._clock()
        self._cpu_mark = time.process_time()
        self._waiting_s = self._outside_s = 0.0

    def waited(self, seconds: float) -> None:
        """Since the last step ended this long was spent waiting for data."""
        self._waiting_s += max(0.0, seconds)

    def spent_outside(self, seconds: float) -> None:
        """Since the last step ended this long went to something else: evaluation, a checkpoint."""
        self._outside_s += max(0.0, seconds)

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """What runs inside is no part of a step: evaluation, checkpoints."""
        begun = self._clock()
        try:
            yield
        finally:
            self.spent_outside(self._clock() - begun)

    @property
    def since_mark_s(self) -> float:
        """Since the last step ended or the loop began."""
        return 0.0 if self._mark is None else self._clock() - self._mark

    def step_ends(self, *, rank_s: tuple[float, ...] = ()) -> None:
        """An optimizer step has just ended."""
        if self._mark is None:
            self.start()
            self.watch.num_done += 1
            return
        now = self._clock()
        seconds = max(0.0, now - self._mark - self._outside_s)
        waiting_s = min(self._waiting_s, seconds)
        step = StepTime(
            seconds=seconds, waiting_s=waiting_s, outside_s=self._outside_s, rank_s=rank_s,
            **self._cpu_time(seconds - waiting_s),
        )  # fmt: skip
        self._mark, self._waiting_s, self._outside_s = now, 0.0, 0.0
        self.watch.observe(step)
        if self.watch.num_done > self.watch.warm_up:
            if not self._pending:
                self._started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            self._pending.append(step)
            self._last.append(step)
        if len(self._pending) >= KEEP_EVERY:
            self._keep()
        if self.watch.num_done % self.check_every == 0:
            self._check()

    def _cpu_time(self, running_s: float) -> dict[str, float]:
        """CPU time since the last step, and what is missing of it: a thread that was ready while others had the cores.

        A rank that waits in a collective uses no CPU time either, so only one that has no peers can tell.
        """
        if self._num_threads is None:
            return {}
        now = time.process_time()
        # Evaluation and the like computed too; their part is not known, so such a step says nothing about starving.
        cpu_s, self._cpu_mark = now - self._cpu_mark, now
        if self._outside_s:
            return {}
        return {"cpu_s": cpu_s, "starved_s": max(0.0, running_s - cpu_s) if self._may_starve else 0.0}

    def compare(self) -> Comparison:
        return self.watch.compare()

    def finish(self) -> None:
        """The loop has ended: keep what was measured and say how the forecast did."""
        self._keep()
        if self._sampler is not None:
            self._sampler.stop()
        compared = self.compare()
        if compared.observed_s is None:
            return
        line = f"{compared.num_done:,} steps of {show_seconds(compared.observed_s)}"
        if compared.forecast is not None:
            step = compared.forecast
            inside = "inside" if step.low_s <= compared.observed_s <= step.high_s else "outside"
            line += (
                f"; the forecast was {show_seconds(step.seconds)} ({step.seconds / compared.observed_s - 1:+.0%}), "
                f"the run is {inside} its interval"
            )
        known = [step.cpu_s for step in self._last if step.cpu_s is not None]
        if known and self._num_threads == 1:
            line += f"; {show_seconds(statistics.median(known))} of CPU time per step"
        self._say(line)

    def _check(self) -> None:
        compared = self.compare()
        self._say(compared.says())
        found = compared.finding
        if found is not None and found.cause not in self._told:
            self._told.add(found.cause)
            self._say(f"warning: {found.says}")

    def _read_meters(self, num_steps: int) -> dict[str, float]:
        """What the driver and the network told since the last steps were kept."""
        if self._sampler is None:
            return {}
        # A stretch shorter than the time between two readings has an end too.
        self._sampler.look()
        readings = self._sampler.take()
        found = summarize_readings(
            [one.at_s for one in readings], num_steps=num_steps, busy=[one.busy for one in readings],
            memory_busy=[one.memory_busy for one in readings], sent_bytes=[one.sent_bytes for one in readings],
            received_bytes=[one.received_bytes for one in readings],
        )  # fmt: skip
        held = [one.used_bytes for one in readings if one.used_bytes is not None]
        return {**found, **({"used_bytes": max(held)} if held else {})}

    def _device_memory(self) -> dict[str, float]:
        """The peak that the framework's allocator counted, where there is one."""
        return {}

    def _keep(self) -> None:
        """Steps without the wait for data, which belongs to the pipeline and not to the machine."""
        steps, self._pending = self._pending, []
        if self._store is None or self.prepared is None or not steps:
            return
        cpu_s = tuple(step.cpu_s for step in steps if step.cpu_s is not None)
        block = Block(
            started_at=self._started_at,
            wall_s=tuple(step.seconds - step.waiting_s for step in steps),
            cpu_s=cpu_s if len(cpu_s) == len(steps) else (),
            resources={
                "forecast_s": self.prepared.forecast.step.seconds,
                "waiting_s": sum(step.waiting_s for step in steps) / len(steps),
                **self._read_meters(len(steps)),
                **self._device_memory(),
            },
            source="run",
        )
        try:
            with Store(self._store) as store:
                store.append(self.prepared.experiment, self.prepared.environment, block)
            if self.prepared.graph is not None:
                keep_graph(self._store, self.prepared.experiment, self.prepared.graph)
        except TraincastError as error:
            self._say(f"measurements are not kept: {error}")
