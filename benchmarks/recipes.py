"""Whether the plan that is chosen where nobody names one is the recipe's, or no slower: python benchmarks/recipes.py [NAME ...]

Every public recipe of tests/plan/recipes.json is asked without its plan and with it. It is met where the chosen plan has its
degrees, or where its step is forecast to take no longer.
"""

import json
import sys
from pathlib import Path
from typing import Any

from traincast.errors import TraincastError
from traincast.forecast import answer
from traincast.plan import decide
from traincast.resolve import ask_in_words
from traincast.spec import QUESTION_FIELDS, Question

RECIPES = Path(__file__).parent.parent / "tests" / "plan" / "recipes.json"
AXES = ("tensor", "pipeline", "context", "expert", "zero")
HAIR = 0.005
"""Of a step, that is no difference."""


def load_recipes() -> list[dict[str, Any]]:
    return list(json.loads(RECIPES.read_text())["recipes"])


def read_question(recipe: dict[str, Any], *, with_plan: bool) -> Question:
    """The question that a recipe asks."""
    flags = {flag: item for item in QUESTION_FIELDS for flag in item.flags}
    words, said = [*recipe["asked"], *(recipe["plan"] if with_plan else [])], {}
    while words:
        item = flags[words.pop(0)]
        said[item.name] = True if item.kind is bool else item.kind(words.pop(0))
    return ask_in_words(recipe["model"], recipe["gpus"], **said)


def judge(recipe: dict[str, Any]) -> tuple[bool, str]:
    """(whether it is met, in words)."""
    chosen = decide(read_question(recipe, with_plan=False))
    wanted = read_question(recipe, with_plan=True)
    plan = chosen.parallelism
    same = all(getattr(plan, axis) == wanted.parallelism.get(axis, getattr(plan, axis)) for axis in AXES)
    same = same and all(getattr(plan, axis) == wanted.parallelism.get(axis, 1) for axis in AXES[:4])
    ours = answer(chosen)
    degrees = " ".join(f"{axis} {getattr(plan, axis)}" for axis in AXES if getattr(plan, axis) > (axis != "zero"))
    told = f"{degrees or 'replicas'}, {ours.step.seconds:.3g} s, fits {ours.memory.fit_probability:.0%}"
    if same:
        return True, f"the recipe's axes: {told}"
    try:
        theirs = answer(decide(wanted))
    except TraincastError as error:
        return ours.memory.fits, f"{told}; the recipe cannot be asked: {error}"
    slower = (ours.step.seconds / ours.global_batch) / (theirs.step.seconds / theirs.global_batch) - 1
    told += f"; recipe {theirs.step.seconds:.3g} s, fits {theirs.memory.fit_probability:.0%}, ours {slower:+.1%}"
    return ours.memory.fits and (slower <= HAIR or not theirs.memory.fits), told


def main() -> None:
    wanted = sys.argv[1:]
    recipes = [recipe for recipe in load_recipes() if not wanted or recipe["name"] in wanted]
    met = 0
    for recipe in recipes:
        try:
            is_met, told = judge(recipe)
        except TraincastError as error:
            is_met, told = False, f"not answered: {error}"
        met += is_met
        print(f"{'met' if is_met else 'NOT':4} {recipe['name']:28} {told}", flush=True)
    print(f"{met} of {len(recipes)} recipes are met", flush=True)


if __name__ == "__main__":
    main()
