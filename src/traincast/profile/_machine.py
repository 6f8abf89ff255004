"""The machine under the clock: what it is, how it is held steady, and how slow it is right now."""

import contextlib
import ctypes
import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from traincast.errors import InvalidInput, UnknownName
from traincast.noun import noun
from traincast.profile._protocol import VERSION
from traincast.spec import Attr, Environment

CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 10_000
"""Of the CPU quota: 10 ms is smoother than the kernel's default of 100 ms."""
GROUP_PREFIX = "traincast-"


@noun
class Steadiness:
    """What is done to keep timings comparable from one moment to the next."""

    cores: tuple[int, ...] | None = None
    """Pinned to these; None: wherever the kernel likes."""
    num_threads: int = 1
    cpu_share: float | None = None
    """Quota in cores: below what the neighbours leave free, the share becomes repeatable. None: no quota."""


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
        settings["cpu_share"] = steadiness.cpu_share if steadiness.cpu_share is not None else 0
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
def steady(steadiness: Steadiness) -> Iterator[Steadiness]:
    """Hold this process to its cores, threads and CPU share; everything is put back at the end.

    Yields what could really be done: a quota needs a writable cgroup, which ordinary users rarely have.
    """
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
    with contextlib.ExitStack() as stack:
        share = steadiness.cpu_share
        if share is not None:
            try:
                stack.enter_context(own_share(share))
            except CgroupsUnavailable:
                share = None
        try:
            yield Steadiness(cores=cores, num_threads=steadiness.num_threads, cpu_share=share)
        finally:
            os.sched_setaffinity(0, allowed)
            torch.set_num_threads(threads)


def release_heap() -> None:
    """Give back what is free: else the resident memory of a step is that of the largest one before it."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def fix_malloc() -> None:
    """Keep freed memory in the process: else the page faults of small models jump from run to run."""
    m_trim_threshold, m_mmap_threshold, m_arena_max = -1, -3, -8
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, 32 * 2**20)
        libc.mallopt(m_trim_threshold, 2**31 - 1)
        libc.mallopt(m_arena_max, 1)


class CgroupsUnavailable(InvalidInput):
    """No CPU quota can be set here."""


@dataclass(frozen=True, slots=True)
class CpuGroup:
    """A control group that gives its processes a fixed share of CPU time, under cgroup v1 or v2."""

    path: Path
    unified: bool

    @staticmethod
    def create(name: str, share: float) -> "CpuGroup":
        """A new group below the root of the hierarchy."""
        if share <= 0:
            raise InvalidInput(f"a CPU share of {share} cores; it must be above 0")
        parent, unified = cpu_root()
        group = CpuGroup(parent / f"{GROUP_PREFIX}{name}", unified)
        try:
            group.path.mkdir(exist_ok=True)
            group.set_share(share)
            group._go_first()
        except OSError as error:
            with contextlib.suppress(OSError):
                group.path.rmdir()
            raise CgroupsUnavailable(f"cannot set a CPU quota under {parent}: {error.strerror}; run as root") from error
        return group

    def set_share(self, share: float) -> None:
        quota_us = max(1000, round(share * PERIOD_US))
        if self.unified:
            (self.path / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (self.path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.path / "cpu.cfs_quota_us").write_text(str(quota_us))

    def _go_first(self) -> None:
        """Inside its quota the group runs before everybody else: the quota decides, not what else the machine does."""
        name, weight = ("cpu.weight", 10_000) if self.unified else ("cpu.shares", 262_144)
        (self.path / name).write_text(str(weight))

    def add(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    def processes(self) -> list[int]:
        with contextlib.suppress(OSError):
            return [int(word) for word in (self.path / "cgroup.procs").read_text().split()]
        return []

    def remove(self) -> None:
        """Remove the group; whoever is still in it goes to the parent first."""
        for pid in self.processes():
            with contextlib.suppress(OSError):
                (self.path.parent / "cgroup.procs").write_text(str(pid))
        # The kernel lets go of a group some milliseconds after its last process.
        for _ in range(100):
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.02)
            else:
                return


@contextlib.contextmanager
def own_share(share: float) -> Iterator[CpuGroup]:
    """This process, and what it starts, in a group of its own."""
    # The name carries our process id, so that what a crash leaves behind can be told and removed.
    group = CpuGroup.create(f"{os.getpid()}-self", share)
    try:
        group.add(os.getpid())
        yield group
    except OSError as error:
        raise CgroupsUnavailable(f"cannot enter {group.path}: {error.strerror}") from error
    finally:
        group.remove()


def remove_stale_groups() -> list[str]:
    """Remove groups whose maker no longer lives."""
    try:
        parent, unified = cpu_root()
    except CgroupsUnavailable:
        return []
    removed = []
    for path in parent.glob(f"{GROUP_PREFIX}*"):
        owner = path.name.removeprefix(GROUP_PREFIX).split("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            CpuGroup(path, unified).remove()
            removed.append(path.name)
    return removed


def cpu_root() -> tuple[Path, bool]:
    """Where groups with a CPU quota can be made, and whether it is the unified hierarchy (v2)."""
    for candidate in ("cpu", "cpu,cpuacct"):
        path = CGROUPS / candidate
        if (path / "cpu.cfs_quota_us").exists() or (path / "cpu.shares").exists():
            return path, False
    controllers = CGROUPS / "cgroup.controllers"
    if controllers.exists() and "cpu" in controllers.read_text().split():
        subtree = CGROUPS / "cgroup.subtree_control"
        with contextlib.suppress(OSError):
            if "cpu" not in subtree.read_text().split():
                subtree.write_text("+cpu")
        if "cpu" in subtree.read_text().split():
            return CGROUPS, True
    raise CgroupsUnavailable("no cgroup hierarchy with a CPU controller is mounted here; CPU shares cannot be set")


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
