"""Families of transformers: what a name like 'llama' says about a layer, apart from its sizes."""

from typing import Any

_LLAMA: dict[str, Any] = {
    "norm": "rms_norm", "gated": True, "bias": False, "positions": "rotary", "activation": "silu", "mask": "add",
}  # fmt: skip
_BERT: dict[str, Any] = {
    "causal": False, "pre_norm": False, "embedding_norm": True, "token_types": 2, "pooler": True, "head": "pretraining",
    "tied": True, "activation": "gelu", "mask": "add", "divide": True, "dropout": 0.1, "attention_dropout": 0.1,
}  # fmt: skip
_NEOX: dict[str, Any] = {
    "positions": "rotary", "rotary_share": 0.25, "parallel_residual": True, "merged_qkv": True, "activation": "gelu",
}  # fmt: skip

STYLES: dict[str, dict[str, Any]] = {
    "gpt2": {
        "layout": "nn", "merged_qkv": True, "tied": True, "activation": "gelu_new", "mask": "where", "divide": True,
        "dropout": 0.1, "attention_dropout": 0.1,
    },
    "gpt": {"merged_qkv": True, "tied": True, "activation": "gelu", "dropout": 0.1, "attention_dropout": 0.1},
    "gpt-neo": {"tied": True, "activation": "gelu_new", "attention_bias": False, "mask": "where", "windows": (0, 256)},
    "gptj": {
        "positions": "rotary", "rotary_share": 0.25, "parallel_residual": True, "shared_norm": True, "attention_bias": False,
        "output_bias": False, "activation": "gelu_new", "head_bias": True,
    },
    "gpt-neox": _NEOX,
    "stablelm-alpha": _NEOX,
    "opt": {"tied": True, "activation": "relu", "dropout": 0.1},
    "bloom": {"tied": True, "positions": "alibi", "merged_qkv": True, "activation": "gelu", "embedding_norm": True},
    "mpt": {"tied": True, "positions": "alibi", "merged_qkv": True, "activation": "gelu", "bias": False, "norm_bias": False},
    "falcon": {
        "tied": True, "positions": "rotary", "merged_qkv": True, "activation": "gelu", "bias": False, "parallel_residual": True,
        "shared_norm": True,
    },
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "qwen2": {**_LLAMA, "attention_bias": True},
    "qwen2-moe": {**_LLAMA, "attention_bias": True},
    "qwen3": {**_LLAMA, "qk_norm": True},
    "qwen3-moe": {**_LLAMA, "qk_norm": True},
    "gpt-oss": {**_LLAMA, "attention_bias": True, "output_bias": True, "expert_bias": True, "windows": (128, 0)},
    "deepseek-v2": {**_LLAMA, "kv_rank": 512, "q_rank": 1536, "shared_experts": 2, "first_dense": 1},
    "deepseek-v3": {**_LLAMA, "kv_rank": 512, "q_rank": 1536, "shared_experts": 1, "first_dense": 3},
    "gemma": {**_LLAMA, "activation": "gelu", "tied": True, "embedding_scale": True},
    "gemma2": {
        **_LLAMA, "activation": "gelu", "tied": True, "embedding_scale": True, "sandwich_norm": True, "windows": (4096, 0),
    },
    "gemma3": {
        **_LLAMA, "activation": "gelu", "tied": True, "embedding_scale": True, "sandwich_norm": True, "qk_norm": True,
        "windows": (1024, 1024, 1024, 1024, 1024, 0),
    },
    "phi": {
        "positions": "rotary", "rotary_share": 0.5, "parallel_residual": True, "shared_norm": True, "activation": "gelu_new",
        "head_bias": True,
    },
    "phi3": {**_LLAMA, "merged_qkv": True},
    "stablelm": {**_LLAMA, "norm": "layer_norm", "rotary_share": 0.25},
    "nemotron": {"bias": False, "positions": "rotary", "rotary_share": 0.5, "activation": "relu"},
    "olmo": {**_LLAMA, "norm": "none_affine"},
    "dbrx": {**_LLAMA, "norm": "layer_norm", "norm_bias": False, "merged_qkv": True},
    "bert": _BERT,
    "bert-squad": {**_BERT, "head": "squad", "pooler": False},
    "roberta": {**_BERT, "token_types": 1, "head": "mlm", "pooler": False},
    "distilbert": {**_BERT, "token_types": 0, "head": "mlm", "pooler": False},
    "albert": {**_BERT, "shared_layers": True, "embedding_width": 128, "head": "mlm", "activation": "gelu_new"},
    "clip-text": {"activation": "gelu", "head": "none"},
    "t5-encoder": {**_LLAMA, "positions": "none", "causal": False, "activation": "gelu", "head": "none"},
    "electra": {**_BERT, "head": "mlm", "pooler": False},
}  # fmt: skip

FUSED_STYLES = frozenset({"gpt"})
"""Styles that name Megatron-LM itself, whose kernels are fused."""
