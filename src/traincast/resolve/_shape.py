"""A transformer given by its sizes to its graph; sizes that are not said are guessed, and the guess is said."""

from typing import Any

from traincast.catalog import STYLES, from_shape, name_style, named_shape
from traincast.errors import InvalidInput
from traincast.spec import SHAPE, Graph, Notes, WorkloadOptions
from traincast.units import GIGA

HEAD_DIM = 128
ASPECT = 128
"""Width of a layer for every layer, as GPT-3 and Llama are drawn: 4096 x 32, 12288 x 96."""
USUAL_VOCAB = {"bert": 30_522, "gpt2": 50_257, "gpt": 51_200, "opt": 50_272, "mpt": 50_368, "t5": 32_128,
               "switch": 32_128, "vit": 1000}  # fmt: skip
USUAL_SEQ = {"bert": 512, "t5": 512, "switch": 512, "vit": 197, "gpt2": 1024}
OTHER_VOCAB, OTHER_SEQ = 32_000, 2048
USUAL_ARCH = "llama"


def complete_shape(title: str, options: WorkloadOptions) -> tuple[dict[str, Any], Notes]:
    """The arguments of `from_shape`; where layers, width, heads, vocabulary or length are not said, those of the model that
    `title` names, or usual ones."""
    known = {name: getattr(options, name) for name in SHAPE if getattr(options, name) is not None}
    for name, size in known.items():
        if isinstance(size, int) and not isinstance(size, bool) and size < 1:
            raise InvalidInput(f"{name} = {size}; it must be a whole number of at least 1")
    if options.params is not None and not 0 < options.params < 1e18:
        raise InvalidInput(f"params = {options.params:g}; it must be above 0 and below 1e18")
    notes: Notes = ()
    published = None if "arch" in known or options.params is not None else named_shape(title)
    if published is not None:
        known, notes = _change(title, published, known)
    arch = str(known.get("arch", USUAL_ARCH)).strip().lower()
    known["arch"] = name_style(arch) or arch
    if options.seq is not None:
        known["seq"] = options.seq
    if all(known.get(name) for name in ("n_layers", "hidden", "heads", "vocab", "seq")):
        return known, notes
    guessed, told = _guess(title, known, options.params)
    return {**known, **guessed}, (*notes, told)


_DRAWN_FROM_WIDTH = ("heads", "kv_heads", "head_dim", "ffn", "moe_ffn")


def _change(title: str, published: dict[str, Any], given: dict[str, Any]) -> tuple[dict[str, Any], Notes]:
    """A known model with single sizes of its own; heads and MLP of another width are not the published ones."""
    kept = {name: value for name, value in published.items() if "hidden" not in given or name not in _DRAWN_FROM_WIDTH}
    changed = {name: value for name, value in given.items() if published.get(name) != value}
    words = ", ".join(f"{name} = {value}" for name, value in changed.items())
    return {**kept, **given}, (f"{title} is built with {words}, all else as published",) if changed else ()


def usual_seq(options: WorkloadOptions) -> int | None:
    """Tokens of a sample of a transformer that is given by its sizes; None of images."""
    arch = str(options.arch or USUAL_ARCH).strip().lower()
    return None if arch == "vit" else USUAL_SEQ.get(name_style(arch) or arch, OTHER_SEQ)


def _guess(title: str, known: dict[str, Any], params: float | None) -> tuple[dict[str, Any], str]:
    arch = known["arch"]
    vocab = known.get("vocab") or USUAL_VOCAB.get(arch, OTHER_VOCAB)
    layers, hidden = known.get("n_layers"), known.get("hidden")
    if layers and hidden:
        ground = f"{layers} layers of {hidden}"
    elif params:
        layers, hidden = draw_layers(params, vocab=vocab)
        ground = f"{params / GIGA:.3g} billion parameters, so {layers} layers of {hidden}"
    else:
        raise InvalidInput(
            f"the shape of {title or 'the model'} is not known; give --layers and --hidden, or --params such as 7B"
        )
    told = f"the shape of {title or 'the model'} is not known; {arch} with {ground} is assumed"
    heads = known.get("heads") or max(1, hidden // (HEAD_DIM if hidden >= 2048 else 64))
    while hidden % heads:
        heads -= 1
    gated = STYLES.get(arch, {}).get("gated", False) if known.get("gated") is None else known["gated"]
    guessed = {
        # Three matrices of 8/3 the width weigh what two of 4 do (Shazeer 2020).
        "ffn": known.get("ffn") or (HEAD_DIM * round(8 / 3 * hidden / HEAD_DIM) if gated else 4 * hidden),
        "arch": arch,
        "n_layers": layers,
        "hidden": hidden,
        "heads": heads,
        "vocab": vocab,
        "seq": known.get("seq") or USUAL_SEQ.get(arch, OTHER_SEQ),
    }
    return guessed, told


def draw_layers(num_parameters: float, *, vocab: int) -> tuple[int, int]:
    """Layers and width of a plain stack with so many parameters, in the usual proportion; heads in eights, as plans split."""
    layers_only, hidden = num_parameters, 0
    for _ in range(3):
        width = ASPECT * (layers_only / (12 * ASPECT**2)) ** (1 / 3)
        step = 8 * (HEAD_DIM if width >= 2048 else 64)
        hidden = max(step, step * round(width / step))
        layers_only = max(0.3 * num_parameters, num_parameters - 2 * vocab * hidden)
    return max(1, round(layers_only / (12 * hidden**2))), hidden


def build_shape(
    title: str, shape: dict[str, Any], recipe: dict[str, Any], *, batch: int, style: dict[str, Any] | None = None
) -> Graph:
    sizes = {name: value for name, value in shape.items() if name in (*SHAPE, "seq")}
    # What a person cannot say but a published model has: windows, ranks of latent attention, rows of its positions.
    rarer = {name: value for name, value in shape.items() if name not in sizes}
    return from_shape(name=title, batch=batch, style={**rarer, **(style or {})} or None, **sizes, **recipe)
