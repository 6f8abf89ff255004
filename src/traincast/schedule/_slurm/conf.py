"""The text of slurm.conf to parameters, nodes and partitions."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.schedule._slurm.hostlists import expand_hosts, split_outside

_PAIR = re.compile(r'(?<![\w/.-])([\w/.-]+)\s*(\+?=)\s*("[^"]*"|\S*)')
_COMMENT = re.compile(r"(?<!\\)#.*")
_TIME = re.compile(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?")
MOST_INCLUDES = 50
Line = Mapping[str, str]


@noun
class ConfNode:
    """One node by the hardware that slurm.conf gives it."""

    name: str
    num_cpus: int
    memory_bytes: float
    gpus: tuple[tuple[str, int], ...]
    features: frozenset[str]
    weight: int
    state: str

    @property
    def num_gpus(self) -> int:
        return sum(count for _, count in self.gpus)


@noun
class ConfPartition:
    """One partition; times in seconds, infinity where there is no limit."""

    name: str
    nodes: tuple[str, ...]
    words: Line
    """All that its line says, with the defaults above it, by lower-case key."""


@noun
class SlurmConf:
    """Everything that slurm.conf says, by lower-case key."""

    words: Line
    nodes: Mapping[str, ConfNode]
    partitions: Mapping[str, ConfPartition]


def read_conf(path: Path) -> SlurmConf:
    words: dict[str, str] = {}
    node_lines: list[dict[str, str]] = []
    part_lines: list[dict[str, str]] = []
    set_lines: list[dict[str, str]] = []
    defaults: dict[str, dict[str, str]] = {"nodename": {}, "partitionname": {}}
    for line in _lines(path, [path]):
        key = next((key for key in ("nodename", "partitionname", "nodeset") if key in line), None)
        if key is None:
            words.update(line)
            continue
        if line[key] == "DEFAULT":
            defaults[key].update(line)
            continue
        target = {"nodename": node_lines, "partitionname": part_lines, "nodeset": set_lines}[key]
        target.append({**defaults.get(key, {}), **line})
    nodes = {node.name: node for line in node_lines for node in _read_nodes(line)}
    if not nodes:
        raise InvalidInput(f"{path} names no node (NodeName=...); is it a slurm.conf with its Include files?")
    sets = {line["nodeset"]: _find_set(line, nodes) for line in set_lines}
    partitions = {}
    for line in part_lines:
        name = line["partitionname"]
        partitions[name] = ConfPartition(name=name, nodes=_find_members(line, nodes, sets), words=line)
    if not partitions:
        raise InvalidInput(f"{path} names no partition (PartitionName=...)")
    return SlurmConf(words=words, nodes=nodes, partitions=partitions)


def _lines(path: Path, seen: list[Path]) -> Iterator[dict[str, str]]:
    """Logical lines as pairs; continuations are joined, comments dropped and included files read in place."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    pending = ""
    for raw in text.splitlines():
        line = pending + _COMMENT.sub("", raw)
        if line.rstrip().endswith("\\"):
            pending = line.rstrip()[:-1]
            continue
        pending = ""
        words = line.split(None, 1)
        if len(words) == 2 and words[0].lower() == "include":
            if len(seen) >= MOST_INCLUDES:
                raise InvalidInput(f"{path}: more than {MOST_INCLUDES} included files; does a file include itself?")
            inner = path.parent / words[1].strip().strip('"')
            seen.append(inner)
            yield from _lines(inner, seen)
        elif line.strip():
            yield _read_pairs(line, path)


def _read_pairs(line: str, path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, sign, value in _PAIR.findall(line):
        value = value.strip('"').replace("\\#", "#")
        name = key.lower()
        found[name] = f"{found[name]},{value}" if sign == "+=" and name in found else value
    if not found:
        raise InvalidInput(f"{path}: the line {line.strip()[:60]!r} is not Key=Value")
    return found


def _read_nodes(line: Line) -> Iterator[ConfNode]:
    sockets = _whole(line.get("boards", "1")) * _whole(line.get("socketsperboard", line.get("sockets", "1")))
    cores = sockets * _whole(line.get("corespersocket", "1")) * _whole(line.get("threadspercore", "1"))
    cpus = _whole(line["cpus"]) if "cpus" in line else _whole(line["procs"]) if "procs" in line else cores
    features = frozenset(re.split(r"[,\s]+", line.get("features", line.get("feature", "")))) - {""}
    for name in expand_hosts(line["nodename"]):
        yield ConfNode(
            name=name,
            num_cpus=cpus - _whole(line.get("corespeccount", "0")),
            memory_bytes=(read_float(line, "realmemory", 1.0) - read_float(line, "memspeclimit", 0.0)) * 2**20,
            gpus=read_gres(line.get("gres", "")),
            features=features,
            weight=_whole(line.get("weight", "1")),
            state=line.get("state", "UNKNOWN").upper(),
        )


def read_gres(text: str) -> tuple[tuple[str, int], ...]:
    """`gpu:a100:8(S:0-1),gpu:4` to types and counts; an untyped GPU has the type ''."""
    found = []
    for part in split_outside(text):
        words = re.sub(r"\(.*\)", "", part).split(":")
        if words[0] != "gpu":
            continue
        typed = len(words) > 2 or (len(words) == 2 and not words[1][:1].isdecimal())
        count = words[-1] if len(words) > 1 and words[-1][:1].isdecimal() else "1"
        found.append((words[1] if typed else "", _whole(count)))
    return tuple(found)


def read_float(words: Mapping[str, str], key: str, default: float) -> float:
    """The value of a key as a number; the default where it is not said."""
    text = words.get(key, "").strip()
    if not text:
        return default
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise InvalidInput(f"slurm.conf has {key}={text[:60]!r} where a number belongs")
    return found


def _whole(text: str) -> int:
    found = re.fullmatch(r"(\d{1,18})([KMG]?)", text.strip(), re.IGNORECASE)
    if found is None:
        raise InvalidInput(f"slurm.conf has {text!r} where a whole number belongs")
    return int(found[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[found[2].upper()]


def _find_set(line: Line, nodes: Mapping[str, ConfNode]) -> tuple[str, ...]:
    named = expand_hosts(line.get("nodes", ""))
    wanted = line.get("feature")
    return tuple(name for name, node in nodes.items() if name in named or (wanted and wanted in node.features))


def _find_members(line: Line, nodes: Mapping[str, ConfNode], sets: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    text = line.get("nodes", "")
    if text.upper() == "ALL":
        return tuple(nodes)
    members: dict[str, None] = {}
    for part in split_outside(text):
        for name in sets.get(part) or expand_hosts(part):
            if name not in nodes:
                raise InvalidInput(
                    f"partition {line['partitionname']} has the node {name!r}, which no NodeName describes"
                )
            members[name] = None
    return tuple(members)


def parse_slurm_time(text: str) -> float:
    """minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]] or INFINITE, as seconds."""
    word = text.strip().upper()
    if word in ("INFINITE", "UNLIMITED", "-1"):
        return float("inf")
    found = _TIME.fullmatch(word)
    if found is None:
        raise InvalidInput(f"{text!r} is not a time as slurm.conf has it, such as 60, 2:00:00, 7-00:00:00 or INFINITE")
    days, *rest = (None if part is None else int(part) for part in found.groups())
    one, two, three = rest
    if days is not None:
        return float(((days * 24 + (one or 0)) * 60 + (two or 0)) * 60 + (three or 0))
    if three is not None:
        return float(((one or 0) * 60 + (two or 0)) * 60 + three)
    return float((one or 0) * 60 + (two or 0))
