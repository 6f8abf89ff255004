"""Eight causes of error that version 0.1.0 had, each on visible rows: python -m research.studies.causes [--before DIR].

Every row is answered as `traincast batch` (and so `forecast`) answers it. `--before` takes a checkout of 0.1.0, whose own `batch`
answers the same tables. Cause 6 (layouts and kernels of image models) needs graphs: benchmarks/image_models.py.

    git archive 8f3d3ff | tar x -C /tmp/v010 && python -m research.studies.causes --before /tmp/v010
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from research.output import say
from traincast.accuracy import read_rows

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
MOST_ROWS = 60
"""Of one source, evenly over its table."""
LONG = 8192
ODD_HEAD, EVEN_HEADS = 150, (144, 152)
FULL, SPARED = "full", "selective"
MEGATRON = ("vtrain_single", "vtrain_multi", "megatron_seqsel")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows of one cause."""

    cause: int
    title: str
    rows: Sequence[Row]
    compare: Callable[[Sequence[Row]], list[tuple[float, float]]] | None = None
    """Pairs of a figure and its truth from answered rows; None: their steps."""


def clean(rows: Sequence[Row], *sources: str) -> list[Row]:
    found = [row for row in rows if row["source"] in sources and row["quality"] == "clean" and row["measured_step_s"]]
    kept = sorted({round(place) for place in np.linspace(0, len(found) - 1, MOST_ROWS)}) if found else []
    return [found[place] for place in kept]


def collect(folder: Path) -> list[Group]:
    llm, single = (read_rows(folder / f"{name}.parquet") for name in ("llm", "single_gpu"))
    compiled = [row for row in clean(llm, "torchtitan") if row["compiled"]]
    alone = [row for row in clean(single, "neusight") if row["compiled"]]
    long = [row for row in llm if (row["seq_len"] or 0) >= LONG]
    piped = [row for row in llm if (row["pp"] or 1) > 1 and (row["grad_accum"] or 1) > 1]
    pipelines = [row for source in (*MEGATRON, "megatron_bridge") for row in clean(piped, source)]
    megatron = {name: clean(llm, name) for name in MEGATRON}
    wide = [row for rows in megatron.values() for row in rows if (row["tp"] or 1) >= 8]
    small = megatron[MEGATRON[0]][0]
    pairs = megatron["megatron_seqsel"]
    return [
        *(Group(cause=1, title=f"Megatron on A100: {name}", rows=rows) for name, rows in megatron.items()),
        Group(cause=1, title="the same, tensor parallel over 8", rows=wide),
        Group(cause=2, title="head size 150 beside 144 and 152, unfused", rows=odd_heads(small), compare=compare_heads),
        Group(cause=2, title="vocabulary 50,257 beside 50,304", rows=odd_vocabulary(small), compare=compare_vocabulary),
        Group(cause=3, title="torch.compile, one GPU (NeuSight)", rows=alone),
        Group(cause=3, title="torch.compile, torchtitan", rows=compiled),
        Group(cause=4, title="the same, asked as plain PyTorch", rows=[{**row, "framework": "pytorch"} for row in compiled]),
        Group(cause=5, title=f"fused attention, {LONG:,} tokens and more", rows=clean(long, "llm_foundry", "torchtitan")),
        Group(cause=7, title="full beside selective recomputation", rows=pairs, compare=compare_recomputation),
        Group(cause=8, title="pipelines, micro-batches given", rows=pipelines),
        Group(cause=8, title="the same by global batch", rows=[{**row, "grad_accum": None} for row in pipelines]),
        Group(cause=8, title="the same, nothing said", rows=[leave_unsaid(row) for row in pipelines], compare=compare_bubbles),
    ]  # fmt: skip


def odd_heads(row: Row) -> list[Row]:
    """A small language model with three head sizes; nothing was measured with them here."""
    asked = {"n_heads": 16, "n_kv_heads": 16, "n_layers": 24, "seq_len": 2048, "params": None, "micro_batch": 4.0}
    asked |= {"grad_accum": 1, "global_batch": None, "tp": 1, "pp": 1, "dp": row["n_gpus"]}
    sizes = ((size, 16 * size) for size in (ODD_HEAD, *EVEN_HEADS))
    return [{**row, **asked, "head_dim": size, "hidden": wide, "ffn": 4 * wide} for size, wide in sizes]


def leave_unsaid(row: Row) -> Row:
    return {**row, "true_passes": row["grad_accum"], "grad_accum": None, "global_batch": None}


def odd_vocabulary(row: Row) -> list[Row]:
    """GPT-2 small, compiled, on A100: its author gained 25% from the wider table."""
    asked = {
        "n_heads": 12,
        "n_kv_heads": 12,
        "head_dim": 64,
        "hidden": 768,
        "ffn": 3072,
        "n_layers": 12,
        "seq_len": 1024,
    }
    asked |= {
        "micro_batch": 12.0,
        "grad_accum": 1,
        "global_batch": None,
        "tp": 1,
        "pp": 1,
        "dp": row["n_gpus"],
        "params": None,
    }
    asked |= {"framework": "pytorch", "attention": "sdpa-flash", "compiled": True, "act_ckpt": "none", "dtype": "bf16"}
    return [{**row, **asked, "tied_embeddings": True, "vocab": vocabulary} for vocabulary in (50257, 50304)]


def compare_vocabulary(rows: Sequence[Row]) -> list[tuple[float, float]]:
    seconds = [row["step_s"] for row in rows]
    return [(seconds[0] / seconds[1], 1.25)] if len(seconds) > 1 else []


def compare_bubbles(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Time beside that without a bubble: as answered where nothing was said, and by the passes that were truly run."""
    found = []
    for row in rows:
        stages, passes = row["pp"], row["true_passes"] * (row["vp"] or 1)
        found.append((1 / (1 - row["bubble"]), 1 + (stages - 1) / passes))
    return found


def compare_heads(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """What a FLOP of the odd head takes beside one of its neighbours, and the middle of what public runs show (20 to 40%)."""
    seconds = {row["head_dim"]: row["step_s"] for row in rows}
    if len(seconds) < len(EVEN_HEADS) + 1:
        return []
    even = np.interp(ODD_HEAD, EVEN_HEADS, [seconds[size] for size in EVEN_HEADS])
    return [(float(seconds[ODD_HEAD] / even), 1.25)]


def compare_recomputation(rows: Sequence[Row]) -> list[tuple[float, float]]:
    models: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        models[row["model"]][row["act_ckpt"]] = row
    return [
        (own[FULL]["step_s"] / own[SPARED]["step_s"], own[FULL]["measured_step_s"] / own[SPARED]["measured_step_s"])
        for own in models.values()
        if len(own) > 1
    ]


def answer(groups: Sequence[Group], tree: Path | None) -> list[list[Row]]:
    """Rows of every group that were answered, with the answer, by this package or by that of another checkout."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = [
        {**row, "case_id": f"{place}-{at}"} for place, group in enumerate(groups) for at, row in enumerate(group.rows)
    ]
    hidden = [{name: row[name] for name in row if not name.startswith(("measured_", "true_"))} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "asked.parquet", Path(folder) / "answered.parquet"
        parquet.write_table(pa.Table.from_pylist(hidden), asked)
        source = (tree or Path(__file__).resolve().parents[2]) / "src"
        command = [sys.executable, "-m", "traincast", "batch", str(asked), "-o", str(answered), "--engine", "none"]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(source)}, stdout=subprocess.DEVNULL)
        found = {row["case_id"]: row for row in parquet.read_table(answered).to_pylist()}
    results: list[list[Row]] = [[] for _ in groups]
    for row in rows:
        got = found.get(row["case_id"], {})
        if got.get("step_s"):
            answer = {"step_s": got["step_s"], "low": got["step_low_s"], "high": got["step_high_s"]}
            place = int(row["case_id"].split("-")[0])
            results[place].append({**row, **answer, "bubble": got.get("bubble_share") or 0.0})
    return results


def describe(group: Group, answered: Sequence[Row]) -> str:
    """n, mean, median, p90 and bias of the errors in per cent; of steps also what the 90% interval holds."""
    pairs = group.compare(answered) if group.compare else [(row["step_s"], row["measured_step_s"]) for row in answered]
    if not pairs:
        return "not answered"
    error = np.array([found / truth - 1 for found, truth in pairs])
    size = np.abs(error)
    text = f"n {len(error)}: {size.mean():.1%} ({np.median(size):.1%}, {np.quantile(size, 0.9):.1%}, {np.median(error):+.1%})"
    if group.compare is None and answered[0]["low"]:
        held = np.mean([row["low"] <= row["measured_step_s"] <= row["high"] for row in answered])
        text += f" {held:.0%}"
    elif group.compare is not None:
        found, truth = (float(np.median(side)) for side in zip(*pairs, strict=True))
        text += f"; {found:.2f} for {truth:.2f}"
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="?", type=Path, default=CASES)
    parser.add_argument("--before", type=Path, help="a checkout of 0.1.0 that answers the same rows")
    options = parser.parse_args(arguments)
    groups = collect(options.cases)
    trees = [None] if options.before is None else [options.before, None]
    columns = [answer(groups, tree) for tree in trees]
    say("| cause | rows | " + ("0.1.0 | " if options.before else "") + "now |")
    say("|--:|---|" + "---|" * len(columns))
    for place, group in enumerate(groups):
        cells = [describe(group, column[place]) for column in columns]
        say(f"| {group.cause} | {group.title} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
