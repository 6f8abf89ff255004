"""Distinct cases answered per CPU second: python benchmarks/batch.py [CASES.parquet ...]; without tables, made-up ones."""

import sys
import time
from typing import Any

from traincast.accuracy import answer_rows, read_rows

AIM_PER_S = 50.0


def make_rows() -> list[dict[str, Any]]:
    """Data-parallel GPTs of many shapes, no two alike."""
    return [
        {
            "case_id": f"{layers}-{hidden}-{batch}-{gpus}", "gpu": "a100-sxm4-80g", "family": "transformer-lm", "arch": "gpt2",
            "model": "gpt", "n_layers": layers, "hidden": hidden, "n_heads": hidden // 64, "head_dim": 64, "ffn": 4 * hidden,
            "vocab": 50257, "seq_len": 1024, "mode": "training_step", "dtype": "bf16", "attention": "flash",
            "act_ckpt": "none", "optimizer": "adamw", "n_gpus": gpus, "n_nodes": max(1, gpus // 8), "gpus_per_node": 8,
            "dp": gpus, "micro_batch": batch, "grad_accum": 1, "global_batch": batch * gpus,
        }
        for layers in (12, 24, 36)
        for hidden in (768, 1024, 1536)
        for batch in (1, 2, 4, 8)
        for gpus in (1, 8, 64)
    ]  # fmt: skip


def main() -> None:
    tables = {path: read_rows(path) for path in sys.argv[1:]} or {"made-up GPTs": make_rows()}
    print(f"{'table':<40}{'rows':>8}{'answered':>10}{'rows/s':>9}{'aim':>7}   CPU")
    for name, rows in tables.items():
        started = time.process_time()
        answers = answer_rows(rows)
        seconds = time.process_time() - started
        num_answered = sum(answer.answered for answer in answers)
        print(f"{name[-40:]:<40}{len(rows):>8}{num_answered:>10}{len(rows) / seconds:>9.0f}{AIM_PER_S:>7.0f}")


if __name__ == "__main__":
    main()
