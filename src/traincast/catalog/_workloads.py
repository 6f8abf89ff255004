"""Well-known workloads by name or by shape: a name, a batch and a recipe in, the graph of one step out. No PyTorch needed."""

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import Recipe, Sampling, Sizes, precision_name
from traincast.catalog._models.styles import FUSED_STYLES, STYLES
from traincast.catalog._models.transformer import TransformerShape, build_transformer
from traincast.catalog._names import load_facts
from traincast.errors import InvalidInput, UnknownName
from traincast.noun import noun
from traincast.spec import SAMPLED, Graph

BUILDERS: dict[str, str] = {
    "classifier": "traincast.catalog._models.vision:build_classifier",
    "vit": "traincast.catalog._models.vision_transformers:build_vit",
    "vit-shape": "traincast.catalog._models.vision_transformers:build_vit_from_shape",
    "swin": "traincast.catalog._models.vision_transformers:build_swin",
    "clip": "traincast.catalog._models.vision_transformers:build_clip",
    "t5": "traincast.catalog._models.encoder_decoder:build_t5",
    "t5-shape": "traincast.catalog._models.encoder_decoder:build_t5_from_shape",
    "seq2seq": "traincast.catalog._models.encoder_decoder:build_seq2seq",
    "whisper": "traincast.catalog._models.encoder_decoder:build_whisper",
    "ssd": "traincast.catalog._models.detection:build_ssd",
    "rcnn": "traincast.catalog._models.detection:build_rcnn",
    "retinanet": "traincast.catalog._models.detection:build_retinanet",
    "yolov3": "traincast.catalog._models.detection:build_yolov3",
    "layer-list": "traincast.catalog._models.layer_list:build_layer_list",
    "unet": "traincast.catalog._models.segmentation:build_unet",
    "deepspeech2": "traincast.catalog._models.speech:build_deepspeech2",
    "rnnt": "traincast.catalog._models.speech:build_rnnt",
    "lstm-lm": "traincast.catalog._models.speech:build_lstm_lm",
    "neumf": "traincast.catalog._models.recommendation:build_neumf",
    "dlrm": "traincast.catalog._models.recommendation:build_dlrm",
    "rgat": "traincast.catalog._models.graph_networks:build_rgat",
    "diffusion-unet": "traincast.catalog._models.diffusion:build_diffusion_unet",
    "dit": "traincast.catalog._models.diffusion:build_dit",
    "two-streams": "traincast.catalog._models.flow:build_two_streams",
    "video-transformer": "traincast.catalog._models.video:build_video_transformer",
    "image-encoder": "traincast.catalog._models.flow:build_image_encoder",
}
"""How a named workload becomes a graph: 'module:function', imported when first asked for."""

OPTIMIZER_BY_FAMILY = {
    "cnn": "momentum", "detection": "momentum", "segmentation": "adam", "speech-rnn": "momentum", "recsys": "adam",
    "gnn": "adam",
}  # fmt: skip

_SHAPE_FIELDS = frozenset(field.name for field in fields(TransformerShape))


Builder = Callable[[Net, Mapping[str, Any], Sizes], Graph]
"""A tape, the configuration of the network and what a sample is."""


@noun
class Workload:
    """An entry of the list: what a name stands for."""

    name: str
    family: str
    parameters: float
    """As published (a fraction marks a rounded figure), else as built."""
    seq: int | None
    input_shape: str
    dataset: str
    source: str
    confidence: str
    aliases: tuple[str, ...]


def workload(
    name: str, *, batch: int = 1, seq: int | None = None, input_size: int | str | None = None,
    num_classes: int | None = None, head: str | None = None, precision: str = "fp32", mode: str = "training_step",
    optimizer: str | None = None, attention: str = "flash", recompute: str = "none", fused: bool | None = None,
    **more: Any,
) -> Graph:  # fmt: skip
    """The graph of one step of a known workload; `more` are the rarer fields of `Recipe`, and how a graph is sampled."""
    facts = load_facts("model")
    found = facts.find(name)
    entry = facts.entries[found]
    sampling = _read_sampling(found, entry, {key: more.pop(key) for key in SAMPLED if key in more})
    recipe = _recipe(
        precision=precision, mode=mode, attention=attention, recompute=recompute,
        optimizer=optimizer or entry.get("optimizer") or OPTIMIZER_BY_FAMILY.get(entry["family"], "adamw"),
        fused=entry.get("style") in FUSED_STYLES if fused is None else fused,
        **more,
    )  # fmt: skip
    sizes = Sizes(
        batch=_count("batch", batch), seq=None if seq is None else _count("seq", seq),
        input_size=None if input_size is None else read_image_size(input_size),
        num_classes=None if num_classes is None else _count("num_classes", num_classes), head=head, sampling=sampling,
    )  # fmt: skip
    if entry["builder"] == "recorded":
        raise InvalidInput(
            f"{found} is recorded from its configuration; forecast it by its name (pip install 'traincast[hf]')"
        )
    if head is not None and entry["builder"] != "transformer":
        raise InvalidInput(f"{found} is no plain transformer, so its head cannot be changed to {head!r}")
    return _build(found, recipe, sizes)


def read_image_size(value: int | str) -> tuple[int, int]:
    """(height, width) in pixels of '224', '800x1333' or, with the channels in front, '3x800x1333'."""
    words = str(value).split("x")
    if isinstance(value, bool) or not 1 <= len(words) <= 3 or not all(w.isdecimal() and int(w) > 0 for w in words):
        raise InvalidInput(
            f"input_size = {value!r}; it must be a whole number of pixels, or height and width: 224, 800x1333"
        )
    return int(words[-2:][0]), int(words[-1])


def _read_sampling(name: str, entry: Mapping[str, Any], given: Mapping[str, Any]) -> Sampling | None:
    said = {key: value for key, value in given.items() if value is not None}
    if not said:
        return None
    if entry["family"] != "gnn":
        raise InvalidInput(f"{name} samples no neighbours; {', '.join(said)} goes with graph networks")
    words = str(said["fan_outs"]).replace("x", ",").split(",") if "fan_outs" in said else []
    if not all(word.strip().isdecimal() and 0 < int(word) <= MOST_NEIGHBOURS for word in words):
        raise InvalidInput(
            f"fan_outs = {said['fan_outs']!r}; it must be numbers from 1 to {MOST_NEIGHBOURS:,}, from the seeds outwards: 20,15,9"
        )
    depth = len(entry["config"]["neighbours"])
    if words and len(words) != depth:
        raise InvalidInput(f"fan_outs = {said['fan_outs']!r}; {name} has {depth} layers, so {depth} numbers are needed")
    for key in ("distinct_neighbours", "feature_hits"):
        if key in said and not 0 <= said[key] <= 1:
            raise InvalidInput(f"{key} = {said[key]}; it must lie between 0 and 1")
    if ("feature_hits" in said) != ("feature_cache_bytes" in said):
        raise InvalidInput(
            "feature_cache_bytes and feature_hits go together: how much lies on a device and what it answers"
        )
    return Sampling(
        fan_outs=tuple(map(int, words)) or None,
        distinct=said.get("distinct_neighbours"),
        cache_bytes=float(said.get("feature_cache_bytes", 0.0)),
        hits=float(said.get("feature_hits", 0.0)),
    )


MOST_NEIGHBOURS = 100_000


@functools.lru_cache(maxsize=64)
def _build(name: str, recipe: Recipe, sizes: Sizes) -> Graph:
    """Graphs are values, so the last ones asked for are kept."""
    entry = load_facts("model").entries[name]
    if entry["builder"] == "transformer":
        graph = _build_named(name, entry, recipe, sizes)
    else:
        tape = Net(recipe, name=name, source=entry["source"], batch=sizes.batch)
        graph = _builder(entry["builder"])(tape, entry["config"], sizes)
    return replace(
        graph,
        input_variation=entry.get("input_variation", 0.0),
        padded=entry.get("padded", False),
        preparation_s=graph.preparation_s + entry.get("preparation_s_per_sample", 0.0) * sizes.batch,
    )


def workloads(family: str | None = None) -> tuple[Workload, ...]:
    """Every workload of the catalogue, or those of one family."""
    facts = load_facts("model")
    families = sorted({entry["family"] for entry in facts.entries.values()})
    if family is not None and family not in families:
        raise UnknownName("family", family, families, plural="families")
    return tuple(
        Workload(
            name=name,
            family=entry["family"],
            parameters=entry.get("parameters") or entry["built_parameters"],
            seq=entry.get("shape", {}).get("seq") or entry.get("seq"),
            input_shape=entry.get("input_shape", ""),
            dataset=entry.get("dataset", ""),
            source=facts.sources.get(entry["source"], entry["source"]),
            confidence=entry.get("confidence", ""),
            aliases=tuple(entry.get("aliases", ())),
        )
        for name, entry in facts.entries.items()
        if family in (None, entry["family"])
    )


SHAPE_SIZES = (
    "n_layers", "hidden", "heads", "vocab", "seq", "kv_heads", "head_dim", "ffn", "gated", "tied", "experts",
    "experts_per_token", "moe_ffn", "shared_experts", "first_dense", "moe_every",
)  # fmt: skip
"""The sizes of a transformer that a table or a person names; the first five must be given."""
_NEEDED_SIZES = SHAPE_SIZES[:5]


def from_shape(
    *, arch: str, batch: int, name: str = "", fused: bool | None = None, style: Mapping[str, Any] | None = None,
    precision: str = "fp32", **values: Any,
) -> Graph:  # fmt: skip
    """The graph of a transformer given by its sizes; `arch` (gpt2, gpt, bert, opt, mpt, llama, ...) says the rest.

    `values` are the sizes (`SHAPE_SIZES`; None leaves what the architecture says) and the rarer fields of `Recipe`. `style`
    overrides single fields of `TransformerShape`.
    """
    arch = arch.strip().lower()
    sizes = {key: value for key, value in values.items() if key in SHAPE_SIZES}
    missing = [key for key in _NEEDED_SIZES if sizes.get(key) is None]
    if missing:
        raise InvalidInput(
            f"the shape of a transformer needs {', '.join(_NEEDED_SIZES)}; missing: {', '.join(missing)}"
        )
    others = {key: value for key, value in values.items() if key not in SHAPE_SIZES}
    recipe = _recipe(precision=precision, fused=arch in FUSED_STYLES if fused is None else fused, **others)
    batch = _count("batch", batch)
    given = {key: value for key, value in sizes.items() if value is not None}
    if given.get("experts"):
        given.setdefault("experts_per_token", 1)
    title = name or f"{arch}-h{given['hidden']}-l{given['n_layers']}"
    if arch in OTHER_ARCHS:
        tape = Net(recipe, name=title, source=f"shape of architecture {arch}", batch=batch)
        return _builder(OTHER_ARCHS[arch])(tape, given, Sizes(batch=batch, seq=given["seq"]))
    base = find_style(arch)
    shape = transformer_shape({**base, **given, **(style or {})})
    return _build_shape(shape, recipe, batch, title, f"shape of architecture {arch}")


@functools.lru_cache(maxsize=64)
def _build_shape(shape: TransformerShape, recipe: Recipe, batch: int, name: str, source: str) -> Graph:
    return build_transformer(shape, recipe, batch=batch, name=name, source=source)


OTHER_ARCHS: dict[str, str] = {"vit": "vit-shape", "t5": "t5-shape", "switch": "t5-shape"}
"""Architectures whose sizes mean something else than those of a plain stack."""

_STYLE_ALIASES = {
    "pythia": "gpt-neox", "gpt_neox": "gpt-neox", "megatron": "gpt", "qwen3_moe": "qwen3-moe", "llm": "llama",
}  # fmt: skip


def name_style(arch: str) -> str | None:
    """The name under which an architecture's layers are known; None where they are not."""
    key = _STYLE_ALIASES.get(arch, arch.replace("_", "-"))
    return key if key in STYLES or key in OTHER_ARCHS else None


def style_of_task(arch: str, *, dataset: str, mode: str) -> str:
    """The style of an architecture that ends in another head where it is fine-tuned or served than where it is pre-trained."""
    return "bert-squad" if arch == "bert" and ("squad" in dataset or mode == "inference") else arch


def find_style(arch: str) -> dict[str, Any]:
    key = name_style(arch)
    if key not in STYLES:
        raise UnknownName("architecture", arch, (*STYLES, *OTHER_ARCHS))
    return STYLES[key]


def transformer_shape(values: Mapping[str, Any]) -> TransformerShape:
    """A shape from plain values; a misspelt one is an error."""
    for key in values:
        if key not in _SHAPE_FIELDS:
            raise UnknownName("field of a transformer shape", key, _SHAPE_FIELDS, plural="fields")
    known = dict(values)
    if "windows" in known:
        known["windows"] = tuple(known["windows"])
    return TransformerShape(**known)


def named_shape(name: str) -> dict[str, Any] | None:
    """The architecture and the sizes of a transformer of the catalogue; None for what is not there or is none."""
    facts = load_facts("model")
    found = facts.get(name)
    entry = facts.entries[found] if found else {}
    if entry.get("builder") != "transformer":
        return None
    return {"arch": entry["style"], **entry["shape"]}


def _build_named(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: Sizes) -> Graph:
    values = {**STYLES[entry["style"]], **entry["shape"]}
    if sizes.seq is not None:
        values["seq"] = sizes.seq
    if sizes.num_classes is not None:
        values["num_classes"] = sizes.num_classes
    if sizes.head is not None:
        values["head"] = sizes.head
    return build_transformer(transformer_shape(values), recipe, batch=sizes.batch, name=name, source=entry["source"])


def _builder(key: str) -> Builder:
    module, _, function = BUILDERS[key].partition(":")
    builder: Builder = getattr(importlib.import_module(module), function)
    return builder


_RECIPE_FIELDS = frozenset(field.name for field in fields(Recipe))


def _recipe(**values: Any) -> Recipe:
    for key in values:
        if key not in _RECIPE_FIELDS:
            raise UnknownName("option", key, _RECIPE_FIELDS)
    if not isinstance(values.get("precision", ""), str):
        raise InvalidInput(f"precision = {values['precision']!r}; it must be a name such as fp32 or bf16")
    values["precision"] = precision_name(values["precision"])
    return Recipe(**values)


def _count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{name} = {value!r}; it must be a whole number of at least 1")
    return value


LONGEST_USUAL = 8192
"""Tokens. Models that take more are pre-trained at this length or below; longer samples are a short last phase."""


def usual_length(context: int) -> tuple[int, str]:
    """(tokens of a sample where nobody says them, the sentence about it) of a model that takes so many."""
    if context <= LONGEST_USUAL:
        return context, f"samples of {context:,} tokens are assumed, the model's own context length"
    return LONGEST_USUAL, (
        f"samples of {LONGEST_USUAL:,} tokens are assumed: the model takes {context:,}, but such lengths are trained only in a "
        "short last phase"
    )


def has_varying_inputs(name: str) -> bool:
    """Whether a workload of the catalogue is fed samples of several sizes; False for what is not there."""
    entry = load_facts("model").entries.get(name)
    return bool(entry and entry.get("varying_inputs", False))
