"""The replay of recorded steps against what torch's own allocator handed out on this machine."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch", reason="recording a model needs PyTorch")
pytest.importorskip("transformers", reason="the compared models come from transformers")


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    file = Path(__file__).resolve().parents[2] / "benchmarks" / "memory.py"
    spec = importlib.util.spec_from_file_location("memory_benchmark", file)
    if spec is None or spec.loader is None:
        pytest.fail(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")
# Depthwise convolutions of some CPUs take a workspace that others do not, so no model with large ones is compared here.
@pytest.mark.parametrize("name", ["llama", "bert", "resnet"])
def test_the_replay_meets_the_peak_that_the_profiler_saw(benchmark: ModuleType, name: str) -> None:
    errors = benchmark.compare_with_profiler([name])
    assert abs(errors[name]) < 0.02
