from dataclasses import replace

from builders import make_cluster
from traincast.catalog._stacks import stacks
from traincast.cost import Pricing
from traincast.cost._stack import TUNABLE, price_collective, read_constants, replay, with_constants
from traincast.spec import DYNAMIC, HOST, Collective, Estimate, Op, PlanHabits, Stack, Stage

ONE_MS = Estimate(seconds=1e-3, low_s=5e-4, high_s=2e-3)


def test_factors_of_links_do_not_touch_copies_to_the_host() -> None:
    copy = Collective(kind="copy_out", num_bytes=1e6, axis=HOST, num_ranks=1, stride=1, phase="gradient")
    assert price_collective(Stack(intra_factor=3.0), copy, ONE_MS, crosses_nodes=False).seconds == 1e-3


def test_constants_survive_being_read_and_set() -> None:
    for stack in stacks():
        constants = read_constants(stack)
        assert set(constants) == set(TUNABLE)
        assert with_constants(stack, constants) == stack


def test_a_captured_step_pays_the_host_only_for_what_depends_on_the_data() -> None:
    plain = Op(name="add", kind="other", flop=0.0, bytes_read=0.0, bytes_written=0.0)
    dynamic = replace(plain, attrs={DYNAMIC: True})
    issued = replace(ONE_MS, host_s=3e-3)
    captured, late, quick = replay((plain, dynamic, dynamic), (issued, issued, ONE_MS))
    assert (captured.seconds, captured.host_s) == (1e-3, 0.0)
    assert (late.seconds, late.host_s, late.limit) == (3e-3, 0.0, "host")
    assert quick.seconds == 1e-3


def test_exchanges_in_stages_post_fewer_messages() -> None:
    staged = Stack(plan=PlanHabits(runs=("staged_exchanges",)))

    def seconds(stack: Stack, nodes: int) -> float:
        sent = Collective(kind="all_to_all", num_bytes=4e6, axis="data", num_ranks=8 * nodes, stride=1, phase="forward")
        stage = Stage(tasks=(sent,), repeats=(), tensors=())
        (estimate,) = Pricing(stack=stack).estimate(stage, make_cluster(nodes=nodes, devices_per_node=8))
        return estimate.seconds

    assert seconds(staged, 16) < 0.6 * seconds(Stack(), 16)
    assert seconds(staged, 1) == seconds(Stack(), 1)
