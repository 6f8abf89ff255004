"""`similar` names the neighbours that a person would name."""

import numpy as np
import pytest

from traincast import catalog
from traincast.embed import load_atlas, summarize

NAMED: dict[str, str] = {
    "resnet101": "resnet152 resnet50 wide_resnet50_2", "resnet50": "resnet101 resnet152 wide_resnet50_2 resnet50-cifar",
    "resnet18": "resnet34 resnet18-cifar resnet50", "vgg16": "vgg19 vgg13 vgg11 vgg16_bn",
    "mobilenet_v2": "mobilenet_v1 mobilenet_v3_large mobilenet_v3_small shufflenet_v2_x1_0 efficientnet_b0",
    "efficientnet_b3": "efficientnet_b2 efficientnet_b4 efficientnet_b1 efficientnet_b5",
    "densenet169": "densenet201 densenet121", "convnext_small": "convnext_base convnext_tiny convnext_large",
    "resnext50_32x4d": "resnext101_32x4d resnext101_32x8d se-resnext101-32x4d resnet50",
    "vit-b16": "vit-l16 vit-b32 vit-s16 vit-l32", "swin-tiny": "swin-small swin-base swin-large",
    "bert-base-uncased": "bert-base-cased electra-base-discriminator roberta-base bert-base-multilingual-cased",
    "roberta-large": "electra-large-discriminator bert-large-uncased xlm-roberta-large bart-large",
    "electra-base-discriminator": "roberta-base bert-base-uncased bert-base-cased",
    "bart-large": "electra-large-discriminator roberta-large bert-large-uncased bart-base",
    "gpt2-medium": "gpt2-large gpt2 gpt2-xl distilgpt2",
    "llama-3-8b": "llama-3.1-8b llama-8.86b mistral-7b mistral-7b-v0.3 salamandra-7b",
    "mistral-7b": "mistral-7b-v0.2 mistral-7b-v0.3 llama-3-8b llama-3.1-8b",
    "mixtral-8x7b": "mixtral-8x22b qwen2-57b-a14b llama-4-scout",
    "qwen2.5-7b": "qwen2-7b qwen1.5-7b falcon3-7b-base qwen2.5-14b llama-3.1-8b", "opt-6.7b": "opt-13b opt-2.7b opt-30b opt-1.3b",
    "bloom-7b1": "bloom-3b bloom-1b7 bloom-1b1",
    "pythia-1.4b": "pythia-1b pythia-2.8b pythia-410m stablecode-completion-alpha-3b",
    "gpt3-13b": "gpt3-6.7b megatron-18b megatron-22b megatron-7.5b gpt3-175b", "falcon-7b": "falcon-40b pythia-6.9b falcon-180b",
    "gemma-2-9b": "gemma-3-12b gemma-2-27b gemma-2-2b gemma-7b gemma-3-4b", "phi-2": "phi-1_5 gpt-j-6b",
    "deepseek-v3": "kimi-k2 deepseek-v2 deepseek-v2-lite", "switch-base-32": "switch-base-16 switch-base-64 switch-base-8",
    "gpt-oss-20b": "gpt-oss-120b qwen1.5-moe-a2.7b deepseek-v2-lite", "t5-base": "t5-large t5-small flan-t5-base switch-base-8",
    "whisper-small": "whisper-medium whisper-base whisper-large-v3-turbo whisper-large-v3",
    "transformer-big": "transformer-base", "sd-1.5-unet": "sd-2.1-unet sdxl-unet",
    "dit-xl-2": "dit-l-2 dit-b-2 dit-s-2", "flux-dev": "flux-schnell", "clip-vit-b-16": "clip-vit-b-32 clip-vit-l-14",
    "dlrm": "dlrm-dcnv2 dlrm-kaggle", "neumf-ml1m": "ncf-ml20m", "retinanet": "retinanet-mlperf maskrcnn ssd300",
    "unet3d": "nnunet-3d unet-medical", "deepspeech2": "rnnt gnmt lstm-lm",
}  # fmt: skip
"""Names of which the first neighbour must be one, and as many of the first three as there are, but for one."""


def test_there_are_forty_lists() -> None:
    assert len(NAMED) >= 40


@pytest.mark.parametrize("name", NAMED)
def test_the_neighbours_are_those_that_a_person_would_name(name: str) -> None:
    atlas = load_atlas()
    listed = [place for place, one in enumerate(atlas.workloads) if one.source == "catalogue"]
    own = next(place for place in listed if atlas.workloads[place].name == name)
    apart = ((atlas.points[listed] - atlas.points[own]) ** 2).sum(axis=1)
    found = [atlas.workloads[listed[place]].name for place in np.argsort(apart, kind="stable")]
    near, expected = [each for each in found if each != name][:3], NAMED[name].split()
    assert near[0] in expected, near
    assert len(set(near) & set(expected)) >= min(len(expected), 3) - 1, near


@pytest.mark.parametrize("batch", [1, 64])
def test_at_any_batch_the_neighbours_are_of_the_family(batch: int) -> None:
    found = load_atlas().nearest(summarize(catalog.workload("resnet101", batch=batch)), count=2, others=True)
    assert found[0].workload.name == "resnet152"
    assert found[1].workload.name in NAMED["resnet101"].split()
