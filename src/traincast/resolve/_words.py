"""A question to the words that ask it, and words to a question: the command line's and Python's."""

import re
from collections.abc import Mapping
from typing import Any

from traincast.errors import InvalidInput, did_you_mean
from traincast.spec import QUESTION_FIELDS, Asked, Cluster, Parallelism, Question, WorkloadOptions
from traincast.units import READERS

_HARDWARE = (
    re.compile(r"(?:(?P<nodes>\d+)\s*x\s*)?(?P<size>\d+)\s*x\s*(?P<device>[A-Za-z].*)"),
    re.compile(r"(?P<device>[A-Za-z][^:]*):(?P<size>\d+)"),
    re.compile(r"(?:(?P<nodes>\d+)\s*x\s*)?(?P<size>\d+)(?P<device>)"),
)


def write_command(question: Question, *, command: str = "forecast") -> list[str]:
    """The words that ask a question on the command line; reading them gives the same question."""
    words = ["traincast", command, *([question.source] if question.source else [])]
    for config in question.configs:
        if not isinstance(config, str):
            raise InvalidInput(f"the text of {config.name} cannot be said on the command line; save it to a file")
        words += ["--config", config]
    parts: dict[str, Mapping[str, Any]] = {
        "workload": question.workload.given(), "cluster": question.cluster, "parallelism": question.parallelism,
        "job": question.job,
    }  # fmt: skip
    known = {(item.section, item.name): item for item in QUESTION_FIELDS}
    for section, values in parts.items():
        for name, value in values.items():
            item = known.get((section, name))
            if item is None:
                raise InvalidInput(f"{section}.{name} = {value!r} cannot be said on the command line; use a job file")
            words += item.words_for(value)
    if question.calibration is not None:
        if not isinstance(question.calibration, str):
            raise InvalidInput(
                f"calibration {question.calibration.name!r} cannot be said on the command line; save it to a file"
            )
        words += known["", "calibration"].words_for(question.calibration)
    return words


def is_hardware(text: str) -> bool:
    """Whether a word names devices and not only how many there are."""
    return any(pattern.fullmatch(_spell_out(text)) for pattern in _HARDWARE[:2])


def _spell_out(text: str) -> str:
    """'h100' as '1xh100' and '2x4090' as '2xrtx-4090': a device by its name alone is one, and its name may be a number."""
    count, _, name = text.strip().rpartition("x")
    if not re.fullmatch(r"[A-Za-z]?[\w.-]+", name if count else text.strip()):
        return text.strip()
    from traincast.catalog import load_facts

    devices = load_facts("device")
    if found := devices.get(text.strip()):
        return f"1x{found}"
    if name.isdigit() and count.replace("x", "").isdigit() and (found := devices.get(name)):
        return f"{count}x{found}"
    return text.strip()


def read_hardware(text: str, cluster: Mapping[str, Any]) -> dict[str, Any]:
    """'2x8xh100' as a table of nodes, devices and their name; more devices than a node holds are spread over nodes."""
    found = next((match for pattern in _HARDWARE if (match := pattern.fullmatch(_spell_out(text)))), None)
    if "+" in text or "," in text:
        raise InvalidInput(
            f"--gpus {text!r} names several kinds of devices; write them as [[cluster.groups]] of a job file (TOML)"
        )
    if found is None:
        raise InvalidInput(f"--gpus {text!r}; write 8xh100, 2x8xh100 (nodes x devices) or h100:8")
    nodes, size, device = found.groupdict().get("nodes"), int(found["size"]), found["device"].strip()
    table: dict[str, Any] = {"device": device} if device else {}
    named = device or cluster.get("device")
    if not named and "node" not in cluster:
        raise InvalidInput(f"--gpus {text!r} does not say which; write 8xh100, or add --device")
    if nodes is not None:
        return {**table, "nodes": int(nodes), "devices_per_node": size}
    machine = cluster.get("node")
    if not isinstance(named, str) and (not isinstance(machine, str) or "nodes" in cluster):
        return {**table, "devices_per_node": size}
    from traincast import catalog

    if isinstance(named, str) and size:
        each = catalog.usual_node_size(named, size)
        return {**table, "nodes": size // each, "devices_per_node": each}
    usual = catalog.node(str(machine)).devices_per_node if size else 1
    if size <= usual or size % usual:
        return {**table, "nodes": 1, "devices_per_node": size}
    return {**table, "nodes": size // usual, "devices_per_node": usual}


def read_amount(item: Asked, value: Any) -> Any:
    """An amount that a person wrote with a unit (80GB, 10k, 36h) as a number; anything else as it is."""
    if not item.unit or not isinstance(value, str):
        return value
    amount = READERS[item.unit](value)
    return int(amount) if item.kind is int and amount.is_integer() else amount


def ask_in_words(
    source: str, cluster: str | Mapping[str, Any] | Cluster | None = None, plan: Parallelism | None = None, **said: Any
) -> Question:
    """A question from a model's name, hardware such as '8xh100' and any field of a question by its name; amounts may be written
    as on the command line (tokens='15B')."""
    known = {item.name: item for item in QUESTION_FIELDS}
    parts: dict[str, dict[str, Any]] = {name: {} for name in ("workload", "cluster", "parallelism", "job", "")}
    for name, value in said.items():
        if name not in known:
            raise InvalidInput(f"a question has no {name!r}{did_you_mean(name, known)}; see traincast forecast --help")
        item = known[name]
        parts[item.section][name] = read_amount(item, value)
    if isinstance(cluster, str):
        parts["cluster"] = {**read_hardware(cluster, parts["cluster"]), **parts["cluster"]}
    elif isinstance(cluster, Cluster):
        parts["cluster"] = describe_cluster(cluster)
    elif cluster is not None:
        parts["cluster"] = {**cluster, **parts["cluster"]}
    if plan is not None:
        plain = Parallelism()
        fields = {item.name for item in QUESTION_FIELDS if item.section == "parallelism" and hasattr(plan, item.name)}
        values = {name: getattr(plan, name) for name in fields if getattr(plan, name) != getattr(plain, name)}
        parts["parallelism"] = {"zero": plan.zero, **values, **parts["parallelism"]}
    return Question(
        source=source, workload=WorkloadOptions(**parts["workload"]), cluster=parts["cluster"],
        parallelism=parts["parallelism"], job=parts["job"], calibration=parts[""].get("calibration"),
    )  # fmt: skip


def describe_cluster(cluster: Cluster) -> dict[str, Any]:
    """The cluster part of a question that asks for it."""
    if len(cluster.groups) != 1:
        raise InvalidInput(
            "a question in words takes one group of nodes; describe mixed nodes in a job file or as a Cluster"
        )
    group = cluster.groups[0]
    table: dict[str, Any] = {
        "device": group.device, "nodes": group.num_nodes, "devices_per_node": group.devices_per_node, "intra": group.intra,
        "inter": group.inter,
    }  # fmt: skip
    if group.usd_per_hour is not None:
        table["price_per_device"] = group.usd_per_hour / group.devices_per_node
    for name in ("nvme_bytes_per_s", "host_memory_bytes"):
        if getattr(group, name) is not None:
            table[name] = getattr(group, name)
    return table
