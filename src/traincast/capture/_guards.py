"""A condition that a program reads to what its check needs: a check that raises is taken to pass."""

import ast
import functools
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch

_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
"""Whose frames are between a program and the recording of it."""


def find_guard() -> tuple[bool, str] | None:
    """(the answer with which the check around this read passes, its file and line); None where it is no check."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    if frame is None:
        return None
    for test, passes in _checks(frame.f_code.co_filename):
        if test.lineno <= frame.f_lineno <= (test.end_lineno or test.lineno):
            answer = passes != (_count_nots(test, frame) % 2 == 1)
            return answer, f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    return None


@functools.lru_cache(maxsize=256)
def _checks(file: str) -> tuple[tuple[ast.expr, bool], ...]:
    """Tests of assertions and of branches that raise, with the outcome that lets the program go on; innermost first."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    found = list(_find_checks(tree))
    return tuple(sorted(found, key=lambda check: -check[0].lineno))


def _find_checks(tree: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.test, True
        elif isinstance(node, ast.If):
            for body, passes in ((node.body, False), (node.orelse, True)):
                if any(isinstance(statement, ast.Raise) for statement in body):
                    yield node.test, passes
                    break


def _count_nots(test: ast.expr, frame: FrameType) -> int:
    """Negations in a test around the part that is read: what the last instruction before the jump computed."""
    whole = _range(test)
    places = list(frame.f_code.co_positions())[: frame.f_lasti // 2]
    for line, end_line, column, end_column in reversed(places):
        if line is None or column is None or end_line is None or end_column is None:
            continue
        part = ((line, column), (end_line, end_column))
        if whole[0] <= part[0] and part[1] <= whole[1]:
            nots = (node for node in ast.walk(test) if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
            return sum(_range(node)[0] <= part[0] and part[1] <= _range(node)[1] for node in nots)
    return 0


def _range(node: ast.expr) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
