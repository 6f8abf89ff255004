"""What the log of a run measured to the step of a forecast, and to a row of a table of cases."""

import csv
from pathlib import Path

from traincast.configs import RunLog
from traincast.errors import InvalidInput
from traincast.resolve import Resolved
from traincast.spec import Forecast


def measure_step(run: RunLog, answer: Forecast) -> float | None:
    """Seconds of a step as a log says them, or as its rate says for as many tokens as the forecast has."""
    seq = answer.settings.get("seq")
    if run.step_s is not None or not run.tokens_per_device_s or not seq:
        return run.step_s
    return float(answer.global_batch * seq / answer.num_devices / run.tokens_per_device_s)


def keep_run(path: Path, name: str, run: RunLog, step_s: float | None, resolved: Resolved) -> None:
    """Add a run to a table of cases, which is made where it is not there."""
    plan, group, settings = resolved.parallelism, resolved.cluster.groups[0], resolved.settings
    row = {
        "case_id": name, "model": resolved.question.source, "gpu": group.device.name, "n_gpus": resolved.cluster.num_devices,
        "n_nodes": resolved.cluster.num_nodes, "micro_batch": resolved.job.graph.batch_size, "dtype": settings["precision"],
        "seq_len": settings.get("seq") or "", "framework": resolved.job.stack.spelling, "dp": plan.data, "tp": plan.tensor,
        "pp": plan.pipeline, "cp": plan.context, "ep": plan.expert, "zero": plan.zero, "grad_accum": plan.micro_batches,
        "act_ckpt": plan.recompute, "measured_step_s": step_s, "measured_memory_bytes": run.reserved_bytes or "",
        "measured_gpu_util_pct": "" if run.gpu_share is None else 100 * run.gpu_share,
    }  # fmt: skip
    if step_s is None:
        raise InvalidInput(f"{name} says no time of a step, so there is nothing to learn from it")
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row))
        if is_new:
            writer.writeheader()
        writer.writerow(row)
