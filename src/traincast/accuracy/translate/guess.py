"""A language model that the catalogue does not know to a shape: from what its columns and its name still say."""

import re
from typing import Any

from traincast.accuracy.cases import Case
from traincast.catalog.models.styles import STYLES
from traincast.catalog.workloads import name_style
from traincast.units import GIGA, MEGA

HEAD_DIM = 128
ASPECT = 128
"""Width of a layer for every layer, as GPT-3 and Llama are drawn: 4096 x 32, 12288 x 96."""
USUAL_VOCAB = {
    "bert": 30_522,
    "gpt2": 50_257,
    "gpt": 51_200,
    "opt": 50_272,
    "mpt": 50_368,
    "t5": 32_128,
    "switch": 32_128,
    "vit": 1000,
}
USUAL_SEQ = {"bert": 512, "t5": 512, "switch": 512, "vit": 197, "gpt2": 1024}
OTHER_VOCAB, OTHER_SEQ = 32_000, 2048

_NAMED_SHAPE = re.compile(r"(?:^|[-_])h(\d{3,6})[-_]?l(\d{1,3})(?:$|[-_])")
_NAMED_SIZE = re.compile(r"(?<![\d.a-z])(\d+(?:\.\d+)?)\s*([bm])(?![a-z0-9])")


def guess_shape(case: Case, assumptions: list[str]) -> dict[str, Any] | None:
    """The arguments of `from_shape` that a transformer's columns leave out, said aloud; None where too little is known."""
    if not is_transformer(case):
        return None
    arch = find_arch(case)
    layers, hidden = case.n_layers, case.hidden
    named = _NAMED_SHAPE.search((case.model or "").lower())
    if named and not (layers and hidden):
        hidden, layers = int(named[1]), int(named[2])
    if layers and hidden:
        ground = f"{layers} layers of {hidden}"
    else:
        size = case.params or read_size(case.model or "")
        if not size:
            return None
        layers, hidden = draw_layers(size, vocab=case.vocab or USUAL_VOCAB.get(arch, OTHER_VOCAB))
        ground = f"{size / GIGA:.3g} billion parameters, so {layers} layers of {hidden}"
    assumptions.append(f"the shape of {case.model or 'the model'} is not known; {arch} with {ground} is assumed")
    heads = case.n_heads or max(1, hidden // (HEAD_DIM if hidden >= 2048 else 64))
    while hidden % heads:
        heads -= 1
    gated = STYLES.get(arch, {}).get("gated", False) if case.ffn_gated is None else case.ffn_gated
    return {
        # Three matrices of 8/3 the width weigh what two of 4 do (Shazeer 2020).
        "ffn": case.ffn or (HEAD_DIM * round(8 / 3 * hidden / HEAD_DIM) if gated else 4 * hidden),
        "arch": arch,
        "n_layers": layers,
        "hidden": hidden,
        "heads": heads,
        "vocab": case.vocab or (case.num_classes if arch == "vit" else None) or USUAL_VOCAB.get(arch, OTHER_VOCAB),
        "seq": case.seq_len or USUAL_SEQ.get(arch, OTHER_SEQ),
    }


def is_transformer(case: Case) -> bool:
    if case.family:
        return case.family.startswith("transformer")
    # Only language models are named by their billions.
    return known_arch(case) is not None or (not case.input_shape and bool(read_size(case.model or "")))


def find_arch(case: Case) -> str:
    """The case's architecture where it is one; else what its family and its MLP usually go with."""
    known = known_arch(case)
    if known is not None:
        return known
    if case.family == "transformer-enc":
        return "bert"
    return "gpt-neox" if case.ffn_gated is False and not case.n_experts else "llama"


def read_size(name: str) -> float | None:
    """Parameters that a name states: 'nous-hermes-13b', 'custom 350m'."""
    found = _NAMED_SIZE.search(name.lower())
    return float(found[1]) * (GIGA if found[2] == "b" else MEGA) if found else None


def draw_layers(num_parameters: float, *, vocab: int) -> tuple[int, int]:
    """Layers and width of a plain stack with so many parameters, in the usual proportion; heads in eights, as plans split."""
    layers_only, hidden = num_parameters, 0
    for _ in range(3):
        width = ASPECT * (layers_only / (12 * ASPECT**2)) ** (1 / 3)
        step = 8 * (HEAD_DIM if width >= 2048 else 64)
        hidden = max(step, step * round(width / step))
        layers_only = max(0.3 * num_parameters, num_parameters - 2 * vocab * hidden)
    return max(1, round(layers_only / (12 * hidden**2))), hidden


def known_arch(case: Case) -> str | None:
    return name_style((case.arch or "").strip().lower())
