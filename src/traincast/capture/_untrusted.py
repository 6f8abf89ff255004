"""A model from a stranger to its graph: a Hugging Face config or an ONNX file. No code, no path, no pickle, no network."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from traincast.capture._load import load_source
from traincast.capture._sizes import check_sizes
from traincast.errors import CaptureFailed, InvalidInput, TraincastError
from traincast.spec import Graph, Scalable

_MODEL_TYPES = """
albert bart beit bert bert-generation bigbird_pegasus big_bird biogpt blenderbot bloom camembert clip codegen cohere
cohere2 convbert convnext convnextv2 ctrl dbrx deberta deberta-v2 deepseek_v2 deepseek_v3 deit dinov2 distilbert
electra ernie esm exaone4 falcon falcon_h1 flaubert fnet funnel gemma gemma2 gemma3_text glm glm4 glm4_moe gpt2
gpt_bigcode gpt_neo gpt_neox gpt_oss gptj granite granitemoe hubert ibert jamba led layoutlm levit llama llama4_text
longformer longt5 m2m_100 mamba mamba2 marian mbart mega megatron-bert mistral ministral mixtral mobilebert
mobilenet_v1 mobilenet_v2 mobilevit modernbert mpnet mpt mra mt5 mvp nemotron nystromformer olmo olmo2 olmo3 olmoe
openai-gpt opt pegasus persimmon phi phi3 phimoe plbart poolformer prophetnet pvt qwen2 qwen2_moe qwen3 qwen3_moe
recurrent_gemma reformer regnet rembert resnet roberta roberta-prelayernorm roc_bert roformer rwkv segformer siglip
smollm3 solar squeezebert stablelm starcoder2 swin swinv2 switch_transformers t5 umt5 vit vit_mae wav2vec2 whisper
xglm xlm xlm-roberta xlm-roberta-xl xlnet xmod yoso zamba zamba2
"""
MODEL_TYPES = frozenset(_MODEL_TYPES.split())
"""Architectures that transformers builds from numbers alone: none of them loads another model by name."""

REFUSED_KEYS = frozenset(
    ("auto_map", "backbone", "backbone_config", "use_pretrained_backbone", "backbone_kwargs", "quantization_config",
     "attn_implementation", "_attn_implementation", "_attn_implementation_internal", "_attn_implementation_autoset",
     "custom_pipelines", "trust_remote_code", "peft_config", "adapters", "pretrained_cfg", "experts_implementation",
     "_experts_implementation", "_experts_implementation_internal")
)  # fmt: skip
"""What in a config names code, files or downloads. A value of null or false is allowed."""


def check_config(config: Any) -> dict[str, Any]:
    """A config that only describes shapes."""
    if not isinstance(config, dict) or not ("model_type" in config or "architectures" in config):
        raise InvalidInput("this is not a Hugging Face config: it has neither model_type nor architectures")
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        from traincast.errors import UnknownName

        raise UnknownName("model_type", str(model_type)[:80], MODEL_TYPES)
    _check_values(config)
    check_sizes(config)
    return {key: value for key, value in config.items() if key not in ("_name_or_path", "name_or_path")}


def _check_values(config: Mapping[str, Any]) -> None:
    for key, value in config.items():
        if key in REFUSED_KEYS and value not in (None, False, "eager", "sdpa"):
            raise InvalidInput(
                f"the config sets {key}, which can name code or files; take it out to forecast the model"
            )
        if isinstance(value, dict):
            _check_values(value)


def record_untrusted(content: bytes | dict[str, Any], options: Mapping[str, Any]) -> Graph | Scalable:
    """The step of a Hugging Face config (a table) or of an ONNX file (bytes) that a stranger sent."""
    try:
        with _empty_folder() as folder, contextlib.redirect_stdout(sys.stderr):
            if isinstance(content, dict):
                return _record_config(check_config(content), options)
            return _record_onnx(content, folder, options)
    except TraincastError:
        raise
    except (MemoryError, RecursionError):
        raise
    except SystemExit as error:
        raise CaptureFailed(f"the model called sys.exit({error.code!r}) while it was recorded") from error
    except Exception as error:
        raise CaptureFailed(
            f"the model could not be recorded: {type(error).__name__}: {tell_plainly(error)}"
        ) from error


_INTERNALS = re.compile(r"Exception raised from|C\+\+ CapturedTraceback|\bframe #\d+|Traceback \(most recent|\(File \"")
_PATHS = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*(?::\d+)?|\b0x[0-9a-f]{6,}\b")


def tell_plainly(error: BaseException) -> str:
    """What a library says, without its stack, the paths of this machine and addresses."""
    words = _INTERNALS.split(str(error), maxsplit=1)[0]
    return _PATHS.sub("...", " ".join(words.split()))[:300].rstrip(" (:")


def _record_config(config: dict[str, Any], options: Mapping[str, Any]) -> Graph | Scalable:
    import_closed("torch", "transformers")
    loaded: Graph | Scalable = load_source(config, scalable=True, **options)
    return loaded


def _record_onnx(blob: bytes, folder: Path, options: Mapping[str, Any]) -> Graph | Scalable:
    import_closed("torch", "onnx")
    path = folder / "model.onnx"
    path.write_bytes(_keep_inside(blob))
    try:
        return load_source(str(path), scalable=True, **options)
    except InvalidInput as error:
        if "fixed batch" not in str(error):
            raise InvalidInput(str(error).replace(str(path), "the upload")) from error
    try:
        return load_source(str(path), **options)
    except TraincastError as error:
        raise type(error)(str(error).replace(str(path), "the upload")) from error


def _keep_inside(blob: bytes) -> bytes:
    """The file without references to others: a tensor that lies elsewhere keeps its shape and loses its place."""
    import onnx

    try:
        model = onnx.load_model_from_string(blob)
    except Exception as error:
        raise InvalidInput(f"the upload is not a readable ONNX file: {tell_plainly(error)[:200]}") from error

    def tensors(graph: Any) -> Iterator[Any]:
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        yield from of_nodes(graph.node)

    def of_nodes(nodes: Any) -> Iterator[Any]:
        for node in nodes:
            for item in node.attribute:
                yield item.t
                yield from item.tensors
                for inner in (item.g, *item.graphs):
                    yield from tensors(inner)

    for tensor in (*tensors(model.graph), *(each for function in model.functions for each in of_nodes(function.node))):
        if tensor.external_data or tensor.data_location:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    return bytes(model.SerializeToString())


@contextlib.contextmanager
def _empty_folder() -> Iterator[Path]:
    """A folder to work in; it stays open to this process until it is gone."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="traincast-upload-") as folder:
        _own_folders.append(Path(folder).resolve())
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


_own_folders: list[Path] = []
_closed = False


def import_closed(*packages: str) -> None:
    """Import what recording needs, then let this process start nothing, call nobody and write only to its own folder.

    A config or an ONNX file holds no code for us to run; this is the second wall, for what a library might do with one.
    """
    import importlib

    from traincast.errors import MissingExtra

    os.environ["HF_HUB_OFFLINE"] = "1"
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            extra = {"transformers": "hf", "onnx": "onnx"}.get(package, "torch")
            raise MissingExtra(package, extra, "recording a model") from error
    global _closed
    if not _closed:
        _closed = True
        sys.addaudithook(_refuse)


_REFUSED_EVENTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "socket.bind",
                   "socket.getaddrinfo", "pickle.find_class")  # fmt: skip


_SYSTEM = ("/usr/lib", "/usr/local/lib", "/proc", "/sys", "/dev")


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _REFUSED_EVENTS:
        raise CaptureFailed(f"recording this model tried {event}, which an upload may not")
    if event != "open" or not isinstance(arguments[0], (str, bytes)):
        return
    path = Path(os.fsdecode(arguments[0])).resolve()
    allowed = (*_own_folders, *map(Path, (sys.prefix, sys.base_prefix, *_SYSTEM, *filter(None, sys.path))))
    if not any(path.is_relative_to(place.resolve()) for place in allowed):
        # The operator may see the path; the one who sent the model may not.
        sys.stderr.write(f"traincast: refused to open {path} while a model was recorded\n")
        raise CaptureFailed("recording this model tried to open a file, which an upload may not")
