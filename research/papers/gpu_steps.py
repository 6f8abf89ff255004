"""The visible GPU steps of one device, each with what every method of ScaleDL's comparison is told of it."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from research.baselines.layers import Array, Totals, total
from research.fits.operators.data import DEVICE_OF
from research.fits.operators.data import read_rows as read_operators
from research.fits.operators.models import AllRows, Recipe, fit_learned
from research.fits.operators.network import Training
from traincast import catalog
from traincast.accuracy import (
    Case,
    Measured,
    Observation,
    hide_results,
    measured_run,
    parse_case,
    parse_observation,
    read_rows,
)
from traincast.cost import OpModel, default_ops
from traincast.errors import InvalidInput, TraincastError
from traincast.learn import MeasuredStep, measure_steps
from traincast.spec import Graph, Op, Stack

SHARED = Path(__file__).resolve().parents[3] / "shared"
CASES, OPERATORS = SHARED / "cases" / "single_gpu.parquet", SHARED / "data" / "gpu_ops"
HOST_BOUND = "adaptdl"
"""In the names of frameworks whose steps wait for host and input most of the time: what layers cost hardly shows in them."""
VGG, RESNET, VIT, BERT, GPT = "VGG-like: U-Nets", "ResNets", "no ViT: detectors", "BERTs", "GPT-2"
WORKLOADS: Mapping[str, str] = {
    "unet-industrial": VGG, "unet-medical": VGG, "resnet50": RESNET, "resnet18-cifar": RESNET,
    "se-resnext101-32x4d": RESNET, "ssd300": VIT, "maskrcnn": VIT, "yolov3": VIT, "bert-base-squad": BERT,
    "bert_large": BERT, "gpt2_large": GPT,
}  # fmt: skip
"""ScaleDL's five as far as they were measured. Nobody ran a VGG (U-Nets are plain stacks of 3 x 3 convolutions too) or a vision
transformer, in whose place the other image models stand."""
NODES_OF = {BERT: "bert_large", GPT: "gpt2_large"}
"""Workloads whose nodes are among the rows that operator models are fitted to."""
QUICK = Recipe(num_members=1, training=Training(num_epochs=40))
MAX_OPERATORS = 2000
_HALF = {"fp16_amp": "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStep:
    """One measured step of one GPU."""

    case: Case
    known: MeasuredStep
    totals: Totals
    """In units of the device: FLOP over its peak, bytes over its bandwidth."""
    sizes: Array
    """What a black box is told."""
    chip: str
    peers_s: Mapping[str, float] = field(default_factory=dict)
    """What others have published for it."""

    @property
    def seconds(self) -> float:
        return self.known.step.seconds

    @property
    def workload(self) -> str:
        return WORKLOADS.get(self.case.model or "", self.case.model or "")

    @property
    def is_host_bound(self) -> bool:
        return HOST_BOUND in (self.case.framework or "")

    @property
    def own(self) -> tuple[str | None, ...]:
        """Equal for steps of the same model, software and precision."""
        return self.case.model, self.case.framework, self.case.dtype, self.case.mode

    def answer(self) -> float:
        """The layers as they are priced, in order: no whole step has taught them anything."""
        return self.known.step.predict(Stack())


def gpu_steps_are_here() -> bool:
    return CASES.is_file() and (OPERATORS / "gemm_linear.parquet").is_file()


def read_gpu_steps(path: Path = CASES, *, ops: OpModel | None = None) -> list[GpuStep]:
    """Every clean row that can be posed."""
    rows = read_rows(path)
    found: list[GpuStep] = []
    for row, hidden in zip(rows, hide_results(rows), strict=True):
        try:
            seen = parse_observation(row)
            if not seen.scores_time or not seen.step_s:
                continue
            measured = Measured(case=parse_case(hidden), step_s=seen.step_s)
        except TraincastError:
            continue
        found += [replace(step, peers_s=seen.peers_s) for step in study([measured], ops or default_ops())]
    if not found:
        raise InvalidInput(f"{path} holds no clean step of one GPU; give the table of single GPU cases")
    return found


def study(rows: Sequence[Measured], ops: OpModel) -> list[GpuStep]:
    """The rows that can be answered, with the plain constants of PyTorch."""
    found = []
    for row in rows:
        try:
            run = measured_run(row.case, Observation(case_id=row.case.case_id, step_s=row.step_s))
        except TraincastError:
            continue
        for known in measure_steps([run], ops=ops, prior=Stack()):
            device = catalog.device(row.case.gpu)
            graph = graph_of(known)
            found.append(
                GpuStep(
                    case=row.case, known=known, totals=total(graph, device=device), sizes=_sizes(row.case, graph),
                    chip=device.architecture,
                )
            )  # fmt: skip
    return found


def graph_of(known: MeasuredStep) -> Graph:
    stage = known.step.program.stages[0]
    return Graph(
        name=known.labels.model, ops=tuple(task for task in stage.tasks if isinstance(task, Op)), tensors=stage.tensors,
        batch_size=known.step.program.batch_size, repeats=stage.repeats,
    )  # fmt: skip


_FRAMEWORKS = ("nvidia-dle-pytorch", "nvidia-dle-tensorflow", "pytorch-2", HOST_BOUND)
_MODES = ("training_step", "forward_backward", "inference")
_DTYPES = ("fp32", "tf32", "fp16_amp")


def _sizes(case: Case, graph: Graph) -> Array:
    device = catalog.device(case.gpu)
    whole = total(graph).linear.reshape(-1, 3).sum(axis=0)
    dtype = case.dtype or "fp32"
    fp32 = device.peak_flop_per_s("fp32") or 1.0
    amounts = (
        *(1 + whole), 1 + graph.role_bytes("parameter"), graph.batch_size,
        device.peak_flop_per_s(_HALF.get(dtype, dtype)) or fp32, fp32, device.memory_bytes_per_s, device.num_sm or 1,
    )  # fmt: skip
    flags = [
        *(name in (case.framework or "") for name in _FRAMEWORKS),
        *(dtype == name for name in _DTYPES),
        *(case.mode == name for name in _MODES),
    ]
    return np.array([*(np.log10(amount) for amount in amounts), *map(float, flags)])


@functools.cache
def operator_rows(folder: Path = OPERATORS) -> AllRows:
    return read_operators(folder, max_rows=MAX_OPERATORS)


@functools.cache
def operators_without(*, chip: str = "", workload: str = "", seed: int = 0) -> OpModel:
    """Operator models that saw no row of any card of a chip, or no node of a workload."""
    without_model = NODES_OF.get(workload, "")
    return fit_learned(
        operator_rows(), recipe=replace(QUICK, seed=seed), without_model=without_model, only=devices_without(chip)
    )


def devices_without(chip: str) -> list[str]:
    """Those whose operators were measured alone, less every card of a chip."""
    return [name for name in DEVICE_OF.values() if catalog.device(name).architecture != chip]


def was_measured(chip: str) -> bool:
    """Whether operators of some card of this chip were measured alone."""
    return any(catalog.device(name).architecture == chip for name in DEVICE_OF.values())
