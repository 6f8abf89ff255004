"""MaxText's yml or its overrides on a command: sizes or a model's name, ICI and DCN axes, remat policy."""

from typing import Any

from traincast.configs._documents import make_format
from traincast.configs._models import find_model, find_sizes
from traincast.configs._nouns import LOOSE, Draft

_SIZES = {
    "n_layers": "base_num_decoder_layers", "hidden": "base_emb_dim", "heads": "base_num_query_heads",
    "kv_heads": "base_num_kv_heads",
    "head_dim": "head_dim", "ffn": "base_mlp_dim", "vocab": "vocab_size",
}  # fmt: skip


def _read(draft: Draft) -> None:
    keys = draft.keys
    _read_model(draft)
    _read_axes(draft)
    each = keys.number("per_device_batch_size")
    if each is not None:
        # It counts by device; a replica is all devices that share one sample.
        inner = 1
        for axis in ("tensor", "context", "pipeline"):
            inner *= draft.get(f"parallelism.{axis}", 1)
        batch = each * inner
        if batch >= 1 and float(batch).is_integer():
            draft.put("workload.batch", int(batch), "per_device_batch_size")
        else:
            draft.unmapped["per_device_batch_size"] = (
                f"{each:g} on each of {inner} devices of a replica is no whole sample"
            )
    word = keys.values.get("remat_policy")
    taken = draft.get("parallelism.recompute")
    if word is None:
        draft.assume("parallelism.recompute", "full", "remat_policy is not said, so MaxText takes full")
    elif taken is not None and word not in ("full", "none", "minimal"):
        draft.notes.append(f"remat_policy {word} is taken as {taken}")
    _read_precision(draft)
    if keys.flag("enable_checkpointing"):
        draft.take("job.checkpoint_every_steps", "checkpoint_period", least=1)
    keys.take("checkpoint_period")


def _read_model(draft: Draft) -> None:
    keys = draft.keys
    name = keys.word("model_name")
    found = find_model(name) if name and name != "default" else None
    sizes = _read_sizes(draft)
    if found is not None:
        draft.put("source", found, "model_name")
        draft.notes.append(f"{name} is taken to be {found} of the catalogue")
    elif name and name != "default":
        draft.unmapped["model_name"] = f"{name} is not in the catalogue; name a model"
    elif sizes:
        styles = ("mixtral", "qwen3-moe") if "experts" in sizes else ("llama", "mistral", "qwen2", "qwen3", "gemma")
        known = next((match for style in styles if (match := find_sizes({**sizes, "arch": style}))), None)
        if known is not None:
            draft.put("source", known, "base_num_decoder_layers")
            draft.notes.append(f"{keys.where} has the sizes of {known} of the catalogue")
            return
        sizes["arch"] = styles[0]
        draft.put("source", f"{styles[0]}-h{sizes['hidden']}-l{sizes['n_layers']}", "base_num_decoder_layers")
        for field, value in sizes.items():
            draft.put(f"workload.{field}", value, "base_num_decoder_layers", strength=LOOSE)


def _read_sizes(draft: Draft) -> dict[str, Any]:
    """The sizes of a model; empty where layers or width are left to its name, or all are scaled at once."""
    keys = draft.keys
    sizes: dict[str, Any] = {ours: keys.whole(theirs) for ours, theirs in _SIZES.items() if theirs in keys}
    experts = keys.whole("num_experts") or 1
    if experts > 1:
        sizes |= {"experts": experts, "experts_per_token": keys.whole("num_experts_per_tok") or 1}
        sizes["moe_ffn"] = keys.whole("base_moe_mlp_dim") or sizes.get("ffn")
    if sizes.get("head_dim", 0) * sizes.get("heads", 0) == sizes.get("hidden"):
        sizes.pop("head_dim")
    whole = "n_layers" in sizes and "hidden" in sizes and keys.whole("global_parameter_scale") in (None, 1)
    return sizes if whole else {}


_AXES = ("data", "fsdp", "fsdp_transpose", "tensor", "tensor_sequence", "pipeline", "context", "sequence", "expert")


def _read_axes(draft: Draft) -> None:
    degrees, left_open = _read_degrees(draft)
    tensor, context = degrees["tensor"] * degrees["tensor_sequence"], degrees["context"] * degrees["sequence"]
    draft.put("parallelism.tensor", tensor, "ici_tensor_parallelism")
    draft.put("parallelism.pipeline", degrees["pipeline"], "ici_pipeline_parallelism")
    draft.put("parallelism.context", context, "ici_context_parallelism")
    draft.put("parallelism.expert", degrees["expert"], "ici_expert_parallelism")
    shards = degrees["fsdp"] * degrees["fsdp_transpose"]
    said = "ici_fsdp_parallelism" in draft.keys.values
    # Ranks of one sequence share their weights too.
    sharded = "fsdp" in left_open or shards > 1 or context > 1 or not said
    draft.put("parallelism.zero", 3 if sharded else 0, "ici_fsdp_parallelism")
    if said and not left_open & {"data", "fsdp"}:
        replicas = degrees["data"] * shards * degrees["expert"]
        draft.put("parallelism.data", replicas, "ici_fsdp_parallelism", strength=LOOSE)
    if sharded and degrees["data"] > 1 and degrees["expert"] == 1:
        draft.put("parallelism.shard", shards * context, "ici_fsdp_parallelism")


def _read_degrees(draft: Draft) -> tuple[dict[str, int], set[str]]:
    """The degree of each axis inside and between slices together, and the axes that take what is left."""
    degrees, left_open = dict.fromkeys(_AXES, 1), set()
    for axis in _AXES:
        for scope in ("ici", "dcn"):
            value = draft.keys.whole(f"{scope}_{axis}_parallelism")
            if value is not None and value < 0:
                left_open.add(axis)
            elif value is not None:
                degrees[axis] *= value
    return degrees, left_open


def _read_precision(draft: Draft) -> None:
    keys = draft.keys
    quantization = (keys.word("quantization") or "").lower()
    compute, weights = keys.word("dtype") or "bfloat16", keys.word("weight_dtype") or "float32"
    if quantization.startswith(("fp8", "nanoo_fp8", "te_fp8")):
        draft.put("workload.precision", "fp8", "quantization")
    elif quantization:
        draft.unmapped["quantization"] = f"{quantization!r} is not known"
    elif compute == "bfloat16":
        draft.put("workload.precision", "bf16-pure" if weights == "bfloat16" else "bf16", "dtype")
    elif compute == "float32":
        draft.put("workload.precision", "fp32", "dtype")


MAXTEXT = make_format("maxtext", _read)
