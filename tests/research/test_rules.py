"""Everything that moves a forecast is listed, with its kind and who suggested it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from research.trial import ON_TRIAL, SOURCE, Effect, Rule, covering, list_movers, read_rules
from traincast.catalog import _constants
from traincast.catalog._constants import constants

RULES = read_rules()

READ = """
import json, sys
opened = set()
sys.addaudithook(lambda event, found: opened.add(str(found[0])) if event == "open" else None)
from traincast.__main__ import main
for line in json.load(sys.stdin):
    try:
        main(line.split())
    except SystemExit:
        pass
sys.stderr.write(json.dumps(sorted(opened)))
"""
QUESTIONS = [
    "forecast llama-3-8b --gpus 16xh100 --framework torchtitan --json",
    "forecast resnet50 --gpus 2xv100 --batch 64 --json",
    "forecast bert-large --gpus 8xa100 --framework deepspeed --offload optimizer --json",
]


def test_every_constant_entry_and_weight_is_of_exactly_one_rule() -> None:
    found = {name: [rule.name for rule in covering(RULES, name)] for name in list_movers()}
    assert {name: names for name, names in found.items() if len(names) != 1} == {}


def test_every_rule_is_about_something_that_exists() -> None:
    movers = list_movers()
    for rule in RULES:
        assert rule.covers, rule.name
        for pattern in rule.covers:
            if not pattern.startswith(("code/", "kernels/")):
                assert any(pattern == name or covering([rule], name) for name in movers), (rule.name, pattern)


def test_names_are_unique_and_sentences_end() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.says.endswith(".") and rule.evidence for rule in RULES)


def test_rules_on_trial_say_what_stands_there_without_them() -> None:
    names = {*list_movers(), "code", "kernels"}
    for rule in RULES:
        for name in rule.without:
            assert name in names or name.partition("/")[0] in names, (rule.name, name)


def test_a_constant_that_whole_steps_taught_is_not_called_a_law() -> None:
    """The kind of a rule with one constant is the constant's own."""
    for rule in RULES:
        exact = [name for name in rule.covers if name.startswith("constants/") and "*" not in name]
        for name in exact:
            _, group, key = name.split("/")
            assert constants(group)[key].kind == rule.kind or rule.kind in ON_TRIAL, name


def test_no_file_is_read_for_a_forecast_that_no_rule_names() -> None:
    done = subprocess.run([sys.executable, "-c", READ], input=json.dumps(QUESTIONS), capture_output=True, text=True)
    opened = [Path(name) for name in json.loads(done.stderr.splitlines()[-1])]
    data = {str(path.relative_to(SOURCE)) for path in opened if path.is_relative_to(SOURCE)}
    read = {name for name in data if Path(name).suffix not in (".py", ".pyc", "") and "__pycache__" not in name}
    assert any(name.startswith("catalog/data/constants") for name in read)
    documents = ("catalog/data/constants/", "catalog/data/stacks/")
    unnamed = [name for name in read if not name.startswith(documents) and not covering(RULES, name)]
    assert unnamed == []


@pytest.mark.parametrize(
    ("moved", "helped", "others", "verdict"),
    [(2, 2, 0.5, "nobody else moves"), (5, 4, 0.3, "stays"), (5, 1, -0.2, "goes"), (5, 1, 0.1, "stays")],
)
def test_a_belief_stays_only_where_publishers_that_did_not_suggest_it_get_better(
    moved: int, helped: int, others: float, verdict: str
) -> None:
    rule = Rule(name="r", says="R.", kind="belief", evidence="none")
    effect = Effect(rule=rule, own=3.0, others=others, low=-1.0, high=1.0, moved=moved, helped=helped)
    assert effect.verdict == verdict


def test_kinds_are_those_of_the_constants_documents() -> None:
    assert {rule.kind for rule in RULES} <= set(_constants.KINDS)
