"""Takes every rule away, and puts it back alone, and asks who gets better: python -m research.trial [RULE]... [--alone]

`rules.toml` lists what moves a forecast and what each rule is without itself. Documents are edited in a copy, code by attribute;
each rule runs in a process of its own on the same rows (an even choice of every source in ../shared/cases), and what it said is
kept, so that a run that was stopped goes on where it was. A source weighs as much as any other. `--alone`: rules are put back
one by one into a package that has none of those on trial. `--markdown FILE` writes the verdicts.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from traincast.catalog import _constants, _stacks
from traincast.files import read_json, read_toml, write_json, write_whole

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src" / "traincast"
RULES = HERE / "rules.toml"
KINDS = _constants.KINDS
ON_TRIAL = ("fit to whole steps", "belief")
"""Kinds that must be supported by publishers that did not suggest them; others stay unless they are wrong."""
MOST_ROWS = 3
"""Of one source."""
MOVED = 0.05
"""Points of mean error: less is no movement."""
FEWEST = 3
"""Other publishers that must move for a verdict."""
DRAWS = 400
NOTHING, EVERYTHING = "nothing taken away", "everything taken away"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry of `rules.toml`."""

    name: str
    says: str
    kind: str
    evidence: str
    suggested_by: tuple[str, ...] = ()
    """Publishers whose runs suggested it; they are no judges of it."""
    covers: tuple[str, ...] = ()
    """Patterns of what it is about: constants/GROUP/NAME, stacks/NAME/KEY, or a file of the package."""
    without: Mapping[str, Any] = field(default_factory=dict)
    """What stands there if the rule is taken away; "code/MODULE:NAME" is an attribute. Empty: not on trial."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SystemExit(f"rule {self.name!r} is of the kind {self.kind!r}; known kinds: {', '.join(KINDS)}")


def read_rules(path: Path = RULES) -> list[Rule]:
    def freeze(entry: Mapping[str, Any]) -> dict[str, Any]:
        return {key: tuple(one) if isinstance(one, list) else one for key, one in entry.items()}

    return [Rule(**freeze(entry)) for entry in tomllib.loads(path.read_text())["rule"]]


def list_movers() -> list[str]:
    """Everything in documents and weights that can move a forecast, as rules name it."""
    found = [
        f"constants/{group}/{name}" for group in _constants.constant_groups() for name in _constants.constants(group)
    ]
    for path in sorted(_stacks.DOCUMENTS.glob("*.toml")):
        found += [f"stacks/{path.stem}/{key}" for key in flatten(dict(read_toml(path)))]
    data = SOURCE / "catalog" / "data"
    found += [str(path.relative_to(SOURCE)) for path in sorted(data.glob("*.*"))]
    return found + [str(path.relative_to(SOURCE)) for path in sorted(SOURCE.glob("*/weights/*"))]


def flatten(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in table.items():
        found += flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [f"{prefix}{key}"]
    return found


def covering(rules: Sequence[Rule], name: str) -> list[Rule]:
    """The rules about one thing: those whose pattern spells most of its name."""
    found = {
        rule.name: max(
            (len(pattern.replace("*", "")) for pattern in rule.covers if fnmatchcase(name, pattern)), default=-1
        )
        for rule in rules
    }
    most = max(found.values())
    return [rule for rule in rules if found[rule.name] == most >= 0]


def take_away(changes: Mapping[str, Any], folder: Path) -> None:
    """Point the package at edited copies of its documents. Call before anything reads them."""
    documents: dict[str, Any] = {"constants": _constants, "stacks": _stacks}
    for name, there in documents.items():
        shutil.copytree(there.DOCUMENTS, folder / name)
        there.DOCUMENTS = folder / name
    # Modules read documents when they are imported, so code comes last.
    for name, value in sorted(changes.items(), key=lambda item: not item[0].startswith(("constants", "stacks"))):
        sort, _, rest = name.partition("/")
        if sort == "constants":
            group, _, key = rest.partition("/")
            path = folder / sort / f"{group}.json"
            document = dict(read_json(path))
            document["constants"][key]["value"] = value
            write_json(path, document)
        elif sort == "stacks":
            stack, _, key = rest.partition("/")
            _edit_stack(folder / sort / f"{stack}.toml", key, value)
        elif sort == "kernels":
            _edit_kernels(folder / "kernels.json", rest, value)
        else:
            module, _, attribute = rest.partition(":")
            owner = import_module(module)
            setattr(owner, attribute, Path(value) if isinstance(getattr(owner, attribute), Path) else value)


def _edit_kernels(path: Path, key: str, value: float) -> None:
    """Another value in the laws of kernels."""
    laws = import_module("traincast.cost._laws")
    document = dict(read_json(path if path.is_file() else laws.KERNELS))
    law, _, name = key.partition(".")
    document[law][name] = value
    write_json(path, document)
    laws.load_laws.__wrapped__.__defaults__ = (path,)


def _edit_stack(path: Path, key: str, value: Any) -> None:
    """With another value of a key, or without it ("" or {})."""
    section, _, name = key.partition(".")
    kept, here = [], False
    for line in path.read_text().splitlines():
        if line.startswith("["):
            here = line.strip().startswith(f"[{section}]")
        if here and line.partition("=")[0].strip().replace('"', "") == name:
            if value not in ("", {}):
                kept.append(f"{name} = {json.dumps(value)}")
        else:
            kept.append(line)
    write_whole(path, "\n".join(kept) + "\n")


def answer(changes: Mapping[str, Any], target: Path) -> None:
    """Ask the sample in this process, with the changes, and keep what was said."""
    with tempfile.TemporaryDirectory() as folder:
        take_away(changes, Path(folder))
        from research import gate

        sample = gate.read_sample(MOST_ROWS)
        asked = [row for rows in sample.rows.values() for row in rows if _may_move(row, changes)]
        gate.write_table(target, gate.ask_shipped(asked))


def _may_move(row: Mapping[str, Any], changes: Mapping[str, Any]) -> bool:
    """Framework documents move runs of their own frameworks alone, and of those that start from them."""
    if not changes or not all(name.startswith("stacks/") for name in changes):
        return True
    found = _stacks.find_stack(str(row.get("framework") or ""))
    names = {name.split("/")[1] for name in changes}
    return found is None or found.name in names or bool(names & {"pytorch", "large-models"})


def run(name: str, changes: Mapping[str, Any], cache: Path) -> Path:
    target = cache / f"{name.replace(' ', '-')}.parquet"
    if not target.is_file():
        partial = target.with_suffix(".partial")
        command = [sys.executable, "-m", "research.trial", "--answer", str(partial)]
        subprocess.run(command, input=json.dumps(dict(changes)), text=True, check=True, cwd=HERE.parent)
        partial.rename(target)
    return target


def cache_folder() -> Path:
    """Under the contents of the package: another package is asked anew."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.read_bytes())
    found = Path(tempfile.gettempdir()) / f"traincast-trial-{digest.hexdigest()[:12]}"
    found.mkdir(exist_ok=True)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a rule does to mean errors, in points: above 0 it helps."""

    rule: Rule
    own: float
    """On publishers that suggested it; not a number where none did."""
    others: float
    low: float
    high: float
    """90% of a bootstrap over publishers and their rows."""
    moved: int
    helped: int

    @property
    def verdict(self) -> str:
        if self.rule.kind not in ON_TRIAL:
            return "stays"
        if self.moved < FEWEST:
            return "nobody else moves"
        return "stays" if self.others > 0 else "goes"


def weigh(rule: Rule, with_it: Path, without: Path) -> Effect:
    from research import gate
    from research.fits.untaught import publisher_of

    measured = gate.read_sample(MOST_ROWS).measured_s
    tables = [{one.case_id: one for one in gate.read_table(path)} for path in (without, with_it)]
    gains: dict[str, list[float]] = defaultdict(list)
    for case in tables[0].keys() | tables[1].keys():
        # What was not asked again could not move.
        pair = [table.get(case) or tables[place - 1][case] for place, table in enumerate(tables)]
        errors = [100 * abs(one.step_s / measured[case] - 1) for one in pair]
        gains[pair[0].source].append(errors[0] - errors[1])
    suggested = [s for s in gains if s in rule.suggested_by or publisher_of(s) in rule.suggested_by]
    others = [np.array(own) for source, own in sorted(gains.items()) if source not in suggested]
    draw = np.random.default_rng(0)
    means = []
    for _ in range(DRAWS):
        picked = [others[place] for place in draw.integers(len(others), size=len(others))]
        means.append(np.mean([own[draw.integers(len(own), size=len(own))].mean() for own in picked]))
    moved = [own.mean() for own in others if abs(own.mean()) > MOVED]
    low, high = np.quantile(means, (0.05, 0.95))
    return Effect(
        rule=rule, own=float(np.mean([np.mean(gains[s]) for s in suggested])) if suggested else float("nan"),
        others=float(np.mean([own.mean() for own in others])), low=float(low), high=float(high), moved=len(moved),
        helped=sum(one > 0 for one in moved),
    )  # fmt: skip


def tabulate(effects: Sequence[Effect]) -> str:
    heads = ("rule", "kind", "own publisher", "others, alike", "90%", "others that move", "of them better", "verdict")
    rows = [
        (one.rule.name, one.rule.kind, "" if np.isnan(one.own) else f"{one.own:+.2f}", f"{one.others:+.2f}",
         f"{one.low:+.2f} to {one.high:+.2f}", str(one.moved), str(one.helped), one.verdict)
        for one in effects
    ]  # fmt: skip
    rule = ("---", "---", *["--:"] * (len(heads) - 3), "---")
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rows))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", nargs="*", help="names; all on trial if none is named")
    parser.add_argument("--alone", action="store_true", help="put back alone instead of taken away")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.answer:
        answer(json.loads(sys.stdin.read()), options.answer)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rules = [rule for rule in read_rules() if rule.without]
    every = {name: value for rule in rules for name, value in rule.without.items()}
    cache = cache_folder()
    effects = []
    for rule in rules:
        if options.rules and rule.name not in options.rules:
            continue
        if options.alone:
            rest = {name: value for name, value in every.items() if name not in rule.without}
            pair = run(f"alone-{rule.name}", rest, cache), run(EVERYTHING, every, cache)
        else:
            pair = run(NOTHING, {}, cache), run(rule.name, rule.without, cache)
        effects.append(weigh(rule, *pair))
        sys.stderr.write(tabulate(effects[-1:]).splitlines()[-1] + "\n")
    table = tabulate(effects)
    sys.stdout.write(table + "\n")
    if options.markdown:
        from research.output import splice_into

        way = "put back alone" if options.alone else "taken away"
        splice_into(options.markdown, table, begin=f"<!-- rules {way} -->", end=f"<!-- end of rules {way} -->")


if __name__ == "__main__":
    main()
