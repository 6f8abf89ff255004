"""`python -m research.maxtext STEPS`: MaxText's published throughput to step times, through the script behind each row."""

import argparse
import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from research.output import say
from traincast import catalog
from traincast.accuracy import as_case_row, read_number, score_rows, study
from traincast.errors import InvalidInput, TraincastError
from traincast.report import format_study
from traincast.units import TERA

SOURCE = "maxtext"
"""As the column `source` of the table spells it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a script of MaxText's repository sets: the decoder, and what one chip is given of it."""

    n_layers: int
    hidden: int
    n_heads: int
    head_dim: int
    ffn: int
    micro_batch: int
    """Sequences of one chip (per_device_batch_size)."""
    seq_len: int = 2048
    vocab: int = 32_000
    gated: bool = True
    act_ckpt: str = "full"
    network_gbps: float | None = None
    """Of one host, where the script's title names the machine; None: as the catalogue knows it."""

    def flop_per_device(self) -> float:
        """As MaxText counts a step (maxtext_utils.calculate_tflops_training_per_device, 2023-24): every product three times,
        the scores of attention in full although half of them are masked; what is run again is not counted."""
        tokens = self.micro_batch * self.seq_len
        width = self.n_heads * self.head_dim
        weights = self.n_layers * (4 * self.hidden * width + (3 if self.gated else 2) * self.hidden * self.ffn)
        products = 2 * tokens * (weights + self.hidden * self.vocab)
        scores = 4 * tokens * self.seq_len * width * self.n_layers
        return 3.0 * (products + scores)


def scaled_run(scale: int, *, micro_batch: int) -> Run:
    """MaxText's `global_parameter_scale`, a power of two: the decoder of base.yml (1B) with heads and MLP, width, and layers
    doubled in turn (pyconfig.get_individual_scales)."""
    thirds, rest = divmod(round(math.log2(scale)), 3)
    wider = 2 ** (thirds + (rest > 0))
    return Run(
        n_layers=16 * 2**thirds,
        hidden=2048 * 2 ** (thirds + (rest > 1)),
        n_heads=16 * wider,
        head_dim=128,
        ffn=7168 * wider,
        micro_batch=micro_batch,
    )


RUNS: Mapping[tuple[str, str], Run] = {
    ("tpu-v5e", "maxtext-16b"): scaled_run(16, micro_batch=6),
    ("tpu-v5e", "maxtext-32b"): scaled_run(32, micro_batch=4),
    ("tpu-v5e", "maxtext-64b"): scaled_run(64, micro_batch=2),
    ("tpu-v5e", "maxtext-128b"): scaled_run(128, micro_batch=1),
    ("tpu-v4", "maxtext-22b"): Run(
        n_layers=48, hidden=6144, n_heads=24, head_dim=256, ffn=24_576, micro_batch=13, gated=False
    ),
    ("tpu-v4", "maxtext-52b"): Run(
        n_layers=64, hidden=8192, n_heads=32, head_dim=256, ffn=32_768, micro_batch=7, gated=False
    ),
    ("h100-sxm-80g", "maxtext-7b"): Run(
        n_layers=32, hidden=4096, n_heads=32, head_dim=128, ffn=11_008, micro_batch=4, seq_len=4096, act_ckpt="products",
        network_gbps=800.0,
    ),
}  # fmt: skip
"""By device and model. Recalled from configs/{v4/22b.sh, v4/52b.sh, v5e/16b.sh ... 128b.sh, a3/llama_2_7b/*vm.sh}, base.yml and
models/gpu/llama2_7b.yml of AI-Hypercomputer/maxtext; each decoder has the parameters its name says (tests). The batches of
52B and the remat policies are the least sure: with full recomputation on v5e-32B a chip would run at 89% of its peak."""


def complete_run(row: Mapping[str, Any], *, device: str) -> dict[str, Any]:
    """The columns of a case that MaxText's table leaves to its scripts, and the step time its throughput stands for."""
    run = RUNS.get((device, str(row.get("model"))))
    if run is None:
        raise InvalidInput(
            f"the run behind MaxText's {row.get('model')} on {device} is not known; known: "
            + ", ".join(f"{model} on {name}" for name, model in RUNS)
        )
    num_gpus = round(read_number(row, "n_gpus") or 1)
    rate = read_number(row, "tflops_per_gpu")
    return {
        "arch": "llama",
        "n_layers": run.n_layers,
        "hidden": run.hidden,
        "n_heads": run.n_heads,
        "head_dim": run.head_dim,
        "ffn": run.ffn,
        "ffn_gated": run.gated,
        "vocab": run.vocab,
        "seq_len": run.seq_len,
        "tied_embeddings": False,
        "mode": "training_step",
        "compiled": True,
        "dtype": "bf16",
        "attention": "flash",
        "act_ckpt": run.act_ckpt,
        "optimizer": "adamw",
        "inter_bw_Gbps": run.network_gbps,
        "strategy": "hsdp",
        "dp": num_gpus,
        "zero": 3,
        "micro_batch": run.micro_batch,
        "grad_accum": 1,
        "global_batch": run.micro_batch * num_gpus,
        "undetermined": "shape, batch and recomputation of MaxText's script, recalled",
        "measured_step_s": run.flop_per_device() / (rate * TERA) if rate else None,
    }


def read_runs(path: Path) -> list[dict[str, Any]]:
    """MaxText's rows of a table of raw steps as rows of a case table; a run that is not known keeps no measured step."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        raw: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    else:
        with path.open(newline="", encoding="utf-8") as stream:
            raw = list(csv.DictReader(stream))
    rows = []
    for row in raw:
        if row.get("source") == SOURCE:
            try:
                found = complete_run(row, device=catalog.device(str(row.get("gpu"))).name)
            except TraincastError:
                found = {"measured_step_s": None}
            rows.append(as_case_row(row) | found)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m research.maxtext", description=__doc__)
    parser.add_argument("steps", type=Path, help="table of raw steps (.parquet or .csv)")
    options = parser.parse_args()
    say(format_study(study(score_rows(read_runs(options.steps)))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
