"""Steps that were measured or watched become runs to learn from."""

from pathlib import Path

from builders import make_mlp
from traincast.learn._stored import graph_file, keep_graph, read_stored
from traincast.spec._measurement import Block, Environment, Experiment, Measurement

GPU = Environment(device="NVIDIA A100-SXM4-80GB")


def measure(name: str, *, environment: Environment = GPU, **attrs: object) -> Measurement:
    experiment = Experiment(subject="step", name=name, attrs={"batch": 4, **attrs})  # type: ignore[dict-item]
    return Measurement(
        experiment=experiment, environment=environment, blocks=(Block(started_at="", wall_s=(0.25, 0.25)),)
    )


def test_a_step_of_a_known_workload_on_a_known_device_is_a_run() -> None:
    found = read_stored([measure("resnet50", num_ranks=2, accumulate=3)])[0]
    assert (found.labels.model, found.labels.device, found.labels.num_devices) == ("resnet50", "a100-sxm4-80g", 2)
    assert (found.parallelism.data, found.parallelism.micro_batches, found.step_s) == (2, 3, 0.25)


def test_a_model_of_ones_own_is_read_from_the_graph_beside_the_store(tmp_path: Path) -> None:
    own, store = measure("MyNet"), tmp_path / "runs.db"
    assert read_stored([own], store=store) == []
    keep_graph(store, own.experiment, make_mlp(batch=4))
    assert graph_file(store, own.experiment).is_file()
    assert read_stored([own], store=store)[0].job.graph == make_mlp(batch=4)


def test_what_cannot_be_forecast_teaches_nothing() -> None:
    unknown = measure("resnet50", environment=Environment(device="somebody's core"))
    sharded = measure("resnet50", strategy="fsdp", num_ranks=2)
    assert read_stored([unknown, sharded]) == []
