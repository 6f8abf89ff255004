"""Kernels of compiled models, ours against torch.compile on this machine: python benchmarks/compiled_kernels.py [MODEL ...].

Needs torch and timm (torchvision may be absent). Every model is traced for evaluation and lowered by Inductor as far as its
generated code; nothing is built or run. Kernels are counted by kind after Inductor's own fusion: external ones (products,
convolutions, attention), those with a reduction, and pointwise ones. The captured graph is fused by traincast and counted alike.
Layouts are left alone, because Inductor always turns images on CPUs.
"""

import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from traincast.capture import capture
from traincast.capture._timm import import_timm
from traincast.lower import ON_CPU, as_stage, mark_evaluation
from traincast.lower._fuse import fuse
from traincast.spec import Graph, Op, segments

MODELS = (
    "resnet18", "resnet50", "resnet26d", "resnext50_32x4d", "seresnet50", "ecaresnet26t", "skresnet18", "res2net50_26w_4s",
    "resnetv2_50", "resnetv2_50x1_bit", "vgg11", "vgg11_bn", "densenet121", "dla34", "vovnet39a", "ese_vovnet19b_dw",
    "regnetx_002", "regnety_004", "efficientnet_b0", "efficientnet_lite0", "tf_efficientnetv2_b0", "mobilenetv2_100",
    "mobilenetv3_small_100", "mobilenetv3_large_100", "mnasnet_100", "ghostnet_100", "lcnet_050", "rexnet_100", "hrnet_w18_small",
    "selecsls42b", "repvgg_a0", "inception_v3", "xception41", "convnext_atto", "convmixer_768_32", "poolformer_s12",
    "vit_tiny_patch16_224", "deit_tiny_patch16_224", "vit_tiny_r_s16_p8_224", "beit_base_patch16_224", "cait_xxs24_224",
    "swin_tiny_patch4_window7_224", "mixer_s32_224", "resmlp_12_224", "gmlp_ti16_224", "pit_ti_224", "coat_lite_tiny",
    "mobilevit_xxs", "edgenext_xx_small", "levit_128s",
)  # fmt: skip
EXTERNAL = ("matmul", "conv", "attention")
IMAGE = 224


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    external: int
    generated: int
    reductions: int


class _Lowered(BaseException):
    """Carries what Inductor scheduled out of its compiler, before anything is built."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts


def _stop(graph: Any) -> None:
    graph.codegen()
    kinds = Counter(
        "external" if node.is_extern() else "reduction" if node.is_reduction() else "pointwise"
        for node in graph.scheduler.nodes
        if not type(node).__name__.startswith("Nop") and type(node.node).__name__ != "MultiOutput"
    )
    raise _Lowered(
        Counts(
            external=kinds["external"], reductions=kinds["reduction"], generated=kinds["reduction"] + kinds["pointwise"]
        )
    )


def count_inductor(model: Any, images: Any) -> Counts | None:
    """None: the model has a graph break, or nothing was compiled."""
    import torch
    from torch._inductor import config, graph

    config.force_disable_caches, config.layout_optimization, config.compile_threads = True, False, 1
    graph.GraphLowering.compile_to_module = _stop  # type: ignore[method-assign,assignment]
    torch._dynamo.reset()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.compile(model, fullgraph=True)(images)
    except _Lowered as lowered:
        return lowered.counts
    except Exception as error:
        print(f"    {type(error).__name__}: {str(error).splitlines()[0][:100]}")
    return None


def count_ours(model: Any, images: Any) -> Counts:
    return count_graph(mark_evaluation(capture(model, (images,), mode="inference", precision="fp32")))


def count_graph(graph: Graph) -> Counts:
    stage = fuse(as_stage(graph), rules=ON_CPU)
    counts: Counter[str] = Counter()
    for part in segments(stage.repeats, num_tasks=len(stage.tasks)):
        for task in stage.tasks[part.start : part.stop]:
            if isinstance(task, Op) and task.num_kernels:
                kind = "external" if task.kind in EXTERNAL else "reduction" if _reduces(task) else "pointwise"
                counts[kind] += part.count * (task.num_kernels if task.kind == "copy" else 1)
    return Counts(
        external=counts["external"], reductions=counts["reduction"], generated=counts["reduction"] + counts["pointwise"]
    )


def _reduces(op: Op) -> bool:
    if op.kind == "norm":
        return "batch" not in str(op.attrs["function"])
    return op.kind in ("reduce", "softmax")


def main() -> None:
    import torch

    timm = import_timm()

    off: list[float] = []
    print(f"{'model':30} {'external':>12} {'generated':>12} {'reductions':>12}   (Inductor, ours)")
    for name in sys.argv[1:] or MODELS:
        start = time.process_time()
        model = timm.create_model(name).eval()
        images = torch.randn(2, 3, IMAGE, IMAGE)
        real = count_inductor(model, images)
        if real is None:
            continue
        ours = count_ours(model, images)
        total = ours.external + ours.generated
        off.append(total / (real.external + real.generated) - 1)
        print(
            f"{name:30} {real.external:5} {ours.external:6} {real.generated:5} {ours.generated:6} {real.reductions:5}"
            f" {ours.reductions:6}  kernels {off[-1]:+.0%}  ({time.process_time() - start:.0f} CPU s)",
            flush=True,
        )
    errors = np.abs(off)
    print(
        f"{len(off)} models: within 10% {np.mean(errors <= 0.1):.0%}, mean {errors.mean():.1%}, bias {np.median(off):+.1%}"
    )


if __name__ == "__main__":
    main()
