"""Operators, architectures and whole steps run, and describe themselves well enough to be rebuilt."""

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from research.corpus.architectures import corpus_names  # noqa: E402
from traincast.errors import InvalidInput  # noqa: E402
from traincast.profile._architectures import build_architecture, parse_name  # noqa: E402
from traincast.profile._machine import describe, make_canary  # noqa: E402
from traincast.profile._operators import distinct_operators, experiment_of, grid, op_of, subject_of  # noqa: E402
from traincast.profile._protocol import Protocol, measure, measure_block  # noqa: E402
from traincast.profile._resources import sampling  # noqa: E402
from traincast.profile._steps import load_workload, loss_of, prepare_step, step_experiment  # noqa: E402
from traincast.resources._profile import profile_samples  # noqa: E402
from traincast.spec import Experiment, Graph, Op  # noqa: E402

ONCE = Protocol(
    num_rounds=1, block_s=0.0, min_repeats=1, max_repeats=1, warm_up_runs=1, warm_up_s=0.0, min_repeat_s=0.0
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    # Threads that wait for a busy neighbour's core make tiny models a hundred times slower.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def one_of_each(experiments: list[Experiment]) -> list[Experiment]:
    found = {}
    for experiment in experiments:
        words = tuple(str(experiment.attrs.get(name)) for name in ("phase", "function", "pass", "layout", "causal"))
        found.setdefault((experiment.name, *words), experiment)
    return list(found.values())


def test_every_operator_of_the_grid_runs() -> None:
    chosen = one_of_each(grid())
    assert {experiment.name for experiment in chosen} >= {
        "matmul",
        "conv",
        "elementwise",
        "norm",
        "attention",
        "embedding",
    }
    visits = list(measure([subject_of(each) for each in chosen], protocol=ONCE))
    assert [visit.failure for visit in visits if visit.failure] == []
    assert len(visits) == len(chosen)


@pytest.mark.parametrize(
    ("kind", "attrs"),
    [
        ("rnn", {"cell": "lstm", "batch": 2, "length": 3, "inputs": 4, "hidden": 5, "layers": 1, "directions": 2}),
        ("optimizer", {"algorithm": "adamw", "numel": 100, "num_tensors": 3, "implementation": "foreach"}),
        ("dropout", {"numel": 10}),
        ("sort", {"rows": 3, "cols": 4}),
        ("random", {"numel": 5}),
    ],
)
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_kinds_outside_the_grid_run_too(kind: str, attrs: dict[str, object], phase: str) -> None:
    op = Op(name=kind, kind=kind, flop=1.0, bytes_read=1.0, bytes_written=1.0, phase=phase, attrs=attrs)  # type: ignore[arg-type]
    (visit,) = measure([subject_of(each) for each in (experiment_of(op),)], protocol=ONCE)
    assert visit.failure is None


def test_an_operator_comes_back_from_its_experiment() -> None:
    op = Op(
        name="aten.mm", kind="matmul", flop=2048.0, bytes_read=768.0, bytes_written=256.0, phase="backward",
        attrs={"batch": 1, "m": 8, "n": 8, "k": 16, "layout": "tn"},
    )  # fmt: skip
    again = op_of(experiment_of(op))
    assert (again.kind, again.flop, again.num_bytes, again.phase, again.attrs) == (
        op.kind, op.flop, op.num_bytes, op.phase, op.attrs,
    )  # fmt: skip


def test_an_op_without_a_flop_formula_keeps_its_flop_unknown() -> None:
    op = Op(name="x", kind="sort", flop=None, bytes_read=8.0, bytes_written=8.0, attrs={"rows": 1, "cols": 2})
    assert op_of(experiment_of(op)).flop is None


def test_equal_operators_of_several_graphs_are_measured_once() -> None:
    op = Op(name="relu", kind="elementwise", flop=8.0, bytes_read=32.0, bytes_written=32.0,
            attrs={"function": "relu", "numel": 8, "num_inputs": 1})  # fmt: skip
    strange = Op(name="odd", kind="other", flop=None, bytes_read=1.0, bytes_written=1.0)
    graph = Graph(name="g", ops=(op, strange, op), tensors=(), batch_size=1)
    assert [experiment.name for experiment in distinct_operators([graph, graph])] == ["elementwise"]


def test_a_much_larger_product_takes_longer() -> None:
    def product(size: int) -> Experiment:
        attrs = {"batch": 1, "m": size, "n": size, "k": size, "layout": "nn"}
        return experiment_of(
            Op(name="mm", kind="matmul", flop=2.0 * size**3, bytes_read=1, bytes_written=1, attrs=attrs)
        )

    protocol = Protocol(num_rounds=2, block_s=0.01)
    seconds: dict[str, float] = {}
    for visit in measure(
        [
            subject_of(each)
            for each in (
                product(8),
                product(512),
            )
        ],
        protocol=protocol,
    ):
        assert visit.block is not None
        seconds[str(visit.experiment.attrs["m"])] = visit.block.seconds
    assert seconds["512"] > 10 * seconds["8"]


def test_no_two_architectures_are_the_same_and_families_are_many() -> None:
    names = corpus_names()
    fixed = [name for name in names if parse_name(name)[0] != "random"]
    assert len(set(fixed)) == len(fixed) >= 48
    assert len({parse_name(name)[0] for name in names}) >= 5


@pytest.mark.slow
def test_every_architecture_of_the_corpus_learns_with_all_its_weights() -> None:
    for name in corpus_names():
        model, inputs = build_architecture(name)
        loss = model(*inputs(2))
        loss.backward()
        assert torch.isfinite(loss), name
        assert [key for key, weight in model.named_parameters() if weight.grad is None] == [], name


def test_the_same_name_builds_the_same_model_and_another_seed_another_one() -> None:
    first, again = (build_architecture("random(seed=5)")[0] for _ in range(2))
    assert str(first) == str(again)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert len({str(build_architecture(f"random(seed={seed})")[0]) for seed in range(12)}) == 12


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("resnett", "did you mean 'resnet'"),
        ("mlp(depth)", "not option=number"),
        ("mlp(deep=3)", "unexpected keyword"),
        ("mlp(depth=2", "not an architecture"),
    ],
)
def test_an_architecture_that_is_not_known_is_refused_with_a_hint(name: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        build_architecture(name)


def test_a_step_of_a_users_own_file_is_measured_at_the_batch_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n"
        "def build(batch_size):\n"
        "    model = torch.nn.Linear(4, 2)\n"
        "    return model, (torch.rand(batch_size, 4),), lambda output: output.sum()\n"
        "def bare():\n"
        "    return torch.nn.Linear(4, 2), torch.rand(3, 4)\n"
        "def wrong():\n"
        "    return 5\n"
    )
    workload = load_workload(f"{path}:build", batch=7)
    assert workload.arguments[0].shape == (7, 4)
    (visit,) = measure([subject_of(each) for each in (step_experiment(f"{path}:build", batch=7),)], protocol=ONCE)
    assert visit.block is not None
    assert loss_of(load_workload(f"{path}:bare", batch=1)).numel() == 1
    with pytest.raises(InvalidInput, match="must return"):
        load_workload(f"{path}:wrong", batch=1)
    with pytest.raises(InvalidInput, match="did you mean 'build'"):
        load_workload(f"{path}:buidl", batch=1)
    with pytest.raises(InvalidInput, match="there is no file"):
        load_workload("absent.py:build", batch=1)


def test_a_step_really_updates_the_weights_and_samples_its_resources() -> None:
    running = prepare_step(step_experiment("mlp(depth=2,width=16)", batch=2))
    block = measure_block(running, protocol=ONCE)
    assert block.resources["rss_peak_bytes"] > 1e6
    assert block.resources["sampled_s"] > 0


def test_a_sampler_sees_work_and_idleness() -> None:
    import time

    with sampling(interval_s=0.005) as samples:
        started = time.process_time()
        while time.process_time() - started < 0.1:
            sum(range(1000))
        time.sleep(0.15)
    assert samples.summary()["cpu_share"] > 0
    read = samples.values
    seen = profile_samples(
        [each.at_s for each in read], busy_s=[each.cpu_s for each in read], memory_share=[each.rss_bytes for each in read],
        received_bytes=[0.0] * len(read), sent_bytes=[0.0] * len(read), num_steps=1,
    ).gpu  # fmt: skip
    assert seen.idle_s > 0
    assert seen.burst_s > 0


def test_the_environment_names_hardware_and_versions() -> None:
    environment = describe()
    assert environment.device
    assert {"python", "torch", "kernel"} <= set(environment.software)
    assert environment.settings["threads"] == torch.get_num_threads()


def test_the_canary_takes_a_moment() -> None:
    assert make_canary()() > 0
