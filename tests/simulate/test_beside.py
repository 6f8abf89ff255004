"""Small programs drawn by hand, and what of their transfers a step shows."""

from dataclasses import replace

import pytest

from builders import make_matmul
from traincast.simulate import simulate_step
from traincast.simulate._beside import Runs, after_chunks, when_it_runs
from traincast.spec import Collective, Estimate, Op, Parallelism, Program, Repeat, Stage, Task, Timeline

FORWARD = make_matmul()
BACKWARD = replace(FORWARD, phase="backward")
ATTENTION = replace(
    FORWARD,
    kind="attention",
    attrs={**FORWARD.attrs, "heads": 4, "kv_heads": 4, "q_len": 8, "kv_len": 8, "head_dim": 8, "causal": True},
)
UPDATE = replace(FORWARD, phase="optimizer")


def send(kind: str, axis: str, phase: str, **said: object) -> Collective:
    return Collective(kind=kind, num_bytes=1e6, axis=axis, num_ranks=4, stride=1, phase=phase, **said)  # type: ignore[arg-type]


GRADIENT = send("all_reduce", "data", "gradient", overlapped=True, bucket_bytes=1.0)
SCATTER = send("reduce_scatter", "data", "backward", overlapped=True)
GATHER = send("all_gather", "data", "forward", overlapped=True)


def run(
    *timed: tuple[Task, float], links: dict[str, str] | None = None, micro_batches: int = 1, **repeat: int
) -> Timeline:
    """One step of tasks with their seconds; `links`: by axis, the network where it is not said."""
    tasks = tuple(task for task, _ in timed)
    estimates = tuple(
        Estimate(
            seconds=s, low_s=s, high_s=s, link="" if isinstance(task, Op) else (links or {}).get(task.axis, "inter")
        )
        for task, s in timed
    )
    stage = Stage(tasks=tasks, repeats=(Repeat(**repeat),) if repeat else (), tensors=())
    program = Program(
        stages=(stage,), parallelism=Parallelism(micro_batches=micro_batches), batch_size=1, mode="training"
    )
    return simulate_step(program, [estimates])


def exposed(*timed: tuple[Task, float], **said: object) -> dict[str, float]:
    return {axis: pytest.approx(s) for axis, s in run(*timed, **said).exposed_by_axis.items()}  # type: ignore[arg-type]


def test_a_transfer_that_the_next_kernel_needs_is_waited_for() -> None:
    """|F|~~~|F|"""
    summed = send("all_reduce", "tensor", "forward")
    assert exposed((FORWARD, 2.0), (summed, 3.0), (FORWARD, 2.0)) == {"tensor": 3.0}


def test_gradients_hide_behind_what_is_left_of_the_backward_pass() -> None:
    """|B|B|B|U| with ~~~~ from the end of the first B on: 4 s, of which 2 s are beside kernels."""
    step = (BACKWARD, 2.0), (GRADIENT, 4.0), (BACKWARD, 1.0), (BACKWARD, 1.0), (UPDATE, 1.0)
    assert exposed(*step) == {"data": 2.0}


def test_whole_gradients_hide_behind_the_last_micro_batch_alone_and_shards_behind_each() -> None:
    """Four micro-batches of |B|B|: a sum of 3 s is sent once, behind 1 s; scatters of 1.5 s go out with every one of them."""
    whole = run((BACKWARD, 1.0), (GRADIENT, 3.0), (BACKWARD, 1.0), (UPDATE, 1.0), micro_batches=4)
    assert whole.duration_s == pytest.approx(8.0 + 2.0 + 1.0)
    shards = run((BACKWARD, 1.0), (SCATTER, 1.5), (BACKWARD, 1.0), (UPDATE, 1.0), micro_batches=4)
    assert shards.duration_s == pytest.approx(8.0 + 0.5 + 1.0)


def test_gradients_with_nothing_beside_them_follow_the_last_backward_pass() -> None:
    late = replace(GRADIENT, overlapped=False)
    assert exposed((BACKWARD, 9.0), (late, 3.0), (BACKWARD, 9.0), (UPDATE, 1.0), micro_batches=2) == {"data": 3.0}


def test_the_weights_of_a_layer_are_gathered_beside_the_layer_before() -> None:
    """Three layers of |F| 2 s: nothing hides the first gather; the others are waited for as far as they are longer."""
    quick = run((GATHER, 1.0), (FORWARD, 2.0), start=0, stop=2, count=3)
    slow = run((GATHER, 5.0), (FORWARD, 2.0), start=0, stop=2, count=3)
    assert quick.duration_s == pytest.approx(1.0 + 3 * 2.0)
    assert slow.duration_s == pytest.approx(3 * 5.0 + 2.0)


def test_what_is_gathered_once_in_a_step_is_not_gathered_for_every_micro_batch() -> None:
    step = (replace(GATHER, once=True), 5.0), (FORWARD, 2.0)
    first, second = (run(*step, micro_batches=count).duration_s for count in (1, 2))
    assert second - first == pytest.approx(2.0)


def test_pieces_hide_behind_the_matmul_that_they_feed_but_the_first() -> None:
    gather = send("all_gather", "tensor", "forward", chunked=True)
    assert exposed((gather, 4.0), (FORWARD, 9.0)) == {"tensor": 1.0}


def test_keys_and_values_go_round_beside_attention_and_not_beside_a_matmul() -> None:
    ring = send("all_gather", "context", "forward", chunked=True)
    assert exposed((ring, 4.0), (ATTENTION, 9.0)) == {"context": 1.0}
    assert exposed((ring, 4.0), (FORWARD, 9.0)) == {"context": 4.0}


def test_tokens_of_experts_travel_beside_the_other_micro_batch() -> None:
    """Two exchanges of 3 s in a layer that computes 4 s: 2 s are left."""
    tokens = send("all_to_all", "expert", "forward", chunked=True)
    assert exposed((tokens, 3.0), (FORWARD, 4.0), (tokens, 3.0)) == {"expert": 2.0}


def test_links_inside_a_node_do_not_wait_for_the_network() -> None:
    """A sum over the tensor axis while gradients are on their way: on one link both are late, on two neither."""
    summed = send("all_reduce", "tensor", "backward")
    step = (BACKWARD, 1.0), (GRADIENT, 4.0), (summed, 2.0), (BACKWARD, 9.0), (UPDATE, 1.0)
    apart = run(*step, links={"tensor": "intra"}).duration_s
    together = run(*step, links={"tensor": "inter"}).duration_s
    assert (apart, together) == (pytest.approx(13.0), pytest.approx(15.0))


def test_virtual_stages_hide_what_earlier_chunks_have_made() -> None:
    """Four stages of two chunks: half of the transfers leave while the other chunk runs for the three micro-batches behind."""
    assert after_chunks(8.0, 1.0, stages=4, virtual=1) == 8.0
    assert after_chunks(8.0, 1.0, stages=4, virtual=2) == pytest.approx(8.0 - 3 / 2)
    assert after_chunks(2.0, 9.0, stages=4, virtual=2) == pytest.approx(1.0)


def test_a_hop_between_stages_is_the_orders_and_an_update_of_the_host_the_updates() -> None:
    assert when_it_runs(send("send_recv", "pipeline", "forward")) is Runs.BETWEEN_STAGES
    assert when_it_runs(UPDATE) is Runs.IN_ORDER
    assert when_it_runs(send("copy_in", "host", "optimizer", overlapped=True)) is Runs.BESIDE
    assert when_it_runs(send("copy_in", "host", "forward", overlapped=True)) is Runs.AHEAD
