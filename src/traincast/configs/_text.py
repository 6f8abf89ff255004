"""The text of a configuration to a tree of plain values, within limits of size and depth; nothing is ever run."""

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from traincast.configs._python import read_python
from traincast.configs._shell import read_shell
from traincast.errors import InvalidInput, MissingExtra
from traincast.spec import ConfigText
from traincast.units import KIB, MIB, show_bytes

MOST_BYTES = MIB
MOST_YAML_BYTES = 512 * KIB
MOST_NODES, MOST_DEPTH, MOST_ALIASES = 50_000, 40, 100
_SUFFIXES = {".json": "json", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".sh": "shell", ".bash": "shell",
             ".slurm": "shell", ".sbatch": "shell", ".py": "python"}  # fmt: skip


def load_text(name: str) -> ConfigText:
    """A file named FILE, format:FILE or FILE.py:function; its size is looked at before it is read."""
    chosen, path = _split_format(name)
    file = path.rpartition(":")[0] if ".py:" in path else path
    try:
        size = Path(file).stat().st_size
        if size > MOST_BYTES:
            raise InvalidInput(
                f"{file} has {show_bytes(size)}; configurations of at most {show_bytes(MOST_BYTES)} are read"
            )
        raw = Path(file).read_bytes()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error
    try:
        text = raw.decode("utf-8-sig")
    except ValueError as error:
        raise InvalidInput(f"{file} is not a text: {error}") from error
    return ConfigText(name=path, text=text, format=chosen)


def _split_format(name: str) -> tuple[str, str]:
    """'deepspeed:ds.json' as format and file; a path with a colon of its own is a path."""
    head, colon, rest = name.partition(":")
    if colon and rest and "/" not in head and "\\" not in head and "." not in head and len(head) > 1:
        return head, rest
    return "", name


def parse_text(config: ConfigText) -> tuple[str, dict[str, Any]]:
    """The syntax of a text and its tree."""
    if len(config.text) > MOST_BYTES:
        raise InvalidInput(f"{config.name} has more than {show_bytes(MOST_BYTES)}, the most that is read")
    file = config.name.rpartition(":")[0] if ".py:" in config.name else config.name
    syntax = _SUFFIXES.get(Path(file).suffix.lower()) or _guess_syntax(config.text)
    try:
        tree = _PARSERS[syntax](config)
    except RecursionError as error:
        raise InvalidInput(f"{config.name} is nested too deeply to be read") from error
    if not isinstance(tree, Mapping):
        raise InvalidInput(f"{config.name} must be a table of names and values, not a {type(tree).__name__}")
    return syntax, dict(tree)


def _guess_syntax(text: str) -> str:
    start = text.lstrip()
    if start.startswith("{"):
        return "json"
    if start.startswith("#!") or " --" in text:
        return "shell"
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError):
        return "yaml"
    return "toml"


def _parse_json(config: ConfigText) -> Any:
    def refuse(word: str) -> float:
        raise InvalidInput(f"{config.name}: the number {word} is not allowed; every amount must be finite")

    try:
        return json.loads(config.text, parse_constant=refuse)
    except ValueError as error:
        raise InvalidInput(f"{config.name} is not valid JSON: {error}") from error


def _parse_toml(config: ConfigText) -> Any:
    try:
        return tomllib.loads(config.text)
    except ValueError as error:
        raise InvalidInput(f"{config.name} is not valid TOML: {error}") from error


def _parse_yaml(config: ConfigText) -> Any:
    """Plain values only: tags that build objects are errors, and so are more nodes or aliases than a person writes."""
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra("PyYAML", "configs", "reading a YAML configuration") from error
    if len(config.text) > MOST_YAML_BYTES:
        raise InvalidInput(f"{config.name} has more than {show_bytes(MOST_YAML_BYTES)}, the most YAML that is read")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = aliases = 0
        for nodes, event in enumerate(yaml.parse(config.text, Loader=loader)):
            aliases += isinstance(event, yaml.AliasEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if nodes > MOST_NODES or depth > MOST_DEPTH or aliases > MOST_ALIASES:
                raise InvalidInput(
                    f"{config.name} has more than {MOST_NODES:,} nodes, {MOST_DEPTH} levels or {MOST_ALIASES} aliases, the "
                    "most that is read"
                )
        loaded = yaml.load(config.text, Loader=loader)  # noqa: S506 (a safe loader)
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidInput(f"{config.name} is not YAML of plain values: {reason}") from error
    return {} if loaded is None else loaded


_PARSERS: dict[str, Callable[[ConfigText], Any]] = {
    "json": _parse_json,
    "toml": _parse_toml,
    "yaml": _parse_yaml,
    "shell": lambda config: read_shell(config.text, name=config.name),
    "python": lambda config: read_python(config.text, name=config.name),
}
