import math
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from traincast.integrate.pytorch import watch_training  # noqa: E402
from traincast.store import Store  # noqa: E402


def make_model(width: int = 256) -> Any:
    layers = [layer for _ in range(3) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 1))


def train(
    model: Any, lines: list[str], *, steps: int, batch: int = 64, store: Path | None = None, slow_loader: float = 0.0
) -> Any:
    update = torch.optim.AdamW(model.parameters())
    example = torch.randn(batch, 256)

    def loader() -> Any:
        for _ in range(steps):
            yielded = time.perf_counter()
            yield torch.randn(batch, 256)
            # In proportion to the step before, because the machine of a test may be busy with other things.
            time.sleep(slow_loader * (time.perf_counter() - yielded))

    with watch_training(
        model, example, loss="mse", optimizer=update, num_steps=steps, store=store, measuring_s=0.5, check_every=15,
        say=lines.append, name="mlp",
    ) as run:  # fmt: skip
        for inputs in run.batches(loader()):
            update.zero_grad()
            model(inputs).square().mean().backward()
            update.step()
            run.step()
    return run


def test_a_loop_is_forecast_before_step_0_and_compared_while_it_runs(tmp_path: Path) -> None:
    lines: list[str] = []
    model = make_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run = train(model, lines, steps=45, store=tmp_path / "runs.db")
    assert "forecast for mlp" in lines[0]
    assert run.forecast is not None
    assert run.forecast.step.low_s < run.forecast.step.seconds < run.forecast.step.high_s
    compared = run.compare()
    assert compared.num_done == compared.num_steps == 45
    assert compared.ratio == pytest.approx(run.forecast.step.seconds / compared.recent_s)
    assert compared.remaining.seconds == 0
    assert any("of the forecast speed" in line and "left" in line for line in lines)
    assert "the forecast was" in lines[-1]
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with Store(tmp_path / "runs.db", create=False) as store:
        steps = store.measurements(subject="step", name="mlp")
        operators = store.measurements(subject="operator")
    assert steps[0].num_repeats == 42
    kept = steps[0].blocks[0].resources
    assert kept["forecast_s"] == pytest.approx(run.forecast.step.seconds)
    assert kept["sent_idle_s"] + kept["sent_burst_s"] > 0
    assert "gpu_mean" not in kept, "there is no driver of a GPU here"
    assert operators


def test_the_next_run_learns_from_the_last(tmp_path: Path) -> None:
    first = train(make_model(), [], steps=30, store=tmp_path / "runs.db")
    second = train(make_model(), [], steps=30, store=tmp_path / "runs.db")
    with Store(tmp_path / "runs.db", create=False) as store:
        measured_s = next(iter(store.measurements(subject="step", name="mlp"))).blocks[0].seconds
    widths = [run.forecast.step.high_s / run.forecast.step.low_s for run in (first, second)]
    assert widths[1] < widths[0]
    # Other work on this machine may come and go between the two.
    assert abs(math.log(second.forecast.step.seconds / measured_s)) < math.log(4)


def test_a_slow_loader_is_named_as_the_cause() -> None:
    lines: list[str] = []
    run = train(make_model(), lines, steps=30, slow_loader=4.0)
    assert run.compare().waiting_share > 0.5
    assert run.compare().finding.cause == "input pipeline"
    assert sum("the input pipeline is too slow" in line for line in lines) == 1


def test_a_model_that_cannot_be_recorded_still_trains() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(256, 1)

        def forward(self, inputs: Any) -> Any:
            if type(inputs) is not torch.Tensor:
                raise RuntimeError("only real tensors")
            return self.inner(inputs)

    lines: list[str] = []
    run = train(Odd(), lines, steps=20)
    assert lines[0].startswith("no forecast: ")
    assert run.forecast is None
    assert run.compare().observed_s > 0


def test_what_runs_outside_is_no_part_of_a_step() -> None:
    model = make_model()
    with watch_training(model, torch.randn(8, 256), num_steps=10, measuring_s=0.2, say=lambda _: None) as run:
        for _ in run.batches(range(10)):
            with run.outside():
                time.sleep(0.03)
            run.step()
    compared = run.compare()
    assert compared.observed_s < 0.03


def _train_rank(rank: int, port: int, queue: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    plain = torch.nn.Linear(64, 64)
    model = torch.nn.parallel.DistributedDataParallel(plain)
    # Long beside whatever other tests take from these cores meanwhile.
    slow = plain.register_forward_hook(lambda *_: time.sleep(0.6 if rank == 1 else 0.0))
    lines: list[str] = []
    update = torch.optim.SGD(model.parameters())
    with watch_training(
        model, torch.randn(8, 64), optimizer=update, num_steps=16, measuring_s=0.2, check_every=4, say=lines.append
    ) as run:
        for _ in run.batches(range(16)):
            model(torch.randn(8, 64)).mean().backward()
            update.step()
            run.step()
    slow.remove()
    found = run.watch._straggles(run.watch._recent())
    queue.put((rank, lines, found.says if found else "", run.forecast.num_devices if run.forecast else 0))
    torch.distributed.destroy_process_group()


def test_a_slow_rank_is_named_by_the_first_rank_and_the_others_are_silent() -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    ranks = [context.Process(target=_train_rank, args=(rank, port, queue)) for rank in range(2)]
    for process in ranks:
        process.start()
    found = {rank: rest for rank, *rest in (queue.get(), queue.get())}
    for process in ranks:
        process.join(timeout=60)
    lines, says, num_devices = found[0]
    assert num_devices == 2
    assert "rank 1 is a straggler" in says
    assert any("rank 1 is a straggler" in line for line in lines), lines
    assert found[1][0] == []
