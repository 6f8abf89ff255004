"""Several readings and what a question says itself to one question; what differs between files is named."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from traincast.catalog import usual_length
from traincast.configs._models import describes_whole, find_model, find_sizes, own_context, read_sizes
from traincast.configs._nouns import ASSUMED, SAID, Reading, Setting
from traincast.configs._read import read_config
from traincast.errors import InvalidInput
from traincast.spec import Notes, Question, WorkloadOptions

MOST_NAMES = 12
"""Keys of one table beyond which only the table and their number are named."""
MOST_HARMLESS = 16
"""Keys without effect that a sentence of an answer names; `traincast config` names all."""
_LENGTHS = ("job.steps", "job.samples", "job.epochs", "job.tokens")
_BATCHES = ("workload.batch", "parallelism.micro_batches", "job.global_batch")


def merge_configs(question: Question, *, local: bool = True) -> Question:
    """The question with what its configurations say; what it says itself wins. Names of models are looked up, on this machine
    too where `local`."""
    if any(isinstance(config, str) for config in question.configs) and not local:
        raise InvalidInput("configurations are given here as texts, not as files")
    if question.configs:
        readings = [read_config(config) for config in question.configs]
        question = _fill_in(question, readings)
    return _look_up(question, local=local)


def _fill_in(question: Question, readings: Sequence[Reading]) -> Question:
    flags = flatten_question(question)
    chosen, said = _choose(readings, flags)
    said += _sharpen_precision(chosen)
    for name in _superseded(flags, chosen):
        chosen.pop(name, None)
    said += _complete_epochs(flags, chosen)
    sections: dict[str, dict[str, Any]] = {"workload": {}, "cluster": {}, "parallelism": {}, "job": {}}
    for name, setting in chosen.items():
        section, _, field = name.partition(".")
        if field:
            sections[section][field] = setting.value
    for reading in readings:
        said += describe(reading, flags, chosen)
    source = question.source or (chosen["source"].value if "source" in chosen else "")
    if not source and not question.workload.has_shape and "workload.n_layers" not in chosen:
        names = ", ".join(reading.name for reading in readings)
        raise InvalidInput(
            f"{names} names no model that is known; name one: traincast forecast llama-3-8b --config ..."
        )
    workload = {**sections["workload"], **question.workload.given()}
    if question.source or question.workload.has_shape:
        # A model that is named on the command line has its own sizes.
        sizes = {name for name in sections["workload"] if f"workload.{name}" in _SHAPES}
        workload = {
            name: value for name, value in workload.items() if name not in sizes or name in question.workload.given()
        }
    return dataclasses.replace(
        question, source=source, workload=WorkloadOptions(**workload),
        cluster=_override(sections["cluster"], question.cluster),
        parallelism={**sections["parallelism"], **question.parallelism}, job={**sections["job"], **question.job},
        configs=(), said=(*question.said, *said),
    )  # fmt: skip


_SHAPES = frozenset(
    f"workload.{name}"
    for name in ("arch", "n_layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated", "tied", "vocab", "experts",
                 "experts_per_token", "moe_ffn", "params")
)  # fmt: skip


def flatten_question(question: Question) -> dict[str, Any]:
    """What a question says itself, by section and name."""
    parts = {
        "workload": question.workload.given(),
        "cluster": question.cluster,
        "parallelism": question.parallelism,
        "job": question.job,
    }
    found = {f"{section}.{name}": value for section, table in parts.items() for name, value in table.items()}
    return {**found, **({"source": question.source} if question.source else {})}


def _choose(readings: Sequence[Reading], flags: Mapping[str, Any]) -> tuple[dict[str, Setting], Notes]:
    """For each field the strongest setting, of equal ones the last; two that differ are named."""
    chosen: dict[str, tuple[Setting, Reading]] = {}
    said = []
    for reading in readings:
        for name, setting in reading.settings.items():
            known = chosen.get(name)
            if known is not None and setting.strength < known[0].strength:
                continue
            if (
                known is not None
                and known[0].strength == setting.strength == SAID
                and known[0].value != setting.value
                and name not in flags
            ):
                said.append(
                    f"{known[1].name} says {_show(name)} = {known[0].value} ({known[0].origin}), {reading.name} says "
                    f"{setting.value} ({setting.origin}): {setting.value} is taken"
                )
            chosen[name] = (setting, reading)
    return {name: setting for name, (setting, _) in chosen.items()}, tuple(said)


def _sharpen_precision(chosen: dict[str, Setting]) -> Notes:
    """A trainer's half precision under an engine that keeps fp32 copies of half-precision weights."""
    engine, word = chosen.get("job.stack"), chosen.get("workload.precision")
    if engine is None or word is None or engine.value != "deepspeed" or word.strength == SAID:
        return ()
    if word.value not in ("bf16-amp", "fp16-amp"):
        return ()
    chosen["workload.precision"] = dataclasses.replace(word, value=word.value.removesuffix("-amp"))
    return (f"{word.origin} under {engine.value}: weights in {word.value[:4]} with fp32 copies",)


def _superseded(flags: Mapping[str, Any], chosen: Mapping[str, Setting]) -> set[str]:
    """What a file says in another way than a flag does: its length in epochs where the flag gives steps, and the like."""
    gone = set(flags)
    if any(name in flags for name in _LENGTHS):
        gone |= set(_LENGTHS)
    if "cluster.node" in flags:
        gone |= {"cluster.device"}
    if "cluster.groups" in flags:
        gone |= {name for name in chosen if name.startswith("cluster.")}
    if {"cluster.nodes", "cluster.devices_per_node", "cluster.placement"} & flags.keys() and "cluster.device" in flags:
        gone |= {"cluster.nodes", "cluster.devices_per_node"}
    if flags.keys() & _COUNTS or _degrees(flags):
        # Other devices or degrees than the file was written for: what follows from its own is not kept.
        weak = chosen.get("parallelism.data")
        if weak is not None and weak.strength < SAID:
            gone.add("parallelism.data")
    batches = [name for name in _BATCHES if name in flags]
    if "job.global_batch" in batches and "parallelism.micro_batches" not in batches:
        gone.add("parallelism.micro_batches")
    elif batches and "job.global_batch" not in batches:
        gone.add("job.global_batch")
    return gone


_COUNTS = {"cluster.nodes", "cluster.devices_per_node", "cluster.placement", "cluster.groups", "cluster.node"}
"""What says how many devices there are."""


def _degrees(flags: Mapping[str, Any]) -> bool:
    return any(f"parallelism.{axis}" in flags for axis in ("tensor", "pipeline", "context"))


def _complete_epochs(flags: Mapping[str, Any], chosen: dict[str, Setting]) -> Notes:
    """Epochs say how long a job is only where the samples of one are known."""
    if "job.epochs" not in chosen or "job.epoch_samples" in flags or "job.epoch_samples" in chosen:
        return ()
    epochs = chosen.pop("job.epochs").value
    if any(name in chosen or name in flags for name in _LENGTHS):
        return ()
    return (f"{epochs:g} epochs of unknown length; one step is forecast (give --epoch-samples)",)


def _override(table: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**table, **flags}
    if "node" in flags and "device" not in flags:
        merged.pop("device", None)
    return merged


def describe(reading: Reading, flags: Mapping[str, Any], chosen: Mapping[str, Setting]) -> Notes:
    """What a reader of the answer must know about a file."""
    said = [f"{reading.name}: {note}" for note in reading.notes]
    for name, setting in reading.settings.items():
        if setting.strength == ASSUMED and chosen.get(name) is setting and name not in flags and name != "job.stack":
            said.append(f"{reading.name}: {setting.origin}")
    if reading.unused:
        said.append(f"{reading.name}: not used: {name_keys(reading.unused)}")
    if reading.harmless:
        said.append(
            f"{reading.name}: without effect on time and memory: {name_keys(reading.harmless, most=MOST_HARMLESS)}"
        )
    return tuple(said)


def name_keys(keys: Iterable[str], *, most: int = 60) -> str:
    """All keys by name; of a table with many, the table and their number."""
    listed = list(keys)
    if len(listed) <= MOST_NAMES:
        return ", ".join(listed)
    if len(listed) > most:
        rest = len(listed) - most
        return f"{name_keys(listed[:most])} and {rest} more (traincast config FILE lists all)"
    found: list[str] = []
    for table, group in groupby(listed, key=lambda key: key.partition(".")[0] if "." in key.partition(" ")[0] else ""):
        names = list(group)
        found += names if not table or len(names) <= 3 else [f"{table}.* ({len(names)} keys)"]
    return ", ".join(found)


def _show(name: str) -> str:
    return name.partition(".")[2] or name


def _look_up(question: Question, *, local: bool) -> Question:
    """hf:org/name as a workload of the catalogue, or as the config.json that lies on this machine."""
    if not question.source.startswith("hf:"):
        return _read_model(question) if local else question
    name = question.source.removeprefix("hf:")
    if question.workload.has_shape:
        return dataclasses.replace(question, source=name)
    known = find_model(name)
    if known is not None:
        note = f"{name} is taken to be {known} of the catalogue"
        noted = any(note in sentence for sentence in question.said)
        return dataclasses.replace(question, source=known, said=question.said if noted else (*question.said, note))
    file = find_cached(name) if local else None
    if file is None:
        raise InvalidInput(
            f"{name} is neither in the catalogue nor in the Hugging Face cache of this machine; fetch its config once with "
            f"'hf download {name} config.json', give the file (--config config.json), or give sizes: --arch llama --layers 32 "
            "--hidden 4096 --heads 32 --vocab 32000"
        )
    return _from_cache(question, name, file)


def _from_cache(question: Question, name: str, file: Path) -> Question:
    noted = dataclasses.replace(
        question, source=str(file), said=(*question.said, f"{name}: its config.json lies in the cache of this machine")
    )
    return _read_model(noted, name=name)


def is_model_config(source: str) -> bool:
    """Whether a source is the file of a Hugging Face configuration; what it holds is looked at later."""
    return source.endswith(".json") and Path(source).is_file()


def _read_model(question: Question, *, name: str = "") -> Question:
    """A config.json as a workload of the catalogue or as sizes, where they say all there is; any other is recorded."""
    from traincast.files import read_json

    if question.workload.has_shape or not is_model_config(question.source):
        return question
    config = read_json(question.source)
    if not isinstance(config, Mapping) or "model_type" not in config:
        return question
    file = Path(question.source).name
    sizes = read_sizes(config) if describes_whole(config) else None
    same = find_sizes(sizes) if sizes is not None else None
    if same is not None:
        words = f"{name or file} has the sizes of {same} of the catalogue"
        return dataclasses.replace(question, source=same, said=(*question.said, words))
    options, said = question.workload, list(question.said)
    context = own_context(config)
    if context is not None and options.seq is None and question.job.get("regime") is None:
        length, words = usual_length(context)
        said.append(words)
        options = dataclasses.replace(options, seq=length)
    if sizes is None:
        return dataclasses.replace(question, workload=options, said=tuple(said))
    said.append(f"{name or file}: its sizes describe the whole model, so that nothing is recorded")
    own = name or str(config.get("_name_or_path") or config["model_type"])
    return dataclasses.replace(question, source=own, workload=dataclasses.replace(options, **sizes), said=tuple(said))


def find_cached(name: str) -> Path | None:
    """The config.json of a model in the cache of huggingface_hub, without its library and without a network."""
    import os
    import re

    if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", name, re.ASCII) is None:
        raise InvalidInput(f"hf:{name[:80]} is no name of a model; it is written hf:org/name")
    home = os.environ.get("HF_HOME") or str(
        Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "huggingface"
    )
    root = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub") / f"models--{name.replace('/', '--')}"
    newest = sorted((root / "snapshots").glob("*/config.json"), key=lambda file: file.stat().st_mtime)
    main = root / "refs" / "main"
    if main.is_file():
        revision = main.read_text(errors="replace").strip()[:80]
        preferred = root / "snapshots" / revision / "config.json"
        if re.fullmatch(r"[\w.-]+", revision, re.ASCII) and preferred.is_file():
            return preferred
    return newest[-1] if newest else None
