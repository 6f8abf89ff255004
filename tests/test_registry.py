"""One type for every family of plug-ins."""

import sys
from pathlib import Path

import pytest

from traincast.errors import InvalidInput, UnknownName
from traincast.registry import Registry

EMITTERS = Registry(kind="emitter", entries={"slurm": "s", "k8s": "k"}, aliases={"kubernetes": "k8s"})


@pytest.fixture
def foreign_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package as pip would lay it down: its module, and the metadata that names its entry points."""
    (tmp_path / "foreign_plugin.py").write_text('hello = "from outside"\n')
    info = tmp_path / "foreign_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[traincast.emitters]\nflux = foreign_plugin:hello\nslurm = foreign_plugin:hello\nbroken = foreign_plugin:missing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "foreign_plugin", raising=False)
    return tmp_path


def test_an_entry_is_found_by_its_name_and_by_an_alias() -> None:
    assert EMITTERS.find("slurm") == "s"
    assert EMITTERS.find("kubernetes") == "k"


def test_an_unknown_name_says_what_is_near() -> None:
    with pytest.raises(UnknownName, match=r"unknown emitter 'slrum'.*did you mean 'slurm'"):
        EMITTERS.find("slrum")


def test_another_package_adds_an_entry_without_touching_ours(foreign_package: Path) -> None:
    assert EMITTERS.find("flux") == "from outside"
    assert "flux" in EMITTERS
    assert set(EMITTERS) == {"slurm", "k8s", "flux", "broken"}


def test_our_own_entry_wins_over_a_foreign_one_of_its_name(foreign_package: Path) -> None:
    assert EMITTERS["slurm"] == "s"


def test_a_plugin_that_cannot_be_loaded_is_named(foreign_package: Path) -> None:
    with pytest.raises(InvalidInput, match=r"emitter 'broken' of 'foreign_plugin:missing' cannot be loaded"):
        EMITTERS.find("broken")


def test_only_known_families_have_a_registry() -> None:
    with pytest.raises(UnknownName, match="kind of plug-in"):
        Registry(kind="colour", entries={})
