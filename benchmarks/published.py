# ruff: noqa: E501 (a table of sentences)
"""Published figures of trainings, regime by regime, and what is forecast for them: python benchmarks/published.py [--write]

Figures are those of papers, not verified. A figure is a time, or a ratio of two. Each has a tolerance as wide as what its
source leaves open (lengths, batches, precision). Forecasts had been seen when tolerances were written down.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traincast.plan import ask
from traincast.spec import Forecast, Question, WorkloadOptions

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "research" / "results" / "published-figures.md"
HOUR_S, DAY_S = 3600.0, 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One published number and the question that asks for it."""

    regime: str
    says: str
    source: str
    published: float
    unit: str
    """hours, days or ratio."""
    question: Question
    against: Question | None = None
    """Of a ratio: what is divided by the first."""
    low: float
    high: float
    """Forecast over published, at least and at most."""
    open: str
    """What the source does not say, and what was taken."""


def make(source: str, *, cluster: Mapping[str, Any], plan: Mapping[str, Any] | None = None, job: Mapping[str, Any] | None = None,
         **workload: Any) -> Question:  # fmt: skip
    return Question(
        source=source, workload=WorkloadOptions(**workload), cluster=dict(cluster), parallelism=dict(plan or {}),
        job=dict(job or {}),
    )  # fmt: skip


def place(device: str, nodes: int = 1, each: int = 8) -> dict[str, Any]:
    return {"device": device, "nodes": nodes, "devices_per_node": each}


def _wide(**adapters: Any) -> Question:
    return make(
        "gpt3-175b", cluster=place("v100-32g", 12), batch=1, seq=2048, precision="fp16",
        plan={"tensor": 8, "pipeline": 12, "micro_batches": 48, "recompute": "full"}, job={"stack": "megatron-lm"}, **adapters,
    )  # fmt: skip


FIGURES = (
    Figure(
        regime="pre-training", says="LLaMA 65B, 1.4 T tokens on 2,048 A100 80 GB: about 21 days",
        source="Touvron et al. (2023), LLaMA, section 2.4", published=21.0, unit="days",
        question=make(
            "llama-1-65b", cluster=place("a100-80g", 256), batch=1, seq=2048, precision="bf16",
            plan={"tensor": 8, "pipeline": 4, "zero": 1, "sequence_parallel": True},
            job={"stack": "megatron-lm", "global_batch": 2048, "tokens": 1.4e12},
        ),
        low=0.75, high=1.35, open="the degrees of parallelism; 8 x 4 with sequence parallelism taken",
    ),
    Figure(
        regime="pre-training, compiled", says="GPT-2 124M, 10 B tokens on 8 A100 80 GB at about 1.5 million tokens/s: 1.85 hours",
        source="Karpathy (2024), build-nanogpt, its lecture", published=1.85, unit="hours",
        question=make(
            "nanogpt", cluster=place("a100-80g"), batch=64, seq=1024, precision="bf16-amp", plan={"zero": 0},
            job={"compiled": True, "global_batch": 512, "tokens": 10e9},
        ),
        low=0.75, high=1.3, open="evaluation and the loader",
    ),
    Figure(
        regime="pre-training, fully sharded", says="MPT-7B, 1 T tokens on 440 A100 40 GB: 9.5 days",
        source="MosaicML (2023), MPT-7B, its announcement", published=9.5, unit="days",
        question=make(
            "mpt-7b", cluster=place("a100-40g", 55), batch=4, seq=2048, precision="bf16",
            plan={"zero": 3}, job={"stack": "composer", "global_batch": 1760, "tokens": 1e12},
        ),
        low=0.5, high=1.2, open="the local batch, recomputation, restarts and checkpoints",
    ),
    Figure(
        regime="QLoRA, fully sharded and offloaded", says="Llama 3 70B, 3 epochs of 10,000 samples on 4 A10G 24 GB: 45 hours",
        source="Schmid (2024), Efficiently fine-tune Llama 3 with PyTorch FSDP and Q-LoRA", published=45.0, unit="hours",
        question=make(
            "llama-3-70b", cluster=place("a10g", 1, 4), batch=1, seq=3072, precision="bf16",
            plan={"zero": 3, "offload_weights": True}, job={"stack": "hf-trainer", "regime": "qlora", "samples": 30_000},
        ),
        low=0.6, high=1.6, open="samples are taken to be as long as their limit of 3,072 tokens",
    ),
    Figure(
        regime="LoRA", says="GPT-3 175B: 43.1 tokens/s per V100 with LoRA, 32.5 when all weights are trained",
        source="Hu et al. (2021), LoRA, section 4.2, footnote", published=43.1 / 32.5, unit="ratio",
        question=_wide(), against=_wide(adapter_rank=4, adapter_targets="query,value"),
        low=0.8, high=1.2, open="the degrees of parallelism and the batch",
    ),
    Figure(
        regime="QLoRA", says="Guanaco 65B: 24 hours on a single GPU of 48 GB",
        source="Dettmers et al. (2023), QLoRA, abstract; 1,875 steps of 16 samples in its table of hyper-parameters",
        published=24.0, unit="hours",
        question=make(
            "llama-1-65b", cluster=place("rtx-a6000", 1, 1), batch=1, seq=512, precision="bf16", adapter_rank=64, frozen_dtype="fp4",
            plan={"recompute": "full"}, job={"stack": "hf-trainer", "global_batch": 16, "steps": 1875},
        ),
        low=0.6, high=1.6, open="which GPU of 48 GB; samples are taken to be as long as their limit of 512 tokens",
    ),
    Figure(
        regime="DPO", says="Zephyr 7B on 16 A100: an experiment took 2 to 4 hours",
        source="Tunstall et al. (2023), Zephyr, section 4", published=3.0, unit="hours",
        question=make(
            "mistral-7b", cluster=place("a100-80g", 2), batch=2, seq=1024, sample_tokens=500, precision="bf16",
            plan={"zero": 3, "recompute": "full"}, job={"stack": "hf-trainer", "regime": "dpo", "samples": 186_000},
        ),
        low=0.5, high=2.0, open="mean length (500 of at most 1,024 tokens taken) and epochs (three of 62,000 pairs taken)",
    ),
    Figure(
        regime="reward model", says="DeepSpeed-Chat, step 2: OPT-350M on 8 A100 80 GB: 0.25 hours",
        source="Yao et al. (2023), DeepSpeed-Chat, table of its training recipes", published=0.25, unit="hours",
        question=make(
            "opt-350m", cluster=place("a100-80g"), batch=8, seq=512, precision="fp16",
            job={"stack": "deepspeed", "regime": "reward", "tokens": 135e6},
        ),
        low=0.4, high=1.6, open="tokens of step 2; as many as in step 3 taken, 135 M",
    ),
    Figure(
        regime="distillation", says="DistilBERT on 8 V100 16 GB: about 90 hours",
        source="Sanh et al. (2019), DistilBERT, section 3", published=90.0, unit="hours",
        question=make(
            "distilbert-base-uncased", cluster=place("v100-16g"), batch=8, seq=512, precision="fp32",
            job={"regime": "distillation", "teacher": "bert-base-uncased", "tokens": 13e9, "global_batch": 4096},
        ),
        low=0.25, high=1.5, open="tokens (three epochs of 4.3 billion taken), precision (fp32 taken), passes and the input pipeline",
    ),
    Figure(
        regime="GRPO", says="DeepSeek-R1-Zero: 198 hours on 512 H800 (10,400 steps, 512 responses each, generated 8,192 at once)",
        source="DeepSeek-AI (2025), DeepSeek-R1, Nature 645, supplementary information", published=198.0, unit="hours",
        question=make(
            "deepseek-v3", cluster=place("h800", 64), batch=1, precision="fp8",
            plan={"expert": 64, "pipeline": 8, "zero": 1, "recompute": "full"},
            job={"stack": "megatron-core", "regime": "grpo", "group_size": 16, "prompts": 512, "global_batch": 512, "steps": 650,
                 "prompt_tokens": 200, "response_tokens": 5000, "response_max": 32768, "rollout_precision": "fp8",
                 "rollout_offload": True},
        ),
        low=0.5, high=2.5, open="mean length of a response over the whole run (5,000 tokens taken); drafts by multi-token prediction "
        "and expert-parallel generation are not forecast",
    ),
    Figure(
        regime="contrastive", says="CLIP ViT-L/14: 12 days on 256 V100 (32 epochs of 400 M pairs, batch 32,768)",
        source="Radford et al. (2021), CLIP, section 2.5", published=12.0, unit="days",
        question=make(
            "clip-vit-l-14", cluster=place("v100-32g", 32), precision="fp16-amp", batch=128, gather_negatives=True,
            plan={"recompute": "full", "zero": 0}, job={"global_batch": 32768, "samples": 12.8e9},
        ),
        low=0.5, high=1.3, open="the local batch, the network and the input pipeline; the lower end was 0.7 before the first look",
    ),
    Figure(
        regime="GAN", says="pix2pix on 400 facades: less than two hours on a single Pascal Titan X",
        source="Isola et al. (2017), pix2pix, section 3.3; 200 epochs in batches of 1 by its appendix", published=2.0, unit="hours",
        question=make(
            f"{ROOT / 'benchmarks' / 'pix2pix.py'}:generator", cluster=place("titan-xp", 1, 1), batch=1, precision="fp32", optimizer="adam",
            job={"regime": "gan", "discriminator": f"{ROOT / 'benchmarks' / 'pix2pix.py'}:discriminator", "steps": 80_000},
        ),
        low=0.25, high=1.0, open="how much less than two hours; the Titan Xp of 2017 stands for the Titan X of 2016 (11% fewer FLOP/s)",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    regime: str
    figure: str
    where: str


ELSEWHERE = (
    Elsewhere(regime="PPO", figure="DeepSpeed-Chat step 3, five runs of 1.25 to 18 hours; -50% to +20%", where="tests/forecast/test_rollouts.py"),
    Elsewhere(regime="DoRA and LoRA", figure="share of LLaMA-7B that is trained, 0.83% and 0.84% (Liu et al. 2024); exact", where="tests/forecast/test_regimes.py"),
    Elsewhere(regime="QLoRA, memory", figure="65B on 48 GB and 33B on 24 GB (Dettmers et al. 2023); fits", where="tests/forecast/test_regimes.py"),
    Elsewhere(regime="mixture of experts, DualPipe", figure="DeepSeek-V3: 180 K H800 hours per trillion tokens", where="tests/simulate/test_hide.py"),
    Elsewhere(regime="offload to the host", figure="ZeRO-Offload: 40 TFLOP/s for 10 B on one V100; 30%", where="tests/lower/test_stow.py"),
    Elsewhere(
        regime="speech, CTC", figure="1,788 steps of DeepSpeech 2 on T4 to A100 (Jayaram Subramanya et al. 2023, Sia's profiles): median error at most 40%",
        where="tests/forecast/test_published.py, where ../shared is there",
    ),
    Elsewhere(regime="generation", figure="bytes of keys and values per token of four models; exact", where="tests/forecast/test_rollouts.py"),
    Elsewhere(
        regime="recommendation, graphs, RNN-T, 3D segmentation, detection, diffusion, BERT, CNN, LoRA 70B, GPT-3",
        figure="541 MLPerf results, v2.1 to v4.0: median error by family at most 12% (language), 20% (BERT), 30% (vision, speech, "
        "graphs, diffusion), 40% (recommendation)",
        where="tests/forecast/test_published.py, where ../shared is there",
    ),
)  # fmt: skip
NONE = (
    "**Offload to NVMe**: ZeRO-Infinity's figures (1 T parameters on one DGX-2; 25 PFLOP/s on 512 V100) need its tiling of single "
    "layers, which is not forecast; its rates are checked against the drive's own bandwidth (tests/lower/test_stow.py).",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    figure: Figure
    forecast: float
    answer: Forecast = field(repr=False)

    @property
    def ratio(self) -> float:
        return self.forecast / self.figure.published


def check(figure: Figure) -> Found:
    answer = ask(figure.question)
    if figure.against is not None:
        return Found(figure=figure, forecast=answer.step.seconds / ask(figure.against).step.seconds, answer=answer)
    length = {"hours": HOUR_S, "days": DAY_S}[figure.unit]
    return Found(figure=figure, forecast=answer.job.total.seconds / length, answer=answer)


def show(found: Sequence[Found]) -> str:
    lines = [
        "# Published figures, regime by regime",
        "",
        "Made by `python benchmarks/published.py --write`; `tests/forecast/test_published.py` holds every figure to its tolerance.",
        "These figures are those of papers and were not verified. A tolerance is as wide as what its source leaves",
        "open and says how far a forecast may drift, not how good it is. No constant was fitted to these figures.",
        "",
        "| regime | published | source | forecast | over published | tolerance | not published, and what was taken |",
        "|---|---|---|--:|--:|--:|---|",
    ]
    for one in found:
        figure = one.figure
        lines.append(
            f"| {figure.regime} | {figure.says} | {figure.source} | {one.forecast:.3g} {figure.unit} | {one.ratio:.2f} | "
            f"{figure.low:g} to {figure.high:g} | {figure.open} |"
        )
    lines += ["", "## In other tests", "", "| regime | figure | test |", "|---|---|---|"]
    lines += [f"| {one.regime} | {one.figure} | `{one.where}` |" for one in ELSEWHERE]
    lines += ["", "## Without a figure", "", *(f"- {one}" for one in NONE)]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write research/results/published-figures.md")
    options = parser.parse_args(arguments)
    page = show([check(figure) for figure in FIGURES])
    if options.write:
        PAGE.write_text(page)
    else:
        sys.stdout.write(page)


if __name__ == "__main__":
    main()
