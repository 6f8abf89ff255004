"""Hands every file that `traincast plan --emit` writes to the parser of the tool that will read it.

python benchmarks/validators.py [--venv DIR]

Installs skypilot, deepspeed, accelerate and kubernetes-validate from PyPI into a venv of their own (minutes, some GB with
torch), and uses sbatch where slurm-client is installed. Prints one line per tool and plan; exits with 1 if one refuses.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from traincast import catalog
from traincast.errors import IllegalPlan
from traincast.forecast import build_job, forecast, load_source
from traincast.plan import EMITTERS, Plan, emit
from traincast.plan._nouns import Candidate
from traincast.spec import Parallelism, WorkloadOptions

PLANS = {
    "ddp": Parallelism(data=16, micro_batches=2),
    "zero1": Parallelism(data=16, zero=1, micro_batches=2),
    "zero3": Parallelism(data=16, zero=3, recompute="full"),
    "zero1 offload": Parallelism(data=16, zero=1, offload_optimizer=True),
    "tp2 pp2": Parallelism(data=4, tensor=2, pipeline=2, micro_batches=4),
}
PACKAGES = ("torch>=2.6,<2.14", "skypilot", "deepspeed", "accelerate", "kubernetes-validate", "setuptools", "pyyaml")
READ = {
    "skypilot": "import sky, yaml; sky.Task.from_yaml_config(yaml.safe_load(open(path)))",
    "deepspeed": """
import json, os
import deepspeed.comm as dist
from deepspeed.runtime.config import DeepSpeedConfig
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
dist.init_distributed("gloo", auto_mpi_discovery=False)
class Ranks:  # as many replicas as the plan has, whoever is really here
    def get_data_parallel_world_size(self): return data
found = DeepSpeedConfig(json.load(open(path)), mpu=Ranks())
assert found.train_batch_size == batch, (found.train_batch_size, batch)
""",
    "accelerate": """
from accelerate.commands.config.config_args import load_config_from_file
assert load_config_from_file(path).num_processes == 16
""",
    "k8s": """
import yaml, kubernetes_validate
for each in yaml.safe_load_all(open(path)):
    kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
""",
    "torchrun": """
import shlex, torch.distributed.run as run
line = next(each for each in open(path) if "torchrun" in each and not each.startswith("#"))
words = shlex.split(line[line.index("torchrun"):])[1:]
found = run.get_args_parser().parse_args([word.replace('${NODE_RANK:-0}', '0') for word in words])
assert found.nnodes == "2" and found.nproc_per_node == "8"
""",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=Path(tempfile.gettempdir()) / "traincast-validators")
    options = parser.parse_args()
    python = prepare(options.venv)
    refused = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name, parallelism in PLANS.items():
            plan = make_plan(parallelism)
            for kind in EMITTERS:
                try:
                    text = emit(plan, kind, precision="bf16")
                except IllegalPlan as error:
                    print(f"{kind:12} {name:14} not written: {error}")
                    continue
                path = Path(scratch) / f"{kind}.txt"
                path = path.with_suffix(".json" if kind == "deepspeed" else ".yaml")
                path.write_text(text)
                verdict = ask_sbatch(path) if kind == "slurm" else ask(python, kind, path, plan)
                refused += not verdict.startswith(("accepted", "left out"))
                print(f"{kind:12} {name:14} {verdict}", flush=True)
    print(f"{refused} refused")
    return 1 if refused else 0


def prepare(venv: Path) -> Path:
    python = venv / "bin" / "python"
    if not (venv / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        install = [python, "-m", "pip", "install", "-q"]
        subprocess.run([*install, PACKAGES[0], "setuptools", "wheel"], check=True)
        settings = os.environ | {"DS_BUILD_OPS": "0"}
        subprocess.run([*install, "--no-build-isolation", *PACKAGES], check=True, env=settings)
        (venv / "ready").touch()
    return python


def make_plan(parallelism: Parallelism) -> Plan:
    cluster = catalog.cluster("aws-p4d.24xlarge", nodes=2)
    source = load_source(
        "gpt2", WorkloadOptions(batch=2, seq=512, precision="bf16-amp"), recompute=parallelism.recompute
    )
    answer = forecast(build_job({"steps": 10_000}, source), cluster, parallelism)
    candidate = Candidate(cluster=cluster, parallelism=parallelism, batch=2)
    return Plan(candidate=candidate, forecast=answer, deadline_probability=None)


def ask(python: Path, kind: str, path: Path, plan: Plan) -> str:
    known = {"path": str(path), "data": plan.parallelism.data, "batch": plan.forecast.global_batch}
    code = f"globals().update({json.dumps(known)})\n{READ[kind]}"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return "accepted"
    return "REFUSED: " + (done.stderr.strip().splitlines() or ["no words"])[-1][:300]


def ask_sbatch(path: Path) -> str:
    """Without a cluster sbatch reads the whole script and then finds no controller: a bad option is refused before that."""
    if shutil.which("sbatch") is None:
        return "left out: sbatch is not installed (apt-get install slurm-client)"
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "slurm.conf"
        config.write_text("ClusterName=none\nSlurmctldHost=localhost\nGresTypes=gpu\nMessageTimeout=2\nAuthType=auth/none\n"
                          "NodeName=n[1-2] CPUs=8\nPartitionName=p Nodes=ALL Default=YES\n")  # fmt: skip
        settings = os.environ | {"SLURM_CONF": str(config)}
        done = subprocess.run(
            ["sbatch", path], capture_output=True, text=True, env=settings, timeout=120, check=False
        )  # fmt: skip
    words = done.stderr.strip().splitlines()
    unread = [line for line in words if "nrecognized" in line or "nvalid" in line or "usage" in line.lower()]
    return f"REFUSED: {unread[0]}" if unread else f"accepted, then: {words[-1] if words else 'no words'}"


if __name__ == "__main__":
    sys.exit(main())
