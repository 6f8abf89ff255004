"""The arithmetic of a transformer step by the usual closed formula, and the peak it is held against."""

from collections.abc import Callable

from traincast.accuracy import Case

Rate = Callable[[str, str], float | None]
"""The peak FLOP rate of a device by its id and a dtype; None where unknown."""

_RATE_DTYPE = {"fp16_amp": "fp16", "mxfp8": "fp8", "nvfp4": "fp4"}


def transformer_flop(case: Case) -> float | None:
    """FLOP of one step of the whole job; backward counts twice the forward pass, full recomputation once more."""
    shape = (case.n_layers, case.hidden, case.n_heads, case.head_dim, case.seq_len, case.vocab)
    if None in shape or case.global_batch is None:
        return None
    layers, hidden, heads, head_dim, seq, vocab = (value or 0 for value in shape)
    width, kv_width = heads * head_dim, (case.n_kv_heads or heads) * head_dim
    inner = (case.moe_ffn or 0) * (case.experts_per_token or 0) if case.n_experts else case.ffn
    if not inner:
        return None
    matrices = 3 if case.ffn_gated else 2
    per_layer = 2 * hidden * width + 2 * hidden * kv_width + hidden * inner * matrices
    per_token = 2 * (layers * per_layer + vocab * hidden) + 2 * layers * seq * width
    passes = 4 if case.act_ckpt == "full" else 3
    return float(per_token) * passes * case.global_batch * seq


def peak_of(case: Case, rate: Rate) -> float | None:
    dtype = case.dtype or ""
    return rate(case.gpu, _RATE_DTYPE.get(dtype, dtype))


def catalogue_rate(gpu: str, dtype: str) -> float | None:
    """The data sheet's rate; None for a device or a precision that the catalogue does not hold."""
    from traincast import catalog
    from traincast.errors import UnknownName

    try:
        return catalog.device(gpu).peak_flop_per_s(dtype)
    except UnknownName:
        return None
