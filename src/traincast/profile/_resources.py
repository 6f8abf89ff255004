"""Samples what a process uses while it runs: memory, CPU, network. What a burst is, `resources.signal` alone says."""

import bisect
import contextlib
import resource
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

PAGE_BYTES = resource.getpagesize()
OWN_INTERFACES = Path("/proc/self/net/dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    at_s: float
    rss_bytes: float
    cpu_s: float
    sent_bytes: float
    received_bytes: float


@dataclass(slots=True)
class Samples:
    """Filled by a sampler while it runs."""

    values: list[Sample] = field(default_factory=list)

    def between(self, began_s: float, ended_s: float, *, interval_s: float = 0.02) -> "Samples":
        """The readings that a perfectly regular sampler would have made in a stretch of the clock; between two readings
        counters grow evenly, and what fell (a thread that ended took its count along) stays where it was."""
        if len(self.values) < 2:
            return Samples()
        times = [sample.at_s for sample in self.values]
        num_windows = max(1, round((ended_s - began_s) / interval_s))
        wanted = [began_s + (ended_s - began_s) * index / num_windows for index in range(num_windows + 1)]
        columns = {}
        for name in ("rss_bytes", "cpu_s", "sent_bytes", "received_bytes"):
            read = [getattr(sample, name) for sample in self.values]
            columns[name] = _interpolate(wanted, times, read if name == "rss_bytes" else list(accumulate(read, max)))
        return Samples(
            [
                Sample(at_s=at_s, **{name: values[index] for name, values in columns.items()})
                for index, at_s in enumerate(wanted)
            ]
        )

    def summary(self) -> dict[str, float]:
        """Totals and peaks, units in the names."""
        if len(self.values) < 2:
            return {}
        first, last = self.values[0], self.values[-1]
        span_s = max(last.at_s - first.at_s, 1e-9)
        return {
            "sampled_s": span_s,
            "rss_peak_bytes": max(sample.rss_bytes for sample in self.values),
            "rss_mean_bytes": sum(sample.rss_bytes for sample in self.values) / len(self.values),
            "cpu_share": (last.cpu_s - first.cpu_s) / span_s,
            "sent_bytes": last.sent_bytes - first.sent_bytes,
            "received_bytes": last.received_bytes - first.received_bytes,
        }


def _interpolate(wanted: Sequence[float], times: Sequence[float], values: Sequence[float]) -> list[float]:
    found = []
    for at_s in wanted:
        after = min(max(bisect.bisect_left(times, at_s), 1), len(times) - 1)
        before = after - 1
        part = (at_s - times[before]) / max(times[after] - times[before], 1e-9)
        found.append(values[before] + min(1.0, max(0.0, part)) * (values[after] - values[before]))
    return found


@contextlib.contextmanager
def sampling(*, interval_s: float = 0.01, interface: str | None = None) -> Iterator[Samples]:
    """Sample this process beside the body. Not for timed blocks: a sampler steals a little from what it watches."""
    samples = Samples()
    stop = threading.Event()

    def watch() -> None:
        while True:
            samples.values.append(take_sample(interface=interface))
            if stop.wait(interval_s):
                samples.values.append(take_sample(interface=interface))
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def watching(pids: Sequence[int], *, interval_s: float = 0.02) -> Iterator[list[Samples]]:
    """Sample other processes from outside: their own CPU time is not touched, so this is for timed blocks too."""
    found = [Samples() for _ in pids]
    stop = threading.Event()

    def watch() -> None:
        due_s = time.perf_counter()
        while not stop.is_set():
            for pid, samples in zip(pids, found, strict=True):
                with contextlib.suppress(OSError, IndexError, ValueError):
                    samples.values.append(_sample_process(pid))
            # After a delay the missed readings are not made up for: two at once would show a rate that never was.
            due_s = max(due_s + interval_s, time.perf_counter() + interval_s / 2)
            stop.wait(due_s - time.perf_counter())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def _sample_process(pid: int) -> Sample:
    home = Path("/proc", str(pid))
    at_s = time.perf_counter()
    cpu_ns = 0
    for task in (home / "task").iterdir():
        # A thread may end between the listing and the reading; what it used is then missing from one sample.
        with contextlib.suppress(OSError):
            cpu_ns += int((task / "schedstat").read_text().split()[0])
    sent, received = network_bytes(table=home / "net" / "dev")
    return Sample(
        at_s=at_s,
        rss_bytes=float(int((home / "statm").read_text().split()[1]) * PAGE_BYTES),
        cpu_s=cpu_ns * 1e-9,
        sent_bytes=sent,
        received_bytes=received,
    )


def take_sample(*, interface: str | None = None) -> Sample:
    sent, received = network_bytes(interface)
    return Sample(
        at_s=time.perf_counter(),
        rss_bytes=float(int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES),
        cpu_s=time.process_time(),
        sent_bytes=sent,
        received_bytes=received,
    )


def network_bytes(interface: str | None = None, *, table: Path = OWN_INTERFACES) -> tuple[float, float]:
    """Bytes sent and received by a network namespace since it began, on one interface or on all but loopback."""
    totals = _interfaces(table)
    chosen = totals if interface is None else {name: totals[name] for name in (interface,) if name in totals}
    return float(sum(sent for sent, _ in chosen.values())), float(sum(received for _, received in chosen.values()))


def _interfaces(table: Path) -> Mapping[str, tuple[int, int]]:
    totals = {}
    with contextlib.suppress(OSError):
        for line in table.read_text().splitlines()[2:]:
            name, _, counts = line.partition(":")
            words = counts.split()
            if name.strip() != "lo":
                totals[name.strip()] = (int(words[8]), int(words[0]))
    return totals
