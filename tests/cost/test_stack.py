from dataclasses import replace

from traincast.catalog._stacks import stacks
from traincast.cost._stack import TUNABLE, price_collective, read_constants, replay, with_constants
from traincast.spec import DYNAMIC, HOST, Collective, Estimate, Op, Stack

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
