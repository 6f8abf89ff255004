"""`python -m research.fits.kernels.steps`: whole steps in, what kernels on matrix units keep inside a step out.

Lone kernels say how products depend on shape and format. Steps say what lasting load takes: two constants for all devices, chosen
where the mean over sources of |median log error| is least, and one energy per FLOP for silicons without measured kernels.
"""

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from traincast.accuracy import hide_results, parse_case, read_rows, translate
from traincast.accuracy._cases import parse_observation
from traincast.accuracy._translate import CaseQuestion
from traincast.cost import Pricing, load_learned
from traincast.cost import _bounds as silicon
from traincast.cost._learned import Learned
from traincast.errors import TraincastError
from traincast.plan import forecast
from traincast.spec import Stack

CASES = Path(__file__).resolve().parents[3].parent / "shared" / "cases"
SHARES, LOADS = (0.9, 0.92, 0.94, 0.96), (0.75, 1.0, 1.25)
ENERGIES = (0.5, 0.7, 1.0, 1.4, 2.0)
"""Multiples of the entries of traincast.cost._bounds.CHIPS that are tried."""
ATTENTION = {"llm_foundry": "flash-1", "megatron_bridge": "cudnn"}
"""The generation of fused attention that a source's software ran, by its own documents."""
LONGEST = 2048
MODELS = ("mpt-1b", "mpt-3b", "mpt-7b", "mpt-30b", "llama3_8b", "llama3_70b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    source: str
    device: str
    question: CaseQuestion
    measured_s: float


def read_steps() -> list[Step]:
    """Dense transformers in half precision and fp8, mostly products, with few passengers."""
    return read_step_rows(CASES)


def read_step_rows(folder: Path) -> list[Step]:
    rows = [row for name in ("llm", "single_gpu") for row in read_rows(folder / f"{name}.parquet") if _wanted(row)]
    found = []
    for row, hidden in zip(rows, hide_results(rows), strict=True):
        try:
            question = translate(parse_case(hidden))
        except TraincastError:
            continue
        kernel = ATTENTION.get(row["source"])
        if kernel is not None:
            question = _with_attention(question, kernel)
        found.append(
            Step(source=row["source"], device=row["gpu"], question=question, measured_s=row["measured_step_s"])
        )
    return found


def _wanted(row: Mapping[str, Any]) -> bool:
    if not parse_observation(row).scores_time or row["dtype"] in ("fp32", "tf32"):
        return False
    if row["source"] == "llm_foundry":
        return row["dtype"] == "bf16" and row["model"] in MODELS and row["seq_len"] <= LONGEST
    if row["source"] == "megatron_bridge":
        return row["model"] in MODELS
    if row["source"] == "lambda":
        return "bert" in row["model"]
    return row["source"] in ("megatron_seqsel", "torchtitan", "vtrain_multi")


def _with_attention(question: CaseQuestion, kernel: str) -> CaseQuestion:
    graph = question.job.graph
    ops = tuple(replace(op, attrs={**op.attrs, "kernel": kernel}) if op.kind == "attention" else op for op in graph.ops)
    job = replace(question.job, graph=replace(graph, ops=ops))
    return replace(question, resolved=replace(question.resolved, job=job))


def with_step(learned: Learned, *, share: float, load: float) -> Learned:
    laws = learned.laws
    half, fp8 = (replace(law, step_share=share, step_load=load) for law in (laws.half, laws.fp8))
    return replace(learned, laws=replace(laws, half=half, fp8=fp8))


def log_errors(steps: Sequence[Step], learned: Learned) -> np.ndarray[Any, np.dtype[np.float64]]:
    costs = Pricing(ops=learned, stack=Stack())
    found = []
    for step in steps:
        asked = step.question
        answer = forecast(asked.job, asked.cluster, asked.parallelism, costs=costs).step
        found.append(np.log(answer.seconds / step.measured_s))
    return np.array(found)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def main() -> None:
    steps = read_steps()
    learned = load_learned()
    measured = [index for index, step in enumerate(steps) if step.source != "lambda"]
    chosen = [steps[index] for index in measured]
    source = np.array([step.source for step in chosen])
    names = sorted(set(source))
    grid = list(itertools.product(SHARES, LOADS))
    errors = {pair: log_errors(chosen, with_step(learned, share=pair[0], load=pair[1])) for pair in grid}

    def loss(pair: tuple[float, float], without: str | None) -> float:
        kept = [name for name in names if name != without]
        return float(np.mean([abs(np.median(errors[pair][source == name])) for name in kept]))

    best = min(grid, key=lambda pair: loss(pair, None))
    say(f"share of lone kernels {best[0]}, load {best[1]}; mean over sources of |median error| {loss(best, None):.1%}")
    for name in names:
        blind = min(grid, key=lambda pair: loss(pair, name))
        left = np.expm1(errors[blind][source == name])
        say(
            f"  {name:18} n {len(left):4} left out (share {blind[0]}, load {blind[1]})  mean {np.mean(np.abs(left)):6.1%}"
            f"  median {np.median(np.abs(left)):6.1%}  bias {np.median(left):+6.1%}"
        )
    others = [step for step in steps if step.source == "lambda"]
    _fit_energies(others, with_step(learned, share=best[0], load=best[1]))


def _fit_energies(steps: Sequence[Step], learned: Learned) -> None:
    from traincast import catalog

    entries = dict(silicon.CHIPS)
    kind = np.array([silicon.name_silicon(catalog.device(step.device)) for step in steps])
    for name in sorted(set(kind)):
        part = [step for step, found in zip(steps, kind, strict=True) if found == name]
        row = []
        for factor in ENERGIES:
            silicon.CHIPS[name] = replace(entries[name], energy=entries[name].energy * factor)
            laws = learned.laws
            plain = replace(
                learned, laws=replace(laws, half=replace(laws.half, energy={}), fp8=replace(laws.fp8, energy={}))
            )
            row.append(f"{entries[name].energy * factor:.2f}: {np.median(log_errors(part, plain)):+.2f}")
        silicon.CHIPS[name] = entries[name]
        say(f"  {name:10} {len(part):3} steps; energy: median log error  {'  '.join(row)}")


if __name__ == "__main__":
    main()
