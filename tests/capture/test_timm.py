"""Models of timm by name. The real package is used where it is installed; else one that follows its interface."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from traincast.capture import load_source
from traincast.errors import InvalidInput, MissingExtra

pytest.importorskip("torch")

STAND_IN = """
import torch

__version__ = "0"


class Config:
    input_size = (3, 160, 160)


def is_model(name):
    return name in list_models()


def list_models():
    return ["tiny_net"]


def get_pretrained_cfg(name, allow_unregistered=False):
    return Config()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.features = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.head = torch.nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def create_model(name, pretrained=False):
    assert not pretrained
    return Net()
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "timm.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = sys.modules.pop("timm", None)
    yield
    sys.modules.pop("timm", None)
    if known is not None:
        sys.modules["timm"] = known


def test_a_model_is_recorded_at_its_own_size_without_weights(stand_in: None) -> None:
    graph = load_source("timm:tiny_net", batch=4)
    assert (graph.name, graph.batch_size) == ("tiny_net", 4)
    assert graph.num_parameters == 3 * 3 * 3 * 8 + 8 + 8 * 10 + 10


def test_an_unknown_name_is_an_error_that_says_a_near_one(stand_in: None) -> None:
    with pytest.raises(InvalidInput, match=r"no model 'tiny_nett' \(did you mean 'tiny_net'"):
        load_source("timm:tiny_nett")


@pytest.mark.skipif(importlib.util.find_spec("timm") is not None, reason="timm is installed")
def test_without_timm_the_extra_is_named() -> None:
    with pytest.raises(MissingExtra, match=r"traincast\[timm\]"):
        load_source("timm:resnet18")


def test_resnet18_of_timm_itself() -> None:
    pytest.importorskip("timm", reason="timm is not installed")
    graph = load_source("timm:resnet18", batch=2)
    assert graph.num_parameters == 11_689_512
