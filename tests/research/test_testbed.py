"""The test-bed trains for real across shaped links, and nothing of it is left, however its maker ends."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")

from research.corpus.team import team_in
from research.corpus.testbed import EmulatedCluster, EmulatedNode, emulated
from traincast.errors import InvalidInput
from traincast.profile._machine import CgroupsUnavailable, cpu_root
from traincast.profile._protocol import Protocol
from traincast.profile._steps import step_experiment
from traincast.spec import Experiment


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
SHORT = Protocol(num_rounds=1, block_s=0.3, min_repeats=5, max_repeats=10, warm_up_runs=2)


def pair(name: str, bits_per_s: float) -> EmulatedCluster:
    return EmulatedCluster(name=name, nodes=(EmulatedNode(bits_per_s=bits_per_s),) * 2)


def traces(name: str) -> list[str]:
    """Namespaces and control groups that carry the name of a test-bed."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    found = [word for word in listed if word.startswith(f"traincast-{name}-")]
    return found + [path.name for path in cpu_root()[0].glob(f"traincast-bed-{name}-*")]


@needs_root
@pytest.mark.slow
def test_gradients_cross_the_links_with_the_bytes_of_a_ring_and_a_slower_link_is_slower() -> None:
    experiment = step_experiment("mlp(depth=4,width=256)", batch=4, optimizer="sgd", num_ranks=2, strategy="ddp")
    seconds = {}
    for bits_per_s in (1e9, 5e7):
        with emulated(pair(f"t{os.getpid() % 10000}", bits_per_s)) as cluster, team_in(cluster) as team:
            visit = team.visit(experiment, protocol=SHORT)
            assert visit.block is not None, visit.failure
            seconds[bits_per_s] = visit.block.seconds
            num_parameters = 4 * (256 * 256 + 256) + 256 * 10 + 10
            # A ring of two sends each gradient byte once; headers of TCP and IP add about one per cent.
            for rank in range(2):
                assert visit.block.resources[f"rank{rank}_sent_bytes"] == pytest.approx(num_parameters * 4, rel=0.03)
            failed = team.visit(step_experiment("mlp", batch=4, strategy="nonsense"), protocol=SHORT)
            assert failed.failure is not None
            assert "unknown strategy" in failed.failure
            gathered = team.visit(
                Experiment(subject="collective", name="all_reduce", attrs={"num_bytes": 100_000}), protocol=SHORT
            )
            assert gathered.block is not None
    assert seconds[5e7] > 2 * seconds[1e9]
    assert traces(f"t{os.getpid() % 10000}") == []


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
