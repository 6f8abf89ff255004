"""Records many models of other people and compares each recording with PyTorch's own counters.

    python benchmarks/capture_zoo.py [--only name,...] [-o table.md]

Needs timm, diffusers, torch_geometric, peft, transformers, keras, flax and optax; a family whose package is missing is left out
with a word. Reference: parameters by `numel`, FLOP of the forward pass by `torch.utils.flop_counter`, memory by `MemTracker`, all
on fake tensors. Dropout is off and attention eager on both sides, so that both run the same operations.
"""

import argparse
import gc
import importlib
import importlib.util
import json
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("TIMM_FUSED_ATTN", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks.zoo_packages import DRAWN, by_hand
from traincast.capture import capture, capture_jax
from traincast.simulate import replay_memory
from traincast.spec import Graph, Stage

Entry = tuple[str, str, Callable[[], nn.Module], Callable[[], Any]]
"""Family, name, a builder and the inputs of its forward."""


@dataclass(slots=True)
class Row:
    """One model."""

    family: str
    name: str
    error: str = ""
    parameters: int = 0
    exact: bool = False
    flop_ratio: float | None = None
    state_exact: bool = False
    memory_ratio: float | None = None
    cpu_s: float = 0.0
    rss_mb: float = 0.0
    assumptions: int = 0


def ids(*sizes: int, high: int = 100) -> Any:
    return torch.arange(torch.Size(sizes).numel()).reshape(sizes) % high


# transformers

SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 128,
    "num_key_value_heads": 2, "head_dim": 16, "d_model": 64, "n_embd": 64, "n_layer": 2, "n_head": 4, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128, "num_layers": 2, "num_heads": 4, "d_ff": 128, "d_kv": 16, "ffn_dim": 128,
    "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "embedding_size": 64,
    "dim": 64, "hidden_dim": 128, "n_heads": 4, "n_layers": 2, "num_decoder_layers": 2, "n_routed_experts": 4, "n_group": 1,
    "topk_group": 1, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "first_k_dense_replace": 1, "use_cache": False, "word_embed_proj_dim": 64, "attention_hidden_size": 64, "state_size": 8,
    "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0,
}  # fmt: skip
PER_KIND: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]}, "gptj": {"rotary_dim": 8}, "codegen": {"rotary_dim": 8},
    "falcon": {"head_dim": None}, "deepseek_v2": {"num_key_value_heads": 4}, "deepseek_v3": {"num_key_value_heads": 4},
}  # fmt: skip
"""What the small sizes above would contradict; None leaves a size to the model."""
CAUSAL = (
    "gpt2 gpt_neo gpt_neox gptj opt bloom llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3_text phi "
    "phi3 falcon mpt stablelm starcoder2 olmo olmo2 olmoe cohere granite deepseek_v2 deepseek_v3 mamba rwkv codegen gpt_bigcode "
    "persimmon nemotron biogpt xglm smollm3 glm helium"
)
MASKED = (
    "bert roberta distilbert electra albert deberta deberta-v2 mpnet camembert convbert modernbert xlm-roberta layoutlm"
)
SEQUENCE = "t5 bart mbart pegasus blenderbot marian"
IMAGES = (
    "vit deit swin beit convnext resnet segformer dinov2 poolformer regnet mobilenet_v2 levit pvt focalnet efficientnet "
    "mobilevit"
)
VISION = {"image_size": 64, "patch_size": 16, "num_labels": 10, "depths": [2, 2, 2, 2]}


def transformers_entries() -> Iterator[Entry]:
    transformers = importlib.import_module("transformers")

    def config_of(kind: str, **extra: Any) -> Any:
        plain = transformers.AutoConfig.for_model(kind)
        wanted = {
            key: value for key, value in {**SMALL, **PER_KIND.get(kind, {}), **extra}.items() if hasattr(plain, key)
        }
        wanted = {key: value for key, value in wanted.items() if value is not None}
        made = transformers.AutoConfig.for_model(kind, **wanted)
        made._attn_implementation = "eager"
        if made.is_encoder_decoder:
            # A configuration file has it; one made from the defaults of its class may not.
            made.decoder_start_token_id = 0
        return made

    def of_class(head: Any, config: Any) -> Any:
        """Where several classes do one task, the first is meant."""
        classes = head._model_mapping[type(config)]
        return (classes[0] if isinstance(classes, (tuple, list)) else classes)._from_config(config)

    def text(kind: str, head: Any, *, decoder: bool = False) -> Entry:
        def inputs() -> Any:
            given = {
                "input_ids": ids(2, 32),
                "attention_mask": torch.ones(2, 32, dtype=torch.long),
                "labels": ids(2, 32),
            }
            return (
                given
                if decoder or kind not in ("mamba", "rwkv")
                else {key: given[key] for key in ("input_ids", "labels")}
            )

        return "transformers", kind, lambda: of_class(head, config_of(kind)), inputs

    for kind in CAUSAL.split():
        yield text(kind, transformers.AutoModelForCausalLM)
    for kind in MASKED.split():
        yield text(kind, transformers.AutoModelForMaskedLM)
    for kind in SEQUENCE.split():
        yield text(kind, transformers.AutoModelForSeq2SeqLM, decoder=True)
    for kind in IMAGES.split():
        size = 224 if kind in ("levit", "swin", "mobilevit", "efficientnet", "focalnet") else 64

        def build(kind: str = kind, size: int = size) -> Any:
            plain = transformers.AutoConfig.for_model(kind)
            wanted = {key: value for key, value in {**VISION, "image_size": size}.items() if hasattr(plain, key)}
            wanted.pop("patch_size", None)
            if kind == "levit":
                del wanted["depths"]
            made = transformers.AutoConfig.for_model(kind, **wanted)
            made._attn_implementation = "eager"
            return of_class(transformers.AutoModelForImageClassification, made)

        yield "transformers", kind, build, lambda size=size: {"pixel_values": torch.zeros(2, 3, size, size)}
    audio = {"conv_dim": [32, 32], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_feat_extract_layers": 2,
             "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0, "layerdrop": 0.0,
             "apply_spec_augment": False}  # fmt: skip
    for kind in ("wav2vec2", "hubert"):
        yield (
            "speech", kind, lambda kind=kind: transformers.AutoModelForCTC.from_config(config_of(kind, **audio)),
            lambda: {"input_values": torch.zeros(2, 4000), "labels": ids(2, 8)},
        )  # fmt: skip
    yield (
        "speech", "whisper",
        lambda: transformers.WhisperForConditionalGeneration(
            config_of("whisper", max_source_positions=50, max_target_positions=32, num_mel_bins=16)
        ),
        lambda: {"input_features": torch.zeros(2, 16, 100), "labels": ids(2, 8)},
    )  # fmt: skip
    yield (
        "reinforcement", "decision_transformer",
        lambda: transformers.DecisionTransformerModel(
            transformers.DecisionTransformerConfig(hidden_size=64, n_layer=2, n_head=4, state_dim=11, act_dim=3)
        ),
        lambda: {
            "states": torch.zeros(2, 10, 11), "actions": torch.zeros(2, 10, 3), "rewards": torch.zeros(2, 10, 1),
            "returns_to_go": torch.zeros(2, 10, 1), "timesteps": ids(2, 10), "attention_mask": torch.ones(2, 10),
        },
    )  # fmt: skip


# vision

TIMM = (
    "resnet18 resnet26d resnext50_32x4d seresnet18 mobilenetv3_small_100 mobilenetv2_050 efficientnet_lite0 mnasnet_small "
    "ghostnet_100 vit_tiny_patch16_224 deit_tiny_patch16_224 mixer_s32_224 resmlp_12_224 gmlp_ti16_224 convmixer_768_32 "
    "convnext_atto convnextv2_atto edgenext_xx_small mobilevit_xxs fastvit_t8 repvgg_a0 regnetx_002 regnety_002 dla34 "
    "densenet121 vgg11 hrnet_w18_small xcit_nano_12_p16_224 pit_ti_224 swin_tiny_patch4_window7_224 maxvit_tiny_rw_224 "
    "tf_efficientnet_b0 lcnet_050 hardcorenas_a darknet53 cspresnet50"
)


def timm_entries() -> Iterator[Entry]:
    timm = importlib.import_module("timm")
    for name in TIMM.split():
        size = timm.get_pretrained_cfg(name).input_size[-1] if timm.get_pretrained_cfg(name) else 224
        yield (
            "timm", name, lambda name=name: timm.create_model(name, pretrained=False, num_classes=10),
            lambda size=size: torch.zeros(2, 3, size, size),
        )  # fmt: skip


def declare_nms() -> None:
    """The schemas of compiled operators, where torchvision was built for another PyTorch."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return
    for library in Path(found.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(library))
        except (OSError, RuntimeError):
            continue
        return
    declared = torch.library.Library("torchvision", "DEF")
    declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    declared.define(
        "qnms(Tensor dets, Tensor scores, float dets_scale, int dets_zero_point, float scores_scale, float iou_threshold) "
        "-> Tensor"
    )
    _kept_libraries.append(declared)


_kept_libraries: list[Any] = []


# diffusion, graphs, adapters


def diffusers_entries() -> Iterator[Entry]:
    diffusers = importlib.import_module("diffusers")
    blocks = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
    yield (
        "diffusers", "unet2d",
        lambda: diffusers.UNet2DModel(
            sample_size=32, down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            **blocks,
        ),
        lambda: {"sample": torch.zeros(2, 3, 32, 32), "timestep": torch.ones(2)},
    )  # fmt: skip
    yield (
        "diffusers", "unet2d_condition",
        lambda: diffusers.UNet2DConditionModel(
            sample_size=16, cross_attention_dim=32, attention_head_dim=8,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), **blocks,
        ),
        lambda: {"sample": torch.zeros(2, 4, 16, 16), "timestep": torch.ones(2), "encoder_hidden_states": torch.zeros(2, 7, 32)},
    )  # fmt: skip
    yield (
        "diffusers", "autoencoder_kl",
        lambda: diffusers.AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, **blocks
        ),
        lambda: {"sample": torch.zeros(2, 3, 32, 32)},
    )  # fmt: skip
    yield (
        "diffusers", "dit",
        lambda: diffusers.DiTTransformer2DModel(
            num_attention_heads=4, attention_head_dim=16, num_layers=2, sample_size=16, in_channels=4, out_channels=8,
            norm_num_groups=8, num_embeds_ada_norm=10,
        ),
        lambda: {"hidden_states": torch.zeros(2, 4, 16, 16), "timestep": ids(2), "class_labels": ids(2)},
    )  # fmt: skip
    yield (
        "diffusers", "sd3",
        lambda: diffusers.SD3Transformer2DModel(
            sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=4,
            joint_attention_dim=32, caption_projection_dim=64, pooled_projection_dim=32, out_channels=4, pos_embed_max_size=16,
        ),
        lambda: {
            "hidden_states": torch.zeros(2, 4, 16, 16), "encoder_hidden_states": torch.zeros(2, 7, 32),
            "pooled_projections": torch.zeros(2, 32), "timestep": torch.ones(2),
        },
    )  # fmt: skip


def graph_entries() -> Iterator[Entry]:
    models = importlib.import_module("torch_geometric.nn.models")

    def edges() -> tuple[Any, Any]:
        first = ids(2000, high=200)
        return torch.zeros(200, 16), torch.stack([first, (first * 7 + 3) % 200])

    for name in ("GCN", "GAT", "GIN", "GraphSAGE", "EdgeCNN"):
        yield (
            "graphs", name.lower(), lambda name=name: getattr(models, name)(16, 32, num_layers=3, out_channels=4), edges
        )  # fmt: skip


def adapter_entries() -> Iterator[Entry]:
    peft, transformers = importlib.import_module("peft"), importlib.import_module("transformers")

    def llama() -> Any:
        config = transformers.LlamaConfig(**{k: v for k, v in SMALL.items() if k in vars(transformers.LlamaConfig())})
        config._attn_implementation = "eager"
        return transformers.LlamaForCausalLM(config)

    for name, config in (
        ("lora", lambda: peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])),
        ("ia3", lambda: peft.IA3Config(target_modules=["k_proj", "v_proj"], feedforward_modules=[])),
    ):
        yield (
            "adapters", name, lambda config=config: peft.get_peft_model(llama(), config()),
            lambda: {"input_ids": ids(2, 32), "labels": ids(2, 32)},
        )  # fmt: skip


# models by hand


class Recommender(nn.Module):
    """Tables, a dense part and one of three ways to cross them."""

    def __init__(self, cross: str) -> None:
        super().__init__()
        self.cross = cross
        self.tables = nn.ModuleList(nn.Embedding(1000, 16) for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 16))
        self.top = nn.Sequential(
            nn.Linear({"dot": 97, "factorise": 32}.get(cross, 160), 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, dense: Any, categories: Any) -> Any:
        parts = [self.bottom(dense), *(table(categories[:, i]) for i, table in enumerate(self.tables))]
        stacked = torch.stack(parts, 1)
        if self.cross == "dot":
            crossed = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        elif self.cross == "factorise":
            crossed = stacked.sum(1).square() - stacked.square().sum(1)
        else:
            crossed = stacked.flatten(1)
        return self.top(torch.cat([parts[0], crossed], 1))


class Speech(nn.Module):
    """Convolutions and recurrent layers over frames, as DeepSpeech has them."""

    def __init__(self, cell: str) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(1, 8, (11, 5), (2, 2)), nn.BatchNorm2d(8), nn.Hardtanh())
        self.layers = getattr(nn, cell)(8 * 38, 64, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(128, 29)

    def forward(self, frames: Any) -> Any:
        x = self.convolutions(frames).transpose(1, 2).flatten(2)
        return self.head(self.layers(x)[0])


class Language(nn.Module):
    """Recurrent or attending language models of torch.nn itself, with tied weights."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.table, self.head = kind, nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False)
        self.head.weight = self.table.weight
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.body = (
            nn.TransformerEncoder(layer, 2) if kind == "attention" else getattr(nn, kind)(64, 64, batch_first=True)
        )

    def forward(self, tokens: Any) -> Any:
        x = self.body(self.table(tokens))
        return self.head(x if self.kind == "attention" else x[0])


def own_entries() -> Iterator[Entry]:
    for cross in ("dot", "factorise", "concatenate"):
        yield "recommenders", cross, lambda cross=cross: Recommender(cross), lambda: (torch.zeros(64, 13), ids(64, 8))
    for cell in ("LSTM", "GRU", "RNN"):
        yield "speech", f"frames_{cell.lower()}", lambda cell=cell: Speech(cell), lambda: torch.zeros(2, 1, 100, 80)
        yield "language", cell.lower(), lambda cell=cell: Language(cell), lambda: ids(4, 35)
    yield "language", "encoder", lambda: Language("attention"), lambda: ids(4, 35)
    yield (
        "reinforcement", "dqn",
        lambda: nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6),
        ),
        lambda: torch.zeros(32, 4, 84, 84),
    )  # fmt: skip
    yield (
        "reinforcement", "actor",
        lambda: nn.Sequential(nn.Linear(17, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 6)),
        lambda: torch.zeros(64, 17),
    )  # fmt: skip


def keras_entries() -> Iterator[Entry]:
    keras = importlib.import_module("keras")
    from traincast.capture._keras import _Called, _keep_statistics

    def build(name: str) -> nn.Module:
        model = getattr(keras.applications, name)(weights=None, input_shape=(64, 64, 3), classes=10)
        _keep_statistics(model)
        return _Called(model)

    for name in ("MobileNetV2", "ResNet50", "EfficientNetB0", "DenseNet121"):
        yield "keras", name.lower(), lambda name=name: build(name), lambda: torch.zeros(2, 64, 64, 3)


DETECTORS = "fasterrcnn_resnet50_fpn maskrcnn_resnet50_fpn retinanet_resnet50_fpn fcos_resnet50_fpn ssdlite320_mobilenet_v3_large"


def detection_entries() -> Iterator[Entry]:
    detection = importlib.import_module("torchvision.models.detection")
    transformers = importlib.import_module("transformers")

    def scene() -> Any:
        targets = [
            {
                "boxes": torch.tensor([[4.0, 4.0, 30.0, 30.0], [10.0, 10.0, 50.0, 60.0]]),
                "labels": torch.tensor([1, 2]), "masks": torch.ones(2, 64, 64, dtype=torch.uint8),
            }
            for _ in range(2)
        ]  # fmt: skip
        return [torch.zeros(3, 64, 64), torch.zeros(3, 64, 64)], targets

    for name in DETECTORS.split():
        sizes = {} if name.startswith("ssd") else {"min_size": 64, "max_size": 64}
        yield (
            "detection", name.partition("_")[0],
            lambda name=name, sizes=sizes: getattr(detection, name)(
                weights=None, weights_backbone=None, num_classes=5, **sizes
            ),
            scene,
        )  # fmt: skip
    backbone = {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "layer_type": "basic"}
    small = {
        "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "d_model": 32, "encoder_layers": 1,
        "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "num_queries": 10, "num_labels": 4,
    }  # fmt: skip
    for kind, stages in (("Detr", ["stage4"]), ("DeformableDetr", ["stage2", "stage3", "stage4"])):

        def build(kind: str = kind, stages: list[str] = stages) -> Any:
            inner = transformers.ResNetConfig(**backbone, out_features=stages)
            config = getattr(transformers, f"{kind}Config")(backbone_config=inner, **small)
            return getattr(transformers, f"{kind}ForObjectDetection")(config)

        yield (
            "detection", kind.lower(), build,
            lambda: {
                "pixel_values": torch.zeros(2, 3, 64, 64), "pixel_mask": torch.ones(2, 64, 64, dtype=torch.long),
                "labels": [{"class_labels": torch.tensor([1, 2]), "boxes": torch.full((2, 4), 0.4)} for _ in range(2)],
            },
        )  # fmt: skip


FAMILIES = (
    own_entries,
    detection_entries,
    timm_entries,
    transformers_entries,
    diffusers_entries,
    graph_entries,
    adapter_entries,
    by_hand,
    *DRAWN,
    keras_entries,
)


def all_entries(wanted: set[str] | None) -> Iterator[Entry]:
    """A group of FAMILIES may be asked for by the name of its function, without making the others."""
    named = [family for family in FAMILIES if wanted and family.__name__ in wanted]
    for family in named or FAMILIES:
        try:
            yield from family()
        except Exception as error:
            print(f"{family.__name__} left out: {type(error).__name__}: {str(error)[:120]}", flush=True)


def without_dropout(model: nn.Module) -> nn.Module:
    """Rates are zeroed wherever a part keeps one: as a layer, as a number of its own or in its configuration."""
    for part in model.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for owner in (part, getattr(part, "config", None)):
            for key, value in list(vars(owner).items()) if hasattr(owner, "__dict__") else ():
                if isinstance(value, float) and ("dropout" in key or "pdrop" in key):
                    setattr(owner, key, 0.0)
    return model


def products(graph: Graph) -> float:
    """As the counter of PyTorch has them: a causal mask saves nothing there."""
    total = 0.0
    for op, count in zip(graph.ops, graph.counts(), strict=True):
        if op.phase == "forward" and op.kind in ("matmul", "conv", "attention", "rnn"):
            total += (op.flop or 0.0) * count * (2 if op.attrs.get("causal") else 1)
    return total


def reference(
    build: Callable[[], nn.Module], make_inputs: Callable[[], Any], *, is_real: bool = False
) -> tuple[float | None, float | None]:
    """FLOP of the forward pass and the tracked peak of forward and backward; on real tensors where fake ones cannot run."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        if is_real:
            raise NotImplementedError
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            return _track(build, make_inputs, mode.from_tensor)
    except Exception:
        try:
            return _track(build, make_inputs, lambda value: value)
        except Exception as error:
            print(f"  no reference: {type(error).__name__}: {str(error)[:100]}", flush=True)
            return None, None


def _track(
    build: Callable[[], nn.Module], make_inputs: Callable[[], Any], given_as: Callable[[Any], Any]
) -> tuple[float, float | None]:
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model = without_dropout(build()).train()
    _hide_frozen(model)
    given = make_inputs()
    named = given if isinstance(given, dict) else {}
    values = list(named.values()) if named else list(given) if isinstance(given, tuple) else [given]
    fakes = [tree_map(lambda leaf: given_as(leaf) if isinstance(leaf, torch.Tensor) else leaf, v) for v in values]

    def run() -> Any:
        return model(**dict(zip(named, fakes, strict=True))) if named else model(*fakes)

    # Fused attention and recurrent layers of a CPU are not in the counter's tables; their parts are.
    with (
        FlopCounterMode(display=False) as counter,
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=False),
    ):
        run()
    flop = float(counter.get_total_flops())
    tracker = MemTracker()
    tracker.track_external(model, *(leaf for leaf in tree_leaves(fakes) if isinstance(leaf, torch.Tensor)))
    try:
        with tracker:
            output = run()
            loss_of(output).backward()
    except RuntimeError as error:
        if "register a hook" not in str(error):
            raise
        # Layers of Keras show the tracker their statistics as parameters, and it hooks every parameter.
        return flop, _live_peak(build, make_inputs)
    snapshot = tracker.get_tracker_snapshot("peak").values()
    peak = max(amount for part in snapshot for key, amount in part.items() if str(key) == "Total")
    return flop, float(peak)


class LiveStorages(TorchDispatchMode):
    """Bytes of all storages that operations have made and nobody has let go."""

    def __init__(self, held: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()
        for tensor in held:
            self._count(tensor)

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        return made


def _live_peak(build: Callable[[], nn.Module], make_inputs: Callable[[], Any]) -> float:
    """Of a real forward and backward pass of a new model, by its storages."""
    model, given = without_dropout(build()).train(), make_inputs()
    held = [
        *model.parameters(),
        *model.buffers(),
        *(each for each in tree_leaves(given) if isinstance(each, torch.Tensor)),
    ]
    with LiveStorages(held) as live:
        output = model(given)
        loss_of(output).backward()
    return float(live.peak)


def _hide_frozen(model: nn.Module) -> None:
    """The tracker hooks every parameter and refuses those without a gradient; as buffers they take the same memory."""
    for part in list(model.modules()):
        # A layer of Keras tells PyTorch its variables when it is first asked for them.
        list(part.parameters())
    for part in model.modules():
        for key, tensor in list(part._parameters.items()):
            if tensor is not None and not tensor.requires_grad:
                del part._parameters[key]
                part._buffers[key] = tensor


def loss_of(output: Any) -> Any:
    own = getattr(output, "loss", None)
    if own is not None:
        return own
    if type(output) is dict:
        output = tuple(output.values())
    leaves = (
        output.to_tuple() if hasattr(output, "to_tuple") else output if isinstance(output, (tuple, list)) else [output]
    )
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return sum(tensor.float().mean() for tensor in tensors)


def count_parameters(build: Callable[[], nn.Module], make_inputs: Callable[[], Any]) -> tuple[int, int]:
    """All and the trained ones, of the real model."""
    model = build()
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        model(*make_inputs())
    every = list(model.parameters())
    return sum(p.numel() for p in every), sum(p.numel() for p in every if p.requires_grad)


def record(entry: Entry) -> Row:
    family, name, build, make_inputs = entry
    row = Row(family=family, name=name)

    def made() -> nn.Module:
        return without_dropout(build())

    # Keras keeps what it makes first, and fake tensors must not be among it.
    early = reference(build, make_inputs, is_real=True) if family == "keras" else None
    try:
        started = time.process_time()
        graph = capture(made, make_inputs, mode="training_step", optimizer="adamw", batch_size=2)
        row.cpu_s = time.process_time() - started
        row.rss_mb = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
        total, _ = count_parameters(build, make_inputs)
        row.parameters, row.exact = graph.num_parameters, graph.num_parameters == total
        row.state_exact = graph.role_bytes("optimizer_state") == 2 * graph.role_bytes("gradient")
        row.assumptions = len(graph.assumptions)
        passes = capture(made, make_inputs, mode="forward_backward", batch_size=2, folded=False, kernels="plain")
    except Exception as error:
        row.error = f"{type(error).__name__}: {' '.join(str(error).split())[:140]}"
        return row
    flop, peak = early or reference(build, make_inputs)
    # The counter has no entry for the grouped products of experts.
    is_counted = not any("_grouped_mm" in op.name for op in passes.ops)
    row.flop_ratio = products(passes) / flop if flop and is_counted else None
    stage = Stage(tasks=passes.ops, repeats=passes.repeats, tensors=passes.tensors)
    row.memory_ratio = replay_memory(stage, capacity_bytes=1e15).peak_bytes / peak if peak else None
    return row


def flax_rows(wanted: set[str] | None) -> Iterator[Row]:
    """Whole training steps of Flax with optax. FLOP of the forward pass, pointwise work included, beside XLA's own count of the
    program before it is optimised; memory of the step beside what the compiled program allocates on this CPU, fused as it is.
    Convolutions are not padded: XLA leaves out products with padding, PyTorch's counter and ours count them."""
    jax, linen, optax = (importlib.import_module(name) for name in ("jax", "flax.linen", "optax"))
    train_state = importlib.import_module("flax.training.train_state")

    class Perceptron(linen.Module):  # type: ignore[misc,name-defined]
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return linen.Dense(10)(linen.relu(linen.Dense(256)(x)))

    class Convolutions(linen.Module):  # type: ignore[misc,name-defined]
        @linen.compact
        def __call__(self, x: Any) -> Any:
            for width in (16, 32, 64):
                x = linen.GroupNorm(8)(linen.relu(linen.Conv(width, (3, 3), strides=2, padding="VALID")(x)))
            return linen.Dense(10)(x.mean((1, 2)))

    class Attention(linen.Module):  # type: ignore[misc,name-defined]
        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = linen.Embed(100, 64)(x)
            for _ in range(4):
                x = x + linen.MultiHeadDotProductAttention(4)(linen.LayerNorm()(x))
                x = x + linen.Dense(64)(linen.gelu(linen.Dense(256)(linen.LayerNorm()(x))))
            return linen.Dense(100)(x)

    numpy = importlib.import_module("jax.numpy")
    for kind, given in (
        (Perceptron, numpy.zeros((4, 64))), (Convolutions, numpy.zeros((4, 32, 32, 3))), (Attention, numpy.zeros((4, 16), int)),
    ):  # fmt: skip
        row = Row(family="flax", name=kind.__name__.lower())
        if wanted is not None and not wanted & {row.family, row.name}:
            continue
        model = kind()
        weights = model.init(jax.random.key(0), given)["params"]
        state = train_state.TrainState.create(apply_fn=model.apply, params=weights, tx=optax.adamw(1e-3))

        def step(state: Any, x: Any) -> Any:
            gradients = jax.grad(lambda p: state.apply_fn({"params": p}, x).mean())(state.params)
            return state.apply_gradients(grads=gradients)

        started = time.process_time()
        try:
            graph = capture_jax(step, state, given)
        except Exception as error:
            row.error = f"{type(error).__name__}: {' '.join(str(error).split())[:140]}"
            yield row
            continue
        row.cpu_s = time.process_time() - started
        row.rss_mb = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
        total = sum(leaf.size for leaf in jax.tree.leaves(weights))
        row.parameters, row.exact = graph.num_parameters, graph.num_parameters == total
        row.state_exact = graph.role_bytes("optimizer_state") == 8 * total
        row.assumptions = len(graph.assumptions)

        def forward(p: Any, x: Any, model: Any = model) -> Any:
            return model.apply({"params": p}, x)

        counted = jax.jit(forward).lower(weights, given).cost_analysis()
        row.flop_ratio = count_as_xla(capture_jax(forward, weights, given)) / counted["flops"]
        taken = jax.jit(step).lower(state, given).compile().memory_analysis()
        held = taken.argument_size_in_bytes + taken.output_size_in_bytes + taken.temp_size_in_bytes
        stage = Stage(tasks=graph.ops, repeats=graph.repeats, tensors=graph.tensors)
        row.memory_ratio = replay_memory(stage, capacity_bytes=1e15).peak_bytes / held
        yield row


TRANSCENDENTAL = frozenset(
    [
        "exp",
        "exp2",
        "log",
        "log1p",
        "expm1",
        "tanh",
        "logistic",
        "erf",
        "erf_inv",
        "erfc",
        "sqrt",
        "rsqrt",
        "pow",
        "sin",
        "cos",
    ]
)


def count_as_xla(graph: Graph) -> float:
    """Transcendental functions stand apart there."""
    pairs = zip(graph.ops, graph.counts(), strict=True)
    return sum((op.flop or 0.0) * count for op, count in pairs if op.attrs.get("function") not in TRANSCENDENTAL)


def table(rows: list[Row]) -> str:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.3f}"

    taken = [row for row in rows if not row.error]
    flops = [row.flop_ratio for row in taken if row.flop_ratio is not None]
    memories = [row.memory_ratio for row in taken if row.memory_ratio is not None]
    cpu = sorted(row.cpu_s for row in taken)
    lines = [
        "# The capture zoo",
        "",
        f"Written by `python benchmarks/capture_zoo.py` with PyTorch {torch.__version__}. Dropout is off and attention eager on "
        "both sides. FLOP of the forward pass are compared with `torch.utils.flop_counter`, memory of forward and backward with "
        "`MemTracker`, for Keras by its live storages.",
        "",
        f"- captured: {len(taken)} of {len(rows)} ({len(taken) / max(1, len(rows)):.1%})",
        f"- parameters exact: {sum(row.exact for row in taken)} of {len(taken)}",
        f"- optimizer state twice the gradients (AdamW): {sum(row.state_exact for row in taken)} of {len(taken)}",
        f"- FLOP within 1%: {sum(abs(ratio - 1) <= 0.01 for ratio in flops)} of {len(flops)}",
        f"- tracked memory within 5%: {sum(abs(ratio - 1) <= 0.05 for ratio in memories)} of {len(memories)}",
        f"- capture, CPU seconds after imports: median {cpu[len(cpu) // 2] if cpu else 0:.2f}, "
        f"largest {cpu[-1] if cpu else 0:.2f}",
        "",
        "| family | model | parameters | exact | FLOP ratio | state exact | memory ratio | CPU s | RSS MB | assumed | refused |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        marks = ("yes" if row.exact else "no", "yes" if row.state_exact else "no") if not row.error else ("", "")
        lines.append(
            f"| {row.family} | {row.name} | {row.parameters:,} | {marks[0]} | {number(row.flop_ratio)} | {marks[1]} | "
            f"{number(row.memory_ratio)} | {row.cpu_s:.2f} | {row.rss_mb:.0f} | {row.assumptions} | {row.error} |"
        )
    return "\n".join(lines) + "\n"


def record_apart(entry: Entry) -> Row:
    """In a process of its own, so that memory is that of one model beside what its package imports; an end is a row too."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            text = json.dumps(asdict(record(entry)))
        except BaseException as error:
            text = json.dumps(
                asdict(Row(family=entry[0], name=entry[1], error=f"{type(error).__name__}: {error}"[:160]))
            )
        with os.fdopen(writer, "w") as pipe:
            pipe.write(text)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return Row(**json.loads(text)) if text else Row(family=entry[0], name=entry[1], error="the process ended")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="Names or families, separated by commas.")
    parser.add_argument("-o", "--output", default="", help="Markdown file to write.")
    parser.add_argument(
        "--rows", default="", help="JSON lines of what was recorded; a second run goes on where it ended."
    )
    arguments = parser.parse_args()
    wanted = set(arguments.only.split(",")) if arguments.only else None
    warnings.simplefilter("ignore")
    declare_nms()
    kept = Path(arguments.rows) if arguments.rows else None
    rows = [Row(**json.loads(line)) for line in kept.read_text().splitlines()] if kept and kept.exists() else []
    done = {(row.family, row.name) for row in rows}
    groups = {family.__name__ for family in FAMILIES}
    for entry in all_entries(wanted):
        is_asked = wanted is None or wanted & groups or wanted & {entry[0], entry[1]}
        if not is_asked or entry[:2] in done:
            continue
        rows.append(record_apart(entry))
        row = rows[-1]
        if kept:
            with kept.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
        ratios = f"flop {row.flop_ratio} memory {row.memory_ratio}"
        print(f"{row.family}/{row.name}: {row.error or ratios} exact {row.exact} {row.cpu_s:.2f} s", flush=True)
        gc.collect()
        if arguments.output:
            Path(arguments.output).write_text(table(rows))
    try:
        rows += list(flax_rows(wanted))
    except ImportError as error:
        print(f"flax left out: {error}", flush=True)
    for row in rows:
        if row.family == "flax":
            print(f"flax/{row.name}: {row.error} flop {row.flop_ratio} memory {row.memory_ratio}", flush=True)
    if arguments.output:
        Path(arguments.output).write_text(table(rows))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
