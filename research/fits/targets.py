"""Fits how many samples MLPerf Training's targets take, by global batch, and writes the catalogue's table.

Run: python -m research.fits.targets ../shared/data/dist_steps/mlperf_runs.parquet
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import traincast.catalog
from traincast.files import write_json
from traincast.units import NORMAL_90

Array = NDArray[np.float64]

TARGETS_FILE = Path(traincast.catalog.__file__).parent / "data" / "targets.json"

TARGETS: Mapping[str, dict[str, Any]] = {
    "resnet": {"title": "ResNet-50 v1.5, ImageNet", "quality": "75.90% top-1", "workloads": ["resnet50"],
               "epoch_samples": 1_281_167},
    "bert": {"title": "BERT-Large pre-training, Wikipedia, from the published checkpoint", "quality": "0.72 masked accuracy",
             "workloads": ["bert-large-uncased"], "epoch_samples": None},
    "maskrcnn": {"title": "Mask R-CNN, COCO 2017", "quality": "0.377 box and 0.339 mask AP", "workloads": ["maskrcnn"],
                 "epoch_samples": 117_266},
    "unet3d": {"title": "3D U-Net, KiTS19", "quality": "0.908 mean DICE", "workloads": ["unet3d"], "epoch_samples": 168},
    "dlrm_dcnv2": {"title": "DLRM-DCNv2, Criteo 1TB", "quality": "0.80275 AUC", "workloads": ["dlrm-dcnv2"],
                   "epoch_samples": 4_195_197_692},
    "gpt3": {"title": "GPT-3 175B, C4, from the published checkpoint", "quality": "2.69 log perplexity",
             "workloads": ["gpt3-175b"], "epoch_samples": None},
    "stable_diffusion": {"title": "Stable Diffusion v2 base, LAION-400M", "quality": "FID 90 and CLIP 0.15",
                         "workloads": ["sd-2.1-unet"], "epoch_samples": None},
}  # fmt: skip
"""Benchmarks with their rules' targets and the workloads of the catalogue that are them. Those that log epochs need the
samples of one; logs of one benchmark that mix both are told apart by size. DLRM (before DCNv2) is left out: its logs count
in a unit that we do not know."""
MOST_EPOCHS = 20_000


def samples_of(row: Mapping[str, Any], epoch_samples: int | None) -> float | None:
    samples, epochs = row["samples_to_target"], row["epochs_to_target"]
    if samples is not None and samples > 0:
        return float(samples)
    if epochs is None or not epochs > 0 or epoch_samples is None:
        return None
    return float(epochs) if epochs > MOST_EPOCHS else float(epochs) * epoch_samples


def fit_line(octaves: Array, logs: Array) -> tuple[float, float]:
    """Least absolute deviations by reweighting: a few runs with odd logs move nothing. More data never needs less of it, so
    the slope is at least zero."""
    weight = np.ones_like(logs)
    level, slope = float(np.median(logs)), 0.0
    for _ in range(30):
        design = np.stack([np.ones_like(octaves), octaves], axis=1) * weight[:, None]
        level, slope = np.linalg.lstsq(design, logs * weight, rcond=None)[0].tolist()
        if slope < 0:
            level, slope = float(np.median(logs)), 0.0
        weight = 1 / np.sqrt(np.maximum(np.abs(logs - level - slope * octaves), 1e-3))
    return level, slope


def fit_target(rows: Sequence[Mapping[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
    found = [
        (float(row["global_batch"]), samples, str(row["submitter"]))
        for row in rows
        if row["status"] == "success" and row["global_batch"] and (samples := samples_of(row, about["epoch_samples"]))
    ]
    batches = np.array([batch for batch, _, _ in found])
    middle = float(np.median(batches))
    octaves, logs = np.log2(batches / middle), np.log([samples for _, samples, _ in found])
    submitters = np.array([name for _, _, name in found])
    left = np.zeros_like(logs)
    for name in set(submitters.tolist()):
        out = submitters == name
        level, slope = fit_line(octaves[~out], logs[~out]) if (~out).sum() > 10 else fit_line(octaves, logs)
        left[out] = logs[out] - level - slope * octaves[out]
    spread = float(np.quantile(np.abs(left), 0.9)) / NORMAL_90
    level, slope = fit_line(octaves, logs)
    return {
        **{key: about[key] for key in ("title", "quality", "workloads")},
        "batch": middle,
        "samples": round(float(np.exp(level))),
        "per_octave": round(slope, 4),
        "spread": round(max(spread, 0.005), 4),
        "smallest_batch": float(batches.min()),
        "largest_batch": float(batches.max()),
        "num_runs": len(found),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs")
    parser.add_argument("-o", "--output", default=str(TARGETS_FILE))
    options = parser.parse_args(arguments)
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(options.runs).to_pylist()
    table = {
        name: fit_target([row for row in rows if row["benchmark"] == name], about) for name, about in TARGETS.items()
    }
    for name, entry in table.items():
        sys.stdout.write(f"{name}: {entry}\n")
    source = "fitted by research.fits.targets to runs of MLPerf Training v2.1-v4.0 (MLCommons, Apache-2.0 logs)"
    write_json(options.output, {"sources": {"mlperf": source}, "targets": table}, indent=1)


if __name__ == "__main__":
    main()
