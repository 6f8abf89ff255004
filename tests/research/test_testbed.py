"""Nothing of a test-bed is left, however its maker ends."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from research.corpus.testbed import CgroupsUnavailable, EmulatedCluster, EmulatedNode, cpu_root, emulated
from traincast.errors import InvalidInput


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "the test-bed needs root"
    if any(shutil.which(tool) is None for tool in ("ip", "tc", "taskset")):
        return "the test-bed needs iproute2 and util-linux"
    try:
        cpu_root()
    except CgroupsUnavailable as error:
        return str(error)
    name = f"traincast-probe-{os.getpid()}"
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return None if probe.returncode == 0 else "network namespaces are not allowed here"


REASON = why_not()
needs_root = pytest.mark.skipif(REASON is not None, reason=REASON or "")


def pair(name: str, bits_per_s: float) -> EmulatedCluster:
    return EmulatedCluster(name=name, nodes=(EmulatedNode(bits_per_s=bits_per_s),) * 2)


def traces(name: str) -> list[str]:
    """Namespaces and control groups that carry the name of a test-bed."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    found = [word for word in listed if word.startswith(f"traincast-{name}-")]
    return found + [path.name for path in cpu_root()[0].glob(f"traincast-bed-{name}-*")]


@needs_root
def test_nothing_is_left_after_an_error_inside_it() -> None:
    name = f"e{os.getpid() % 10000}"

    def fail_inside() -> None:
        with emulated(pair(name, 1e9)):
            assert traces(name)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert traces(name) == []


@needs_root
def test_nothing_is_left_after_its_maker_is_killed_outright() -> None:
    name = f"k{os.getpid() % 10000}"
    script = (
        "import time\n"
        "from research.corpus.testbed import *\n"
        f"cluster = EmulatedCluster(name={name!r}, nodes=(EmulatedNode(),) * 2)\n"
        "with emulated(cluster):\n"
        "    start_in_node(cluster, 1, ['sleep', '600'])\n"
        "    print('up', flush=True)\n"
        "    time.sleep(600)\n"
    )
    maker = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    assert maker.stdout.readline() == "up\n"
    assert traces(name)
    os.kill(maker.pid, signal.SIGKILL)
    maker.wait()
    maker.stdout.close()
    deadline = time.monotonic() + 240
    while traces(name) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert traces(name) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can stop being root")
def test_without_root_it_is_refused_in_one_line() -> None:
    script = (
        "import os\nfrom research.corpus.testbed import *\nos.setuid(65534)\n"
        "try:\n    up(EmulatedCluster(name='x', nodes=(EmulatedNode(),)))\nexcept TestbedFailed as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("the test-bed needs root")
    assert len(done.stdout.splitlines()) == 1


def test_rates_and_names_are_checked() -> None:
    with pytest.raises(InvalidInput, match="small letters"):
        EmulatedCluster(name="../../etc", nodes=(EmulatedNode(),))
    with pytest.raises(InvalidInput, match="share above 0"):
        EmulatedNode(cpu_share=0)
