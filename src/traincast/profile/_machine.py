"""The machine under the clock: what it is, how it is held steady, and how slow it is right now."""

import contextlib
import ctypes
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from traincast.errors import InvalidInput, UnknownName
from traincast.noun import noun
from traincast.profile._protocol import VERSION
from traincast.spec import Attr, Environment


@noun
class Steadiness:
    """What is done to keep timings comparable from one moment to the next."""

    cores: tuple[int, ...] | None = None
    """Pinned to these; None: wherever the kernel likes."""
    num_threads: int = 1


def describe(*, device: str = "cpu", steadiness: Steadiness | None = None, machine: str | None = None) -> Environment:
    """The environment of measurements taken in this process now."""
    import torch

    if device not in ("cpu", "cuda"):
        raise UnknownName("device to measure", device, ("cpu", "cuda"), plural="devices to measure")
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidInput("PyTorch finds no GPU here; run this where there is one, or with --device cpu")

    software = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
    }
    settings: dict[str, Attr] = {"protocol": VERSION}
    if device == "cuda":
        name = str(torch.cuda.get_device_name())
        software["cuda"] = str(torch.version.cuda)
    else:
        name = cpu_name()
        settings["threads"] = torch.get_num_threads()
    if steadiness is not None:
        settings["pinned"] = steadiness.cores is not None
    return Environment(
        device=name, machine=machine if machine is not None else platform.node(), software=software, settings=settings
    )


def cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine() or "unknown CPU"


@contextlib.contextmanager
def steady(steadiness: Steadiness) -> Iterator[None]:
    """Hold this process to its cores and threads; both are put back at the end."""
    import torch

    allowed = os.sched_getaffinity(0)
    threads = torch.get_num_threads()
    cores = steadiness.cores
    if cores is not None:
        absent = sorted(set(cores) - allowed)
        if absent:
            raise InvalidInput(f"cannot pin to cores {absent}; this process may use {sorted(allowed)}")
        os.sched_setaffinity(0, cores)
    torch.set_num_threads(steadiness.num_threads)
    fix_malloc()
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        torch.set_num_threads(threads)


def fix_malloc() -> None:
    """Keep freed memory in the process: else the page faults of small models jump from run to run."""
    m_trim_threshold, m_mmap_threshold, m_arena_max = -1, -3, -8
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, 32 * 2**20)
        libc.mallopt(m_trim_threshold, 2**31 - 1)
        libc.mallopt(m_arena_max, 1)


def make_canary(*, size: int = 160, memory_bytes: int = 4 * 2**20) -> Callable[[], float]:
    """A fixed small job of arithmetic, memory traffic and Python; its duration tells how slow the machine is now."""
    import torch

    left, right = torch.rand(size, size), torch.rand(size, size)
    source = torch.rand(memory_bytes // 4)
    target = torch.empty_like(source)

    def once() -> float:
        started = time.perf_counter()
        for _ in range(3):
            torch.mm(left, right)
        target.copy_(source)
        total = 0
        for number in range(3000):
            total += number
        return time.perf_counter() - started

    def canary() -> float:
        return statistics.median(once() for _ in range(3))

    return canary


def drift(canaries: Sequence[float]) -> float | None:
    """How much slower the slowest tenth of moments was than the median one; None with fewer than five."""
    if len(canaries) < 5:
        return None
    return statistics.quantiles(canaries, n=10)[-1] / statistics.median(canaries) - 1
