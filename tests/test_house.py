"""The sizes of the house: functions that fit in the head. What is larger is listed here, and the list may only get shorter."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "traincast"
MOST_LINES, MOST_PARAMETERS, MOST_BRANCHES = 60, 12, 20
LARGER = frozenset(Path(__file__).with_name("larger_functions.txt").read_text().split())
"""Functions over a limit, by file and name. Take a line out when you have split one; do not add any."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHING = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension)


def count_branches(function: Function) -> int:
    """Cyclomatic complexity as radon counts it."""
    inside = [node for statement in function.body for node in ast.walk(statement)]
    alternatives = sum(len(node.values) - 1 for node in inside if isinstance(node, ast.BoolOp))
    conditions = sum(len(node.ifs) for node in inside if isinstance(node, ast.comprehension))
    return 1 + alternatives + conditions + sum(isinstance(node, BRANCHING) for node in inside)


def is_too_large(function: Function) -> bool:
    taken = function.args
    num_parameters = len(taken.args) + len(taken.kwonlyargs) + len(taken.posonlyargs)
    num_lines = (function.end_lineno or function.lineno) - function.lineno + 1
    return num_lines > MOST_LINES or num_parameters > MOST_PARAMETERS or count_branches(function) > MOST_BRANCHES


def list_too_large() -> set[str]:
    return {
        f"{path.relative_to(SOURCE)}:{node.name}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, Function) and is_too_large(node)
    }


def test_no_function_outgrows_the_limits() -> None:
    assert sorted(list_too_large() - LARGER) == []


def test_what_was_split_is_taken_off_the_list() -> None:
    assert LARGER - list_too_large() == set()


@pytest.mark.parametrize("number", [MOST_BRANCHES, MOST_BRANCHES + 2])
def test_the_count_notices_one_branch_too_many(number: int) -> None:
    source = "def f(x):\n" + "\n".join(f"    if x == {i}: pass" for i in range(number))
    (function,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    assert is_too_large(function) == (number >= MOST_BRANCHES)


def test_rooms_reach_each_other_by_their_facades_only() -> None:
    """A private module (with a leading underscore) is imported by its own room only."""
    reached = []
    for file in sorted(SOURCE.rglob("*.py")):
        room = file.relative_to(SOURCE).parts[0]
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("traincast."):
                _, other, *modules = node.module.split(".")
                names = [*modules, *(alias.name for alias in node.names)]
                if other != room and any(name.startswith("_") for name in names):
                    reached.append(f"{file.relative_to(SOURCE)}: {node.module}")
    assert reached == []


def shown_by(room: Path) -> set[str]:
    """What a room gives to others: what its `__init__.py` imports or defines."""
    found: set[str] = {file.stem for file in room.iterdir()}
    for node in ast.walk(ast.parse((room / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def outside_tries(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those of `try`, in which benchmarks import what another version calls otherwise."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.Try):
            yield node
            yield from outside_tries(node)


def test_rooms_show_what_others_import_from_them() -> None:
    """Type checkers do not see it: a name of a room is looked up when it is first asked for."""
    rooms = {f"traincast.{file.parent.name}": shown_by(file.parent) for file in SOURCE.glob("*/__init__.py")}
    folders = [SOURCE, *(SOURCE.parents[1] / name for name in ("tests", "research", "benchmarks", "examples"))]
    missing = [
        f"{file.name}: {alias.name} of {node.module}"
        for folder in folders
        for file in folder.rglob("*.py")
        for node in outside_tries(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module in rooms
        for alias in node.names
        if alias.name not in rooms[node.module]
    ]
    assert missing == [], "; ".join(missing)


def test_every_module_of_a_room_is_private_or_meant_for_users() -> None:
    meant = {"integrate/huggingface.py", "integrate/lightning.py", "integrate/pytorch.py"}
    open_modules = {
        str(file.relative_to(SOURCE))
        for file in SOURCE.glob("*/*")
        if (file.suffix == ".py" or (file / "__init__.py").exists())
        and not file.name.startswith("_")
        and file.parent.name != "cli"
    }
    assert open_modules == meant
