"""A Hugging Face configuration to a model without weights and the inputs of one training step."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from traincast.capture._extras import need
from traincast.capture._sizes import check_sizes
from traincast.errors import CaptureFailed, InvalidInput, did_you_mean
from traincast.files import read_json
from traincast.noun import noun

DEFAULT_SEQ = 1024
_AUDIO_SECONDS_SAMPLES = 16000 * 10
_AUDIO_FRAMES = 1000
_OBJECTS = 7
"""In an image, as in COCO on average."""
_CTC_LABELS = 128
"""Of ten seconds of speech."""


@noun
class Source:
    """What a recording needs: how to build the model, its inputs for a batch, and what a sample is."""

    name: str
    build: Callable[[], Any]
    make_inputs: Callable[[int], dict[str, Any]]
    tokens_per_sample: int
    samples_unit: str


def describe_config(
    config: Mapping[str, Any] | str | os.PathLike[str], *, seq: int | None = None, attention: str | None = None,
    checkpointing: bool = False,
) -> Source:  # fmt: skip
    """`config` is the content of a config.json, its path, or the directory that holds it."""
    content, origin = _read(config)
    trained = content.pop("trained", ())
    check_sizes(content)
    transformers = _import_transformers()
    parsed = _parse(transformers, content, origin)
    model_class = _model_class(transformers, content, parsed, origin)
    options = {} if attention is None else {"attn_implementation": {"flash": "sdpa"}.get(attention, attention)}

    def build() -> Any:
        model = model_class._from_config(parsed, **options)
        for name, parameter in model.named_parameters():
            if any(part in name for part in trained):
                # What is published as trained, and the library freezes by a name that its own backbones do not have.
                parameter.requires_grad_(True)
        if hasattr(model.config, "use_cache"):
            # Training never keeps keys and values of past tokens.
            model.config.use_cache = False
        if checkpointing:
            # transformers 5.23 has renamed it.
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable()
        return model

    inputs = _inputs(parsed, model_class, seq=seq)
    is_text = "input_ids" in inputs(1)
    length = _length(parsed, seq) if is_text else 1
    return Source(
        name=str(content.get("_name_or_path") or content.get("name") or origin or parsed.model_type), build=build,
        make_inputs=inputs, tokens_per_sample=length, samples_unit="sequences" if is_text else "samples",
    )  # fmt: skip


def _read(config: Mapping[str, Any] | str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    if isinstance(config, Mapping):
        return dict(config), ""
    path = Path(config)
    content = read_json(path / "config.json" if path.is_dir() else path)
    if not isinstance(content, dict) or not ("model_type" in content or "architectures" in content):
        raise InvalidInput(f"{path} is not a Hugging Face config: it has neither model_type nor architectures")
    return content, path.parent.name if path.name == "config.json" else path.stem


def _import_transformers() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = need("transformers", extra="hf", purpose="building a model from a Hugging Face config")
    transformers.logging.set_verbosity_error()
    return transformers


def _parse(transformers: Any, content: dict[str, Any], origin: str) -> Any:
    fields = {key: value for key, value in content.items() if key not in ("model_type", "transformers_version")}
    model_type = content.get("model_type")
    known_types = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    if model_type is not None and not (isinstance(model_type, str) and model_type in known_types):
        near = did_you_mean(str(model_type), known_types)
        raise CaptureFailed(
            f"transformers {transformers.__version__} has no model_type {model_type!r}{near}; "
            "install a version that has it, record its code (my_file.py:build), or describe it by --arch llama --layers ... "
            "--hidden ... --heads ... --vocab ..."
        )
    try:
        if model_type is None:
            known = getattr(transformers, content["architectures"][0]).config_class
        else:
            known = type(transformers.AutoConfig.for_model(model_type))
        # What the library computes itself (the head dim of some models) cannot be set; other such keys are read once.
        computed = {key for key in fields if isinstance(getattr(known, key, None), property)}
        try:
            parsed = known(**fields)
        except Exception:
            parsed = known(**{key: value for key, value in fields.items() if key not in computed})
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise CaptureFailed(
            f"the config {origin or model_type!r} cannot be read by transformers {transformers.__version__}: {reason}"
        ) from error
    if getattr(parsed, "is_encoder_decoder", False) and getattr(parsed, "decoder_start_token_id", None) is None:
        parsed.decoder_start_token_id = getattr(parsed, "pad_token_id", None) or 0
    return parsed


def _model_class(transformers: Any, content: dict[str, Any], parsed: Any, origin: str) -> Any:
    named = content.get("architectures")
    for name in named if isinstance(named, list) else ():
        found = getattr(transformers, str(name), None)
        if found is not None and hasattr(found, "_from_config"):
            return found
    for auto in ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModelForImageClassification",
                 "AutoModel"):  # fmt: skip
        mapping = getattr(transformers, auto)._model_mapping
        if type(parsed) in mapping:
            found = mapping[type(parsed)]
            return found[0] if isinstance(found, tuple) else found
    raise CaptureFailed(
        f"transformers {transformers.__version__} has no model for the config {origin or parsed.model_type!r} "
        f"(architectures: {content.get('architectures')})"
    )


def _length(parsed: Any, seq: int | None) -> int:
    part = getattr(parsed, "text_config", None) or parsed
    limit = getattr(part, "max_position_embeddings", None) or getattr(part, "n_positions", None)
    if seq is not None:
        if seq < 1:
            raise InvalidInput(f"seq = {seq}; it must be at least 1")
        return seq
    return min(int(limit), DEFAULT_SEQ) if isinstance(limit, int) and limit > 0 else DEFAULT_SEQ


def _inputs(parsed: Any, model_class: Any, *, seq: int | None) -> Callable[[int], dict[str, Any]]:
    import inspect

    import torch

    accepted = inspect.signature(model_class.forward).parameters
    main = getattr(model_class, "main_input_name", "input_ids")
    text = getattr(parsed, "text_config", None) or parsed
    length = _length(parsed, seq)
    vocabulary = int(getattr(text, "vocab_size", 2) or 2)
    if vocabulary >= 2**31:
        raise InvalidInput(f"the config has vocab_size = {vocabulary}; token ids end below 2**31")

    def tokens(batch: int, size: int) -> Any:
        # Spread over the vocabulary without its last ids, which are often reserved.
        return (torch.arange(batch * size) % max(1, vocabulary - 2)).reshape(batch, size)

    def make(batch: int) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        is_text = main == "input_ids" or ("input_ids" in accepted and "pixel_values" in accepted)
        if is_text:
            inputs["input_ids"] = tokens(batch, min(length, int(getattr(text, "max_position_embeddings", length) or length))
                                         if main != "input_ids" else length)  # fmt: skip
        if "pixel_values" in accepted:
            inputs["pixel_values"] = torch.zeros(batch, *_image_shape(parsed))
        if main == "input_features":
            inputs["input_features"] = torch.zeros(batch, *_frames(parsed))
            if "attention_mask" in accepted and not hasattr(parsed, "max_source_positions"):
                inputs["attention_mask"] = torch.ones(batch, _AUDIO_FRAMES, dtype=torch.int64)
        if main == "input_values":
            inputs["input_values"] = torch.zeros(batch, seq or _AUDIO_SECONDS_SAMPLES)
        if not inputs:
            raise CaptureFailed(f"{model_class.__name__} takes {main!r}, for which no example input is known; capture it "
                                "from a Python file: my_file.py:build")  # fmt: skip
        if "return_loss" in accepted:
            inputs["return_loss"] = True
        elif "labels" in accepted:
            inputs["labels"] = _labels(parsed, model_class, inputs, tokens)
        return inputs

    return make


def _frames(parsed: Any) -> tuple[int, int]:
    """Encoders of a fixed length take mel bins before frames, others frames before mel bins, ten seconds of them."""
    part = getattr(parsed, "encoder_config", None) or parsed
    bins, places = int(getattr(part, "num_mel_bins", 80)), getattr(parsed, "max_source_positions", None)
    return (_AUDIO_FRAMES, bins) if places is None else (bins, 2 * int(places))


def _image_shape(parsed: Any) -> tuple[int, int, int]:
    part = getattr(parsed, "vision_config", None) or parsed
    inner = getattr(part, "backbone_config", None)
    size = next((own for each in (part, parsed, inner) if (own := getattr(each, "image_size", None))), 224)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return int(getattr(part, "num_channels", 3) or 3), int(height), int(width)


def _labels(parsed: Any, model_class: Any, inputs: dict[str, Any], tokens: Callable[[int, int], Any]) -> Any:
    import torch

    batch = next(iter(inputs.values())).shape[0]
    name = model_class.__name__
    if "ObjectDetection" in name:
        one = {"class_labels": torch.zeros(_OBJECTS, dtype=torch.int64), "boxes": torch.full((_OBJECTS, 4), 0.4)}
        return [one for _ in range(batch)]
    if "CTC" in name:
        return tokens(batch, _CTC_LABELS)
    if "Classification" in name and "Token" not in name:
        return torch.zeros(batch, dtype=torch.int64)
    if "input_features" in inputs:
        return tokens(batch, min(448, int(getattr(parsed, "max_target_positions", 448))))
    ids = inputs.get("input_ids")
    return torch.zeros(batch, dtype=torch.int64) if ids is None else tokens(batch, ids.shape[1])
