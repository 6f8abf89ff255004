"""A recipe to files of schedulers: a Slurm script, a SkyPilot task, a Kubernetes Job."""

import math

from traincast.catalog import load_facts
from traincast.configs import write_yaml
from traincast.errors import InvalidInput
from traincast.plan._emit.recipe import PORT, Recipe, export_lines, settings, torchrun_line
from traincast.units import DAY_S, GIB, HOUR_S, MINUTE_S

SKYPILOT_NAMES = {
    "a100-sxm4-40g": "A100", "a100-pcie-40g": "A100", "a100-sxm4-80g": "A100-80GB", "a100-pcie-80g": "A100-80GB",
    "h100-sxm-80g": "H100", "h100-pcie-80g": "H100", "h200-sxm-141g": "H200", "b200-sxm-180g": "B200",
    "v100-sxm2-16g": "V100", "v100-sxm2-32g": "V100-32GB", "v100-pcie-16g": "V100", "t4": "T4", "l4": "L4", "l40s": "L40S",
    "a10g": "A10G", "a10": "A10", "p100-pcie-16g": "P100", "k80-1die": "K80", "a6000": "RTXA6000",
}  # fmt: skip
SKYPILOT_CLOUDS = {
    "aws": "aws", "gcp": "gcp", "azure": "azure", "lambda": "lambda", "runpod": "runpod", "oracle": "oci",
    "nebius": "nebius",
}  # fmt: skip
KUBERNETES_DEVICES = {
    "NVIDIA": "nvidia.com/gpu",
    "AMD": "amd.com/gpu",
    "Google": "google.com/tpu",
    "Intel": "gpu.intel.com/i915",
}


def slurm_flags(recipe: Recipe) -> dict[str, str]:
    """What `sbatch` wants to know. One task per node starts one process per device."""
    return {
        "--time": show_slurm_time(recipe.limit_s),
        "--mem": f"{math.ceil(recipe.host_bytes / GIB)}G",
        "--gres": f"gpu:{recipe.per_node}",
        "--nodes": str(recipe.num_nodes),
        "--ntasks-per-node": "1",
    }


def show_slurm_time(seconds: float) -> str:
    """days-hours:minutes:seconds, as sbatch writes it."""
    days, rest = divmod(int(seconds), int(DAY_S))
    hours, rest = divmod(rest, int(HOUR_S))
    minutes, rest = divmod(rest, int(MINUTE_S))
    clock = f"{hours:02d}:{minutes:02d}:{rest:02d}"
    return f"{days}-{clock}" if days else clock


def emit_slurm(recipe: Recipe) -> str:
    """A script for `sbatch`."""
    lines = ["#!/bin/bash", f"#SBATCH --job-name={recipe.name}"]
    lines += [f"#SBATCH {flag}={value}" for flag, value in slurm_flags(recipe).items()]
    lines += [
        "#SBATCH --output=%x-%j.out",
        f"# {recipe.says}.",
        "# --mem is a rule of thumb (8 GiB per process and the weights once); add what your data loaders hold.",
        "set -euo pipefail",
        "",
        *export_lines(recipe),
        "",
        'head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "srun " + torchrun_line(recipe, host="$head_node"),
    ]
    return "\n".join(lines) + "\n"


def emit_skypilot(recipe: Recipe) -> str:
    """A task for `sky launch`. SkyPilot has no time limit of its own, so the command gets one."""
    device = recipe.cluster.groups[0].device
    if device.name not in SKYPILOT_NAMES:
        raise InvalidInput(
            f"SkyPilot's name for the device {device.name!r} is not known; known: {', '.join(sorted(SKYPILOT_NAMES))}"
        )
    resources: dict[str, object] = {"accelerators": f"{SKYPILOT_NAMES[device.name]}:{recipe.per_node}"}
    machine = load_facts("node").entries.get(recipe.cluster.name.partition(" x ")[2])
    if machine is not None and machine["provider"] in SKYPILOT_CLOUDS:
        resources["cloud"] = SKYPILOT_CLOUDS[machine["provider"]]
        resources["instance_type"] = machine["instance"]
    run = [
        'head_node=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)',
        f"timeout {recipe.limit_s} "
        + torchrun_line(recipe, host="$head_node", extra=("--node-rank=$SKYPILOT_NODE_RANK",)),
    ]
    task = {
        "name": recipe.name,
        "resources": resources,
        "num_nodes": recipe.num_nodes,
        "envs": settings(recipe),
        "run": "\n".join(run) + "\n",
    }
    return f"# {recipe.says}.\n{write_yaml(task)}"


def emit_kubernetes(recipe: Recipe) -> str:
    """An indexed Job, one pod per node, and the headless Service by which the pods find each other."""
    device = recipe.cluster.groups[0].device
    resource = KUBERNETES_DEVICES.get(device.vendor)
    if resource is None:
        raise InvalidInput(
            f"the resource name of a {device.vendor or 'unknown'} device on Kubernetes is not known; known vendors: "
            f"{', '.join(KUBERNETES_DEVICES)}"
        )
    name = recipe.name
    line = torchrun_line(recipe, host=f"{name}-0.{name}", extra=("--node-rank=$JOB_COMPLETION_INDEX",))
    container = {
        "name": "train",
        "image": "YOUR-IMAGE",
        "command": ["/bin/bash", "-c", line],
        "env": [{"name": key, "value": value} for key, value in settings(recipe).items()],
        "ports": [{"containerPort": PORT}],
        "resources": {
            "limits": {resource: recipe.per_node},
            "requests": {resource: recipe.per_node, "memory": f"{math.ceil(recipe.host_bytes / GIB)}Gi"},
        },
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # noqa: S108 (the pod's own)
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": {"traincast/forecast": recipe.says}},
        "spec": {
            "completions": recipe.num_nodes,
            "parallelism": recipe.num_nodes,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "activeDeadlineSeconds": recipe.limit_s,
            "template": {
                "metadata": {"labels": {"traincast-job": name}},
                "spec": {
                    "restartPolicy": "Never",
                    "subdomain": name,
                    "containers": [container],
                    "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
                },
            },
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"clusterIP": "None", "selector": {"traincast-job": name}, "ports": [{"port": PORT}]},
    }
    return f"# {recipe.says}.\n{write_yaml(service)}---\n{write_yaml(job)}"
