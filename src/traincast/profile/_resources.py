"""Samples what a process uses while it runs: memory, CPU, network. What a burst is, `resources.signal` alone says."""

import contextlib
import resource
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from traincast.noun import noun

PAGE_BYTES = resource.getpagesize()
OWN_INTERFACES = Path("/proc/self/net/dev")


@noun
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
