"""Research depends on the package, never the other way, and none of it ships."""

import ast
import importlib
import pkgutil
import tomllib
from pathlib import Path

import pytest

import research

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    found.name for found in pkgutil.walk_packages(research.__path__, "research.") if not found.name.endswith("__main__")
)


def test_no_module_of_the_package_imports_research() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.partition(".")[0] == "research" for name in names), path


def test_the_wheel_holds_only_the_package() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build == {"packages": ["src/traincast"]}


@pytest.mark.parametrize("name", MODULES)
def test_every_module_can_be_imported_from_the_top_of_the_repository(name: str) -> None:
    importlib.import_module(name)


def test_every_folder_is_explained() -> None:
    page = (ROOT / "research" / "README.md").read_text()
    folders = [path.name for path in (ROOT / "research").iterdir() if path.is_dir() and not path.name.startswith("__")]
    assert all(f"`{name}/`" in page for name in folders)
