"""A launch script to the options of the command that trains: variables are replaced as text, nothing is run."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

from traincast.errors import InvalidInput

MOST_EXPANDED = 1 << 20
LAUNCH = "launch"
"""The table of what is said to the launcher and not to the program."""
_ASSIGNMENT = re.compile(r"(?:export\s+|declare\s+(?:-\w+\s+)?|local\s+|readonly\s+)?([A-Za-z_]\w*)(\+?)=", re.ASCII)
_VARIABLE = re.compile(
    r"\$\{([A-Za-z_]\w*)(?:\[[@*]\])?(?:(:?[-=])([^{}$]*))?\}|\$([A-Za-z_]\w*)|\$\(\(([^()$]*)\)\)", re.ASCII
)
_SUBSTITUTION = re.compile(r"\$\([^()]*\)|`[^`]*`")
"""What only a run of the script would tell."""
_OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_][\w.@/-]*)=(.*)", re.DOTALL | re.ASCII)
_CONDITIONS = re.compile(r"^\s*(?:if|case|for|while|until)\b", re.MULTILINE)
_PROGRAMS = ("llamafactory-cli", "trl", "axolotl", "litgpt", "swift")


def read_shell(text: str, *, name: str) -> dict[str, Any]:
    """A flat tree of options; the launcher's stand under `launch`, the words before the first option under `program`."""
    variables: dict[str, str] = {}
    commands: list[list[str]] = []
    budget = MOST_EXPANDED
    for line in _logical_lines(text):
        matched = _ASSIGNMENT.match(line)
        expanded = _expand(line[matched.end() :] if matched else line, variables)
        budget -= len(expanded)
        if budget < 0:
            raise InvalidInput(f"{name} grows beyond {MOST_EXPANDED:,} letters when its variables are replaced")
        if matched:
            value, rest = _assigned(_SUBSTITUTION.sub("$RUN", expanded))
            variables[matched[1]] = f"{variables.get(matched[1], '')} {value}" if matched[2] else value
            # What stands before a command on its line is its environment.
            if not rest:
                continue
            expanded = rest
        words = _split(_SUBSTITUTION.sub("$RUN", expanded))
        if any(word.startswith("--") or _OVERRIDE.fullmatch(word) for word in words[1:]):
            commands.append(words)
    if not commands:
        raise InvalidInput(f"{name} has no command with options; give the script that starts the training")
    training = max(commands, key=_count_options)
    tree = _read_command(training)
    for key, variable in (("nnodes", "NNODES"), ("nnodes", "NUM_NODES"), ("nproc_per_node", "GPUS_PER_NODE")):
        if variable in variables and variables[variable].isdigit():
            tree.setdefault(LAUNCH, {}).setdefault(key, int(variables[variable]))
    tree.update(_slurm_lines(text, tree))
    if _CONDITIONS.search(text):
        tree["script.conditions"] = "the script has branches or loops; what stands in them was read in order"
    return tree


def _count_options(words: list[str]) -> int:
    return sum(word.startswith("--") or bool(_OVERRIDE.fullmatch(word)) for word in words)


def _logical_lines(text: str) -> Iterator[str]:
    """Lines with their continuations, quoted newlines and arrays joined; comments dropped; split where commands end."""
    text = re.sub(r"[ \t]*\\\r?\n", " ", text)
    line: list[str] = []
    quote, depth, previous = "", 0, "\n"
    index, end = 0, len(text)
    while index < end:
        letter = text[index]
        if quote:
            quote = "" if letter == quote and previous != "\\" else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and previous in " \t\n(":
            newline = text.find("\n", index)
            index = end if newline < 0 else newline
            continue
        elif letter == "(":
            depth += 1
        elif letter == ")":
            depth = max(0, depth - 1)
        elif depth == 0 and letter in "\n;|&" and not (letter == "&" and previous in ">&"):
            yield from _finish(line)
            line, previous = [], letter
            index += 1
            continue
        line.append(" " if letter == "\n" and not quote else letter)
        previous = letter
        index += 1
    yield from _finish(line)


def _finish(line: list[str]) -> Iterator[str]:
    text = "".join(line).strip()
    if text:
        yield text


def _expand(text: str, variables: dict[str, str]) -> str:
    """Variables that the script sets, and defaults of those that it does not; others stay as they are written."""

    def replace(matched: re.Match[str]) -> str:
        name = matched[1] or matched[4]
        if matched[5] is not None:
            return _calculate(matched[5], variables) or matched[0]
        if name in variables:
            return variables[name]
        return matched[3].strip("\"'") if matched[3] is not None else matched[0]

    for _ in range(4):
        replaced = _VARIABLE.sub(replace, text)
        if replaced == text or len(replaced) > MOST_EXPANDED:
            break
        text = replaced
    return text


def _calculate(text: str, variables: dict[str, str]) -> str | None:
    """$((A * B)) of whole numbers: products, sums and quotients from left to right, products first."""
    words = re.findall(r"\d+|[A-Za-z_]\w*|[*/+-]", text)
    if "".join(words) != re.sub(r"\s+", "", text):
        return None
    numbers = [variables.get(word, word) if word[0].isalpha() or word[0] == "_" else word for word in words]
    if len(numbers) % 2 == 0 or not all(value.strip().isdigit() and len(value) < 16 for value in numbers[::2]):
        return None
    terms, signs = [int(numbers[0])], ["+"]
    for sign, number in zip(numbers[1::2], map(int, numbers[2::2]), strict=True):
        if sign == "*":
            terms[-1] *= number
        elif sign == "/":
            if number == 0:
                return None
            terms[-1] //= number
        else:
            terms.append(number)
            signs.append(sign)
    total = sum(term if sign == "+" else -term for sign, term in zip(signs, terms, strict=True))
    return str(total) if abs(total) < 10**18 else None


def _assigned(text: str) -> tuple[str, str]:
    """The value of an assignment, its quotes or brackets taken off, and the command that follows on the line."""
    stripped = text.strip()
    if stripped.startswith("("):
        return stripped.strip("()").strip(), ""
    if stripped[:1] in ("'", '"'):
        end = stripped.find(stripped[0], 1)
        return (stripped[1:end], stripped[end + 1 :].strip()) if end > 0 else (stripped[1:], "")
    value, _, rest = stripped.partition(" ")
    return value, rest.strip()


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, posix=True)
    except ValueError:
        return text.split()


def _read_command(words: list[str]) -> dict[str, Any]:
    place, start, program = _find_program(words)
    tree: dict[str, Any] = {"program": program}
    launcher = _options(words[:place])
    if launcher:
        tree[LAUNCH] = launcher
    tree.update(_options(words[start:]))
    return tree


def _find_program(words: list[str]) -> tuple[int, int, str]:
    """Where the launcher's options end, where those of the program begin, and the words that name it."""
    start = len(words) - words[::-1].index("--") if "--" in words else 0
    for index in range(start, len(words)):
        word = words[index].rpartition("/")[2]
        if word in _PROGRAMS:
            after = index + 1
            named = after < len(words) and not words[after].startswith("-")
            return index, after + named, f"{word} {words[after]}" if named else word
        if words[index].endswith((".py", ".sh")):
            return index, index + 1, words[index]
        if words[index - 1 : index] in (["-m"], ["--module"]) and not words[index].startswith("torch.distributed"):
            return index - 1, index + 1, words[index]
    if words[:2] == ["tune", "run"]:
        free = [index for index in range(2, len(words)) if _is_free(words, index)]
        if free:
            return free[0], free[0] + 1, f"tune run {words[free[0]]}"
    return start, start, words[start] if start < len(words) and not words[start].startswith("-") else ""


def _is_free(words: list[str], index: int) -> bool:
    """A word that is no option and not the value of one."""
    return not words[index].startswith("-") and "=" not in words[index] and not words[index - 1].startswith("-")


def _options(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    name = ""
    values: list[Any] = []

    def close() -> None:
        if name:
            found[name] = True if not values else values[0] if len(values) == 1 else list(values)

    for word in words:
        override = _OVERRIDE.fullmatch(word)
        if word.startswith("--") and len(word) > 2:
            close()
            name, equals, value = word[2:].partition("=")
            name, values = name.replace("-", "_"), [_scalar(value)] if equals else []
        elif override and "=" in word and not word.startswith("-"):
            close()
            name, values = "", []
            found[override[1]] = _scalar(override[2])
        elif re.fullmatch(r"-[A-Za-z]", word):
            close()
            name, values = word[1:], []
        elif name:
            values.append(_scalar(word))
    close()
    return found


def _scalar(text: str) -> Any:
    plain = text.strip().strip("'\"")
    lowered = plain.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in ("null", "none", ""):
        return None
    if re.fullmatch(r"[+-]?\d{1,18}", plain):
        return int(plain)
    # Short ones alone are tried: the pattern takes a time that grows with the square of the digits.
    if len(plain) < 40 and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", plain):
        return float(plain)
    if plain.startswith("[") and plain.endswith("]"):
        return [_scalar(part) for part in plain[1:-1].split(",") if part.strip()]
    return plain


def _slurm_lines(text: str, tree: dict[str, Any]) -> dict[str, Any]:
    """Nodes and GPUs that the batch lines ask for, where the launcher does not say."""
    launch = dict(tree.get(LAUNCH, {}))
    for flag, key in ((r"(?:--nodes|-N)", "nnodes"), (r"(?:--gpus-per-node|--gres)", "nproc_per_node")):
        matched = re.search(rf"^#SBATCH\s+{flag}[= ](?:gpu:)?(?:[A-Za-z]\w*:)?(\d{{1,6}})\b", text, re.MULTILINE)
        if matched and not isinstance(launch.get(key), int):
            launch[key] = int(matched[1])
    return {LAUNCH: launch} if launch else {}
