"""A cluster on one machine: nodes as network namespaces, shaped links between them, a share of the CPU for each.

What runs on it is real: real processes, real sockets, real torch.distributed. Root only. Whatever happens to the process
that built it, a guard process takes it down again.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from traincast.errors import InvalidInput, TraincastError

PREFIX = "traincast-"
SUBNET = "10.77.0"
GSO_BYTES = 16_384
"""Segments larger than this would pass the shaper in bursts and defeat it."""
QUEUE_BYTES = 4 * 2**20
CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 10_000
"""Of the CPU quota: 10 ms is smoother than the kernel's default of 100 ms."""
GROUP_PREFIX = "traincast-"


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


class TestbedFailed(TraincastError):
    """The test-bed cannot be built or used here."""

    __test__ = False  # for pytest this is not a test


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedNode:
    """One node: its link to the switch, both ways, and its share of the CPU in cores."""

    bits_per_s: float = 1e9
    latency_s: float = 0.0
    cpu_share: float = 0.25

    def __post_init__(self) -> None:
        if not (self.bits_per_s >= 1e5 and self.latency_s >= 0 and self.cpu_share > 0):
            raise InvalidInput(
                f"a node with {self.bits_per_s} bit/s, {self.latency_s} s and {self.cpu_share} cores; "
                "use at least 1e5 bit/s, a latency of at least 0 and a share above 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedCluster:
    """What to build. The name becomes part of the names of its namespaces and control groups."""

    name: str
    nodes: tuple[EmulatedNode, ...]

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]{1,12}", self.name):
            raise InvalidInput(f"test-bed name {self.name!r}; use 1 to 12 small letters and digits")
        if not 1 <= len(self.nodes) <= 32:
            raise InvalidInput(f"a test-bed of {len(self.nodes)} nodes; 1 to 32 are possible")

    @property
    def switch(self) -> str:
        return f"{PREFIX}{self.name}-sw"

    def namespace(self, node: int) -> str:
        return f"{PREFIX}{self.name}-{node}"

    def address(self, node: int) -> str:
        return f"{SUBNET}.{node + 1}"

    @property
    def namespaces(self) -> list[str]:
        return [*(self.namespace(node) for node in range(len(self.nodes))), self.switch]


def require_root() -> None:
    if os.geteuid() != 0:
        raise TestbedFailed(
            "the test-bed needs root: network namespaces, traffic shaping and CPU quotas; run it with sudo"
        )
    missing = [tool for tool in ("ip", "tc", "taskset") if shutil.which(tool) is None]
    if missing:
        raise TestbedFailed(f"the test-bed needs the programs {', '.join(missing)}; install iproute2 and util-linux")


def up(cluster: EmulatedCluster) -> None:
    """Build it; what a crashed one of this name left behind is removed first."""
    require_root()
    down(cluster.name)
    try:
        _build(cluster)
    except BaseException:
        down(cluster.name)
        raise


def down(name: str) -> list[str]:
    """Kill what runs in it and remove every trace; the names of what was removed. Twice is the same as once."""
    require_root()
    removed = []
    for namespace in _namespaces(name):
        for word in _ask("ip", "netns", "pids", namespace).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(word), signal.SIGKILL)
        for _ in range(100):
            if not _ask("ip", "netns", "pids", namespace).split():
                break
            time.sleep(0.02)
        with contextlib.suppress(TestbedFailed):
            _run("ip", "netns", "del", namespace)
            removed.append(namespace)
    for group in _groups(name):
        group.remove()
        removed.append(str(group.path))
    remove_stale_groups()
    return removed


@contextlib.contextmanager
def emulated(cluster: EmulatedCluster) -> Iterator[EmulatedCluster]:
    """Up for the body, down afterwards: after an error, after Ctrl-C, and by the guard after kill -9 too."""
    require_root()
    guard = _guard(cluster)
    try:
        up(cluster)
        yield cluster
    finally:
        down(cluster.name)
        if guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                guard.stdin.write(b"done\n")
                guard.stdin.close()
        guard.wait(timeout=30)


def start_in_node(
    cluster: EmulatedCluster,
    node: int,
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> "subprocess.Popen[bytes]":
    """A process inside a node: in its namespace, on one core, in its CPU group."""
    cores = sorted(os.sched_getaffinity(0))
    core = cores[node % len(cores)]
    group = group_of(cluster, node)
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "TP_SOCKET_IFNAME": "eth0",
        **(environment or {}),
    }
    enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    line = [
        "sh",
        "-c",
        enter,
        str(group.path),
        "taskset",
        "-c",
        str(core),
        "ip",
        "netns",
        "exec",
        cluster.namespace(node),
    ]
    return subprocess.Popen([*line, *command], env=variables, stdout=stdout, stderr=stderr, start_new_session=True)


def group_of(cluster: EmulatedCluster, node: int) -> CpuGroup:
    found = {group.path.name.rsplit("-", 1)[-1]: group for group in _groups(cluster.name)}
    if str(node) not in found:
        raise TestbedFailed(f"node {node} of test-bed {cluster.name!r} has no CPU group; is the test-bed up?")
    return found[str(node)]


def _build(cluster: EmulatedCluster) -> None:
    switch = cluster.switch
    _run("ip", "netns", "add", switch)
    _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
    _run("ip", "-n", switch, "link", "set", "br0", "up")
    for number, node in enumerate(cluster.nodes):
        namespace, port = cluster.namespace(number), f"port{number}"
        _run("ip", "netns", "add", namespace)
        _run("ip", "link", "add", "eth0", "netns", namespace, "type", "veth", "peer", "name", port, "netns", switch)
        for place, device in ((namespace, "eth0"), (switch, port)):
            # Before any socket connects: an open connection keeps the segment size it began with.
            _run("ip", "-n", place, "link", "set", device, "gso_max_size", str(GSO_BYTES))
            _shape(place, device, node)
            _run("ip", "-n", place, "link", "set", device, "up")
        _run("ip", "-n", switch, "link", "set", port, "master", "br0")
        _run("ip", "-n", namespace, "link", "set", "lo", "up")
        _run("ip", "-n", namespace, "addr", "add", f"{cluster.address(number)}/24", "dev", "eth0")
        route = ("dev", "eth0", "src", cluster.address(number), "congctl", "cubic")
        _run("ip", "-n", namespace, "route", "replace", f"{SUBNET}.0/24", *route)
        CpuGroup.create(f"bed-{cluster.name}-{number}", node.cpu_share)


def _shape(namespace: str, device: str, node: EmulatedNode) -> None:
    burst_bytes = max(20_480, round(node.bits_per_s / 8 * 2e-4))
    rate = ("rate", f"{round(node.bits_per_s)}bit", "burst", str(burst_bytes), "limit", str(QUEUE_BYTES))
    _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "handle", "1:", "tbf", *rate)
    if node.latency_s > 0:
        # Half on each of the two directions' shapers, so that the latency is that of one way through the link.
        delay = ("netem", "delay", f"{node.latency_s / 2 * 1e6:.0f}us", "limit", "100000")
        _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "parent", "1:1", "handle", "10:", *delay)


def _guard(cluster: EmulatedCluster) -> "subprocess.Popen[bytes]":
    """Waits for a word from us; if the pipe closes without one, we are dead, and it takes the test-bed down."""
    script = (
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "if not sys.stdin.buffer.readline():\n"
        "    from research.corpus.testbed import down\n"
        f"    down({cluster.name!r})\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )


def _namespaces(name: str) -> list[str]:
    names = [line.split()[0] for line in _ask("ip", "netns", "list").splitlines() if line.strip()]
    return [found for found in names if re.fullmatch(rf"{PREFIX}{re.escape(name)}-(\d+|sw)", found)]


def _groups(name: str) -> list[CpuGroup]:
    try:
        parent, unified = cpu_root()
    except CgroupsUnavailable as error:
        raise TestbedFailed(str(error)) from error
    return [CpuGroup(path, unified) for path in sorted(parent.glob(f"{GROUP_PREFIX}bed-{name}-*"))]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise TestbedFailed(f"`{' '.join(command)}` failed: {words[-1] if words else done.returncode}")


def _ask(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


CPU_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class TestbedSetting:
    """Nodes of a test-bed, and the words that tell this setting from others in a stored measurement."""

    network: str
    nodes: tuple[EmulatedNode, ...]

    @property
    def num_ranks(self) -> int:
        return len(self.nodes)

    @property
    def name(self) -> str:
        return f"{self.num_ranks}x{self.network}"


def equal(network: str, bits_per_s: float, num_ranks: int) -> TestbedSetting:
    return TestbedSetting(
        network=network, nodes=(EmulatedNode(bits_per_s=bits_per_s, cpu_share=CPU_SHARE),) * num_ranks
    )


def unequal(num_ranks: int) -> TestbedSetting:
    """One link at a fifth of the others, and another node with little more than half of the computing share."""
    fast, narrow = EmulatedNode(bits_per_s=1e9, cpu_share=CPU_SHARE), EmulatedNode(bits_per_s=2e8, cpu_share=CPU_SHARE)
    weak = EmulatedNode(bits_per_s=1e9, cpu_share=0.15)
    return TestbedSetting(network="mixed", nodes=(fast, narrow, weak, fast)[:num_ranks])


SETTINGS: tuple[TestbedSetting, ...] = (
    equal("none", 1e9, 1),
    equal("1gbit", 1e9, 2), equal("100mbit", 1e8, 4), unequal(4), equal("10gbit", 1e10, 2), equal("1gbit", 1e9, 4),
    equal("100mbit", 1e8, 2), equal("10gbit", 1e10, 4), unequal(2),
    *(equal(network, rate, 3) for network, rate in (("1gbit", 1e9), ("100mbit", 1e8), ("10gbit", 1e10))),
)  # fmt: skip
"""In this order: a corpus cut short has every network and the ends of the scale."""


def stop_all(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Each was started in its own session, so its whole family goes with it."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        process.wait()
