"""A source, at the asked batch and sizes, to the graph of its step: of the catalogue, by its sizes, saved, or recorded."""

from pathlib import Path
from typing import Any

from traincast.catalog import load_facts, named_shape
from traincast.errors import InvalidInput
from traincast.resolve._data import check_data, without_data
from traincast.resolve._habits import fill_in_recipe
from traincast.spec import SAMPLED, SHAPE, Graph, Notes, Parallelism, Scalable, Stack, WorkloadOptions

MODEL_FOLDERS = ("saved_model.pb", "config.json")
"""A folder that holds one of these is a model."""


def load_model(source: str, options: WorkloadOptions, plan: Parallelism, stack: Stack) -> tuple[Graph, Notes]:
    """The step that a source names, at the asked batch, and what is assumed of it. A catalogue workload recomputes and runs as
    its stack would; what is recorded is rewritten by the plan."""
    check_data(options)
    options = without_data(options)
    is_recorded = source.startswith("timm:") or find_configuration(source) is not None
    is_described = options.has_shape or not (
        is_recorded or source.endswith(".json") or _is_model_file(source, Path(source))
    )
    if options.kernels is not None and is_described:
        raise InvalidInput(
            f"{source} is described by the catalogue, not recorded, so --kernels cannot change it; say --fused or --attention"
        )
    if options.has_shape or (
        any(getattr(options, name) is not None for name in SHAPE) and named_shape(source) is not None
    ):
        return _build_shape(source, options, plan, stack)
    path = Path(source)
    if is_recorded:
        return _record(source, options), ()
    if source.endswith((".json", ".json.gz")):
        return _load_json(path, options), ()
    if path.suffix in (".toml", ".parquet", ".csv", ".pt", ".pth", ".safetensors"):
        raise InvalidInput(
            f"{source} is not a model; use a catalogue name, my_file.py:build, model.onnx, config.json, a saved graph or "
            "a job file (TOML)"
        )
    if _is_model_file(source, path):
        file = Path(source.rpartition(":")[0] if ".py:" in source else source)
        if not file.exists():
            raise InvalidInput(f"there is no file {file}")
        return _record(source, options), ()
    return _catalogue_workload(source, options, plan, stack)


def _record(source: str, options: WorkloadOptions) -> Graph:
    from traincast.resolve._recorded import capture

    return capture(source, options)


def find_configuration(source: str) -> dict[str, Any] | None:
    """What the own package of a named workload builds it from; None for what the catalogue describes itself."""
    facts = load_facts("model")
    name = facts.get(source)
    entry = facts.entries[name] if name else {}
    return {"name": name, **entry["config"]} if entry.get("builder") == "recorded" else None


def find_length(source: str, options: WorkloadOptions) -> int | None:
    """Tokens of a sample: as asked, or as the model was published; None where it is not known."""
    if options.seq is not None:
        return options.seq
    facts = load_facts("model")
    name = facts.get(source)
    found = facts.entries[name].get("shape", {}).get("seq") if name else None
    return found if isinstance(found, int) else None


def _is_model_file(source: str, path: Path) -> bool:
    is_python = source.endswith(".py") or ".py:" in source
    return (
        is_python
        or path.suffix in (".onnx", ".pb", ".pbtxt", ".meta", ".keras", ".mlir", ".stablehlo", ".jaxpr")
        or any((path / name).is_file() for name in MODEL_FOLDERS)
    )


def _load_json(path: Path, options: WorkloadOptions) -> Graph:
    from traincast.files import load_saved

    loaded = load_saved(path)
    if loaded is not None:
        _refuse_changes(path, options)
        if isinstance(loaded, Scalable):
            return loaded.at(options.batch) if options.batch is not None else loaded.small
        if options.batch is not None and options.batch != loaded.batch_size:
            raise InvalidInput(
                f"{path} was captured at a batch of {loaded.batch_size}, not {options.batch}; capture it again at "
                f"{options.batch}, or at two batch sizes to use any"
            )
        return loaded
    return _record(str(path), options)


def _refuse_changes(path: Path, options: WorkloadOptions) -> None:
    changed = [name for name in options.given() if name != "batch"]
    if changed:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise InvalidInput(f"{path} is a captured graph, so {flags} cannot change it; capture the model again")


_WITHOUT_TOKENS = ("cnn", "detection", "segmentation", "recsys", "gnn")
_SIZES = ("seq", "input_size", "num_classes", *SAMPLED)


def _catalogue_workload(source: str, options: WorkloadOptions, plan: Parallelism, stack: Stack) -> tuple[Graph, Notes]:
    if ("/" in source or "\\" in source) and Path(source).exists():
        raise InvalidInput(f"{source} is neither a model file nor a catalogue name")
    from traincast.catalog import workload

    given = options.given()
    facts = load_facts("model")
    sizes = [name for name in SHAPE if name in given]
    if sizes:
        facts.find(source)
        raise InvalidInput(
            f"{source} is no plain transformer, so it has its own {', '.join(sizes)}; leave them out, or build a transformer "
            "with --arch, --layers and --hidden"
        )
    name = facts.get(source)
    if "seq" in given and name and facts.entries[name]["family"] in _WITHOUT_TOKENS:
        raise InvalidInput(
            f"{source} takes no sequences, so a length of {given['seq']} (--seq, or what a regime generates) cannot change it; "
            "leave it out"
        )
    heads = facts.entries[name].get("shape", {}).get("heads") if name else None
    recipe, notes = fill_in_recipe(options, plan, stack, heads=heads)
    more = {key: given[key] for key in ("batch", *_SIZES) if key in given}
    return workload(source, **recipe, **more, **read_head(options.head)), notes


def _build_shape(title: str, options: WorkloadOptions, plan: Parallelism, stack: Stack) -> tuple[Graph, Notes]:
    from traincast.resolve._shape import build_shape, complete_shape

    unused = [name for name in ("input_size", "num_classes", *SAMPLED) if getattr(options, name) is not None]
    if unused:
        raise InvalidInput(f"a transformer given by its sizes has no {', '.join(unused)}")
    shape, guessed = complete_shape(title, options)
    recipe, notes = fill_in_recipe(options, plan, stack, heads=shape.get("heads"))
    style = read_head(options.head)
    batch = 1 if options.batch is None else options.batch
    return build_shape(title, shape, recipe, batch=batch, style=style), (*guessed, *notes)


def read_head(word: str | None) -> dict[str, Any]:
    """What a language model ends in, as its shape says it."""
    if word in (None, "lm"):
        return {}
    if word != "value":
        raise InvalidInput(f"head = {word!r}; allowed: lm, value")
    return {"head": "classes", "num_classes": 1}
