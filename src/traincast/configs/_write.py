"""A question with its plan to the text of a project's file; what the file has no place for is an error that names it."""

import dataclasses
import json
import shlex
from collections.abc import Mapping
from typing import Any

from traincast.catalog import STYLES, load_facts
from traincast.configs._merge import flatten_question
from traincast.configs._nouns import ConfigFormat, Sheet
from traincast.configs._read import read_config
from traincast.configs._registry import FORMATS
from traincast.errors import IllegalPlan, InvalidInput
from traincast.spec import SHAPE, ConfigText, Parallelism, Question, RegimeOptions

_MUST = {
    "tensor": 1, "pipeline": 1, "context": 1, "context_method": "ring", "expert": 1, "zero": 0, "virtual_stages": 1,
    "shard": None,
    "offload_optimizer": False, "offload_weights": False, "offload_activations": False, "servers": 0, "asynchronous": False,
    "recompute": "none", "micro_batches": 1,
}  # fmt: skip
"""What of a plan a file must say where it is not this."""
_LENIENT = ("recompute", "micro_batches", "shard", "expert_tensor", "offload_weights", "offload_activations")
"""Said to the training script where a launcher's file has no place for it; a comment says so."""
_PLAIN = ("pretraining", "finetuning", "lora", "qlora", "dora")
"""Regimes that the other fields say."""
LAUNCHERS = ("deepspeed", "accelerate")
"""Formats that describe the launch and not the job."""


def write_config(
    question: Question, plan: Parallelism, kind: str, *, num_nodes: int = 1, devices_per_node: int = 1
) -> str:
    """The file that asks a project for the same training. The question is complete: its batch and its stack are known."""
    chosen, sheet = _fill(question, plan, kind, num_nodes=num_nodes, devices_per_node=devices_per_node)
    return _TEXTS[chosen.syntax](sheet)


def list_unwritten(
    question: Question, plan: Parallelism, kind: str, *, num_nodes: int = 1, devices_per_node: int = 1
) -> list[str]:
    """What a file without comments (json) says otherwise or not at all, a sentence each; none where comments say it."""
    chosen, sheet = _fill(question, plan, kind, num_nodes=num_nodes, devices_per_node=devices_per_node)
    return sheet.comments if chosen.syntax == "json" else []


def _fill(
    question: Question, plan: Parallelism, kind: str, *, num_nodes: int, devices_per_node: int
) -> tuple[ConfigFormat, Sheet]:
    chosen = FORMATS.find(kind)
    if chosen.write is None:
        raise InvalidInput(f"{chosen.title} is read and not written; formats that are: {', '.join(writable())}")
    sheet = Sheet(fields=_fields(question, plan, num_nodes=num_nodes, devices_per_node=devices_per_node))
    chosen.write(sheet)
    _check(chosen, sheet, plan)
    if chosen.name not in LAUNCHERS:
        sheet.comments += _compare(chosen, sheet, _TEXTS[chosen.syntax](sheet))
    return chosen, sheet


def _compare(chosen: ConfigFormat, sheet: Sheet, text: str) -> list[str]:
    """The file is read back: what it says otherwise, or not at all, becomes a comment in it."""
    suffix = "sh" if chosen.syntax == "shell" else chosen.syntax
    reading = read_config(ConfigText(name=f"written.{suffix}", text=text, format=chosen.name))
    lost = []
    for name in _ECHOED:
        said, back = sheet.fields.get(f"workload.{name}"), reading.settings.get(f"workload.{name}")
        if said is None or (back is not None and back.value == said):
            continue
        end = "has no place in this file" if back is None else f"has no place in this file, which says {back.value}"
        lost.append(f"{name} = {said} {end}")
    return lost


_ECHOED = ("batch", "seq", "precision", "optimizer", "adapter_rank", "adapter_targets", "frozen_dtype")


def writable() -> list[str]:
    return sorted(name for name in FORMATS if FORMATS[name].write is not None)


def _fields(question: Question, plan: Parallelism, *, num_nodes: int, devices_per_node: int) -> dict[str, Any]:
    fields = flatten_question(question)
    for name in Parallelism.__dataclass_fields__:
        fields[f"parallelism.{name}"] = getattr(plan, name)
    if "parallelism.bucket_bytes" not in flatten_question(question):
        fields["parallelism.bucket_bytes"] = plan.bucket_bytes
    batch = fields.get("workload.batch", 1)
    fields |= {
        "workload.batch": batch, "job.global_batch": batch * plan.micro_batches * plan.data, "devices": plan.num_devices,
        "cluster.nodes": num_nodes, "cluster.devices_per_node": devices_per_node,
    }  # fmt: skip
    return fields | _shape(question)


def _shape(question: Question) -> dict[str, Any]:
    """The sizes of the model, said or as the catalogue has them, with what its architecture is made of."""
    said = {name: getattr(question.workload, name) for name in SHAPE if getattr(question.workload, name) is not None}
    facts = load_facts("model")
    name = None if "n_layers" in said else facts.get(question.source)
    entry = facts.entries[name] if name else {}
    style = STYLES.get(str(said.get("arch") or entry.get("style", "")), {})
    sizes = {**{key: value for key, value in entry.get("shape", {}).items() if key != "seq"}, **said}
    made = {
        "gated": style.get("gated", False), "rotary": style.get("positions") == "rotary",
        "rms_norm": style.get("norm") == "rms_norm", "tied": style.get("tied", False),
    }  # fmt: skip
    return {f"shape.{key}": value for key, value in {**made, **sizes}.items()} if sizes else {}


def _check(chosen: ConfigFormat, sheet: Sheet, plan: Parallelism) -> None:
    """Nothing that changes the plan is lost without a word."""
    lost = [
        name
        for name, usual in _MUST.items()
        if name in sheet.lost or (getattr(plan, name) != usual and f"parallelism.{name}" not in sheet.told)
    ]
    hard = [name for name in lost if name not in _LENIENT]
    if hard:
        listed = ", ".join(f"{name} = {getattr(plan, name)}" for name in hard)
        raise IllegalPlan(f"{chosen.title}'s file has no place for {listed}; emit another format, or plan without it")
    sheet.comments += [f"{name} = {getattr(plan, name)} has no place in this file" for name in lost]
    regime = sheet.fields.get("job.regime")
    if regime not in (None, *_PLAIN) and "job.regime" not in sheet.told and chosen.name not in LAUNCHERS:
        raise IllegalPlan(f"{chosen.title}'s file has no place for regime = {regime} here; emit another format")
    _check_regime(chosen, sheet)


def _check_regime(chosen: ConfigFormat, sheet: Sheet) -> None:
    """Adapters and devices that only generate make another job; what else a regime says and the file does not is a comment."""
    if chosen.name in LAUNCHERS:
        return
    for name in ("job.rollout_gpus", "job.rollout_lag", "workload.adapter_rank"):
        if sheet.fields.get(name) and name not in sheet.told:
            short = name.partition(".")[2]
            raise IllegalPlan(
                f"{chosen.title}'s file has no place for {short} = {sheet.fields[name]}; emit another format"
            )
    sheet.comments += [
        f"{item.name} = {value} has no place in this file"
        for item in dataclasses.fields(RegimeOptions)
        if item.name != "regime" and f"job.{item.name}" not in sheet.told
        if (value := sheet.fields.get(f"job.{item.name}")) is not None
    ]


def _write_json(sheet: Sheet) -> str:
    return json.dumps(sheet.tree, indent=2) + "\n"


def _write_yaml(sheet: Sheet) -> str:
    return _comments(sheet) + write_yaml(sheet.tree)


def _write_toml(sheet: Sheet) -> str:
    lines = [f"{key} = {_toml(value)}" for key, value in sheet.tree.items() if not isinstance(value, Mapping)]
    for name, table in sheet.tree.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return _comments(sheet) + "\n".join(lines).lstrip("\n") + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return json.dumps(value)


def _write_shell(sheet: Sheet) -> str:
    nodes, each = sheet.fields.get("cluster.nodes", 1), sheet.fields.get("cluster.devices_per_node", 1)
    start = f"torchrun --nnodes {nodes} --nproc_per_node {each} {sheet.program}"
    words = []
    for key, value in sheet.tree.items():
        name = f"--{key.replace('_', '-')}"
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            listed = value if isinstance(value, list) else [value]
            words.append(" ".join([name, *(shlex.quote(str(item)) for item in listed)]))
    return "#!/bin/bash\n" + _comments(sheet) + " \\\n    ".join([start, *words]) + "\n"


def _comments(sheet: Sheet) -> str:
    return "".join(f"# {line}\n" for line in sheet.comments)


_TEXTS = {"json": _write_json, "yaml": _write_yaml, "toml": _write_toml, "shell": _write_shell}


def write_yaml(value: Any, *, indent: int = 0) -> str:
    """Plain data as YAML: text is quoted as in JSON, which YAML reads too; text of several lines stands as a block."""
    pad = "  " * indent
    if isinstance(value, Mapping):
        return "".join(f"{pad}{key}:{_yaml_rest(item, indent)}" for key, item in value.items())
    lines = []
    for item in value:
        if isinstance(item, (Mapping, list, tuple)):
            body = write_yaml(item, indent=indent + 1)
            lines.append(f"{pad}- {body.lstrip()}")
        else:
            lines.append(f"{pad}- {json.dumps(item)}\n")
    return "".join(lines)


def _yaml_rest(item: Any, indent: int) -> str:
    if isinstance(item, (Mapping, list, tuple)):
        return f"\n{write_yaml(item, indent=indent + 1)}" if item else f" {json.dumps(item)}\n"
    if isinstance(item, str) and "\n" in item:
        pad = "  " * (indent + 1)
        return " |\n" + "".join(f"{pad}{line}".rstrip() + "\n" for line in item.rstrip("\n").split("\n"))
    return f" {json.dumps(item)}\n"
