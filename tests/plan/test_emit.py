"""Emitted files are read back by the tools they are for, or by their documented rules."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from plan.models import pose_transformer
from traincast import Parallelism, catalog
from traincast.configs import write_yaml
from traincast.errors import IllegalPlan, InvalidInput, UnknownName
from traincast.forecast import forecast
from traincast.plan import Plan
from traincast.plan._emit import EMITTERS, emit, make_recipe, slurm_flags
from traincast.plan._emit.schedulers import show_slurm_time
from traincast.plan._nouns import job_quantile_s

yaml = pytest.importorskip("yaml", reason="PyYAML reads the emitted YAML back")


def make_plan(parallelism: Parallelism | None = None, *, machine: str = "aws-p4d.24xlarge", nodes: int = 2) -> Plan:
    cluster = catalog.cluster(machine, nodes=nodes)
    chosen = parallelism or Parallelism(data=cluster.num_devices, zero=1, micro_batches=2)
    answer = forecast(pose_transformer(steps=1_000_000)(1, Parallelism()), cluster, chosen)
    return Plan.of(answer, cluster, chosen, batch=1)


def read_sbatch(text: str) -> dict[str, str]:
    """The options as sbatch reads them: comment lines that start with #SBATCH, before the first command."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("#SBATCH "):
            name, _, value = line.removeprefix("#SBATCH ").partition("=")
            found[name] = value
        elif line and not line.startswith("#"):
            break
    return found


def seconds_of(slurm_time: str) -> int:
    matched = re.fullmatch(r"(?:(\d+)-)?(\d{2}):(\d{2}):(\d{2})", slurm_time)
    assert matched is not None
    days, hours, minutes, seconds = (int(part or 0) for part in matched.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


@pytest.mark.parametrize("kind", ["slurm", "torchrun"])
def test_scripts_are_valid_shell(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(emit(make_plan(), kind, command="train.py --name 'a b'"))
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_slurm_script_asks_for_the_nodes_devices_and_the_time_of_the_quantile() -> None:
    plan = make_plan()
    found = read_sbatch(emit(plan, "slurm", quantile=0.95))
    assert found["--nodes"] == "2"
    assert found["--gres"] == "gpu:8"
    assert found["--ntasks-per-node"] == "1"
    assert re.fullmatch(r"\d+G", found["--mem"])
    limit_s = job_quantile_s(plan.forecast.job, 0.95)
    assert limit_s <= seconds_of(found["--time"]) < limit_s + 60


def test_a_higher_quantile_never_shortens_the_limit() -> None:
    plan = make_plan()
    limits = [make_recipe(plan, quantile=q, command="train.py").limit_s for q in (0.1, 0.5, 0.9, 0.99)]
    assert limits == sorted(limits)
    assert limits[0] < limits[-1]


@pytest.mark.parametrize(("seconds", "text"), [(60, "00:01:00"), (86400, "1-00:00:00"), (100_000, "1-03:46:40")])
def test_slurm_writes_time_as_days_and_clock(seconds: int, text: str) -> None:
    assert show_slurm_time(seconds) == text


def test_a_skypilot_task_names_accelerators_nodes_and_the_instance() -> None:
    task = yaml.safe_load(emit(make_plan(), "skypilot"))
    assert task["resources"]["accelerators"] == "A100:8"
    assert task["resources"]["cloud"] == "aws"
    assert task["resources"]["instance_type"] == "p4d.24xlarge"
    assert task["num_nodes"] == 2
    assert all(isinstance(value, str) for value in task["envs"].values())
    assert "SKYPILOT_NODE_RANK" in task["run"]
    done = subprocess.run(["bash", "-n"], input=task["run"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_kubernetes_job_has_every_field_that_the_api_requires() -> None:
    service, job = yaml.safe_load_all(emit(make_plan(), "k8s", quantile=0.9))
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == 2
    assert isinstance(spec["activeDeadlineSeconds"], int)
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert all(set(entry) == {"name", "value"} and isinstance(entry["value"], str) for entry in container["env"])
    # The pods find each other by the name of the service, which must be a DNS label.
    assert pod["subdomain"] == service["metadata"]["name"]
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", service["metadata"]["name"])
    assert service["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()


DEEPSPEED_KEYS = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization",
    "gradient_clipping", "bf16", "fp16", "tensor_parallel", "pipeline", "activation_checkpointing",
}  # fmt: skip
"""Documented at https://www.deepspeed.ai/docs/config-json/ ; checked against the source of DeepSpeed 0.19.8."""


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_deepspeed_config_has_known_keys_and_batches_that_multiply(zero: int) -> None:
    plan = make_plan(Parallelism(data=16, zero=zero, micro_batches=2))
    config = json.loads(emit(plan, "deepspeed", precision="bf16-amp"))
    assert set(config) <= DEEPSPEED_KEYS
    assert config["train_batch_size"] == 16 * config["train_micro_batch_size_per_gpu"] * 2
    assert config["zero_optimization"]["stage"] == zero
    assert config["bf16"] == {"enabled": True}


@pytest.mark.parametrize(
    ("parallelism", "kind"),
    [
        (Parallelism(data=16), "MULTI_GPU"),
        (Parallelism(data=16, zero=1), "DEEPSPEED"),
        (Parallelism(data=16, zero=2), "FSDP"),
        (Parallelism(data=16, zero=3), "FSDP"),
        (Parallelism(data=4, tensor=4, zero=1, sequence_parallel=True), "MEGATRON_LM"),
    ],
)
def test_accelerate_loads_its_config(parallelism: Parallelism, kind: str, tmp_path: Path) -> None:
    text = emit(make_plan(parallelism), "accelerate", precision="bf16")
    found = yaml.safe_load(text)
    assert found["distributed_type"] == kind
    assert found["num_processes"] == 16
    config_args = pytest.importorskip("accelerate.commands.config.config_args", reason="accelerate is not installed")
    file = tmp_path / "accelerate.yaml"
    file.write_text(text)
    loaded = config_args.ClusterConfig.from_yaml_file(yaml_file=file)
    assert loaded.distributed_type.value == kind
    assert loaded.mixed_precision == "bf16"
    assert loaded.num_machines == 2


@pytest.mark.parametrize("kind", ["accelerate", "deepspeed"])
def test_what_a_launcher_has_no_place_for_is_refused(kind: str) -> None:
    plan = make_plan(Parallelism(data=8, context=2))
    with pytest.raises(IllegalPlan, match="no place for context = 2"):
        emit(plan, kind)


def test_bad_questions_are_refused_in_a_sentence() -> None:
    plan = make_plan()
    with pytest.raises(UnknownName, match="slurn"):
        emit(plan, "slurn")
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        emit(plan, "slurm", quantile=1.5)
    with pytest.raises(InvalidInput, match="empty"):
        emit(plan, "slurm", command=" ")
    with pytest.raises(InvalidInput, match="more than one line"):
        emit(plan, "slurm", command="a\nb")


@pytest.mark.parametrize("kind", sorted(EMITTERS))
def test_the_same_plan_gives_the_same_bytes(kind: str) -> None:
    # Every format has a place for replicas that share nothing or everything.
    zero = 3 if kind in ("verl", "torchtune", "litgpt") else 0
    first, second = (make_plan(Parallelism(data=16, zero=zero, micro_batches=2)) for _ in range(2))
    assert emit(first, kind) == emit(second, kind)


def test_names_that_shells_and_clusters_would_refuse_are_cleaned() -> None:
    plan = make_plan()
    odd = replace(plan, forecast=replace(plan.forecast, workload="My Model; rm -rf /"))
    recipe = make_recipe(odd, quantile=0.5, command="train.py")
    assert re.fullmatch(r"[a-z0-9-]+", recipe.name)
    assert slurm_flags(recipe)["--nodes"] == "2"


def test_yaml_is_read_back_as_it_was() -> None:
    data = {
        "a": [1, {"b": "x: y", "c": []}],
        "d": {"e": None, "f": True, "g": "no"},
        "h": "one\ntwo\n",
        "i": ["p", 2.5],
    }
    assert yaml.safe_load(write_yaml(data)) == data
