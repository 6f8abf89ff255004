"""The text of a configuration to what it says: parsed, its format told by its keys, each key put to its field."""

from collections.abc import Iterable

from traincast.configs._keys import Keys
from traincast.configs._nouns import ConfigFormat, Draft, Reading
from traincast.configs._registry import FORMATS
from traincast.configs._text import load_text, parse_text
from traincast.configs._words import is_harmless
from traincast.errors import InvalidInput
from traincast.spec import ConfigText


def read_config(config: str | ConfigText) -> Reading:
    """What one file says. `config`: FILE, format:FILE, FILE.py:function, or a text with its name."""
    text = load_text(config) if isinstance(config, str) else config
    _, tree = parse_text(text)
    name = text.name.replace("\\", "/").rpartition("/")[2]
    keys = Keys(tree, where=name)
    chosen = FORMATS.find(text.format) if text.format else tell_format(keys)
    draft = Draft(keys=keys)
    try:
        chosen.read(draft)
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        # A list where a word belongs, a word where a number does: the mapping of a format trusts the kinds of its values.
        raise InvalidInput(f"{name}: a value is not of the kind that {chosen.title} has there: {error}") from error
    unmapped = tuple(f"{key} ({reason})" for key, reason in draft.unmapped.items())
    left = [key for key in keys.left() if key not in draft.unmapped]
    left_open = [key for key in keys.open_values() if key not in left and key not in draft.unmapped]
    unmapped += tuple(
        f"{key} (only a run tells its value)" for key in left_open if not is_harmless(key, chosen.harmless)
    )
    harmless = tuple(key for key in left if keys.values[key] is False or is_harmless(key, chosen.harmless))
    return Reading(
        name=name, format=chosen.name, title=chosen.title, settings=dict(draft.settings),
        unused=(*unmapped, *(key for key in left if key not in set(harmless))), harmless=harmless,
        notes=tuple(dict.fromkeys(draft.notes)),
    )  # fmt: skip


def tell_format(keys: Keys) -> ConfigFormat:
    """The format that most of whose telling keys are there; the program of a launch script tells more than any key."""
    program = str(keys.values.get("program", ""))
    scores = {name: _score(FORMATS[name], keys, program) for name in FORMATS}
    best = max(scores, key=lambda name: scores[name])
    if scores[best] == 0:
        raise InvalidInput(
            f"{keys.where}: its keys ({_shorten(keys.values)}) tell no known format; name one, as in "
            f"--config deepspeed:{keys.where}; "
            f"known formats: {', '.join(sorted(FORMATS))}"
        )
    return FORMATS[best]


def _score(each: ConfigFormat, keys: Keys, program: str) -> int:
    named = 10 if each.script and each.script in program else 0
    found = sum(_has(telling, keys) for telling in each.telling)
    sure = 3 if each.sure and _has(each.sure, keys) else 0
    # One key alone may be anybody's.
    return named + sure + (found if found > 1 or sure else 0)


def _has(telling: str, keys: Keys) -> bool:
    return any(key.startswith(telling) for key in keys.values) if telling.endswith(".") else telling in keys.values


def _shorten(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:6]) + (" ..." if len(listed) > 6 else "")
