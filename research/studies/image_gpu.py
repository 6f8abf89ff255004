"""Image models on a GPU that taught nothing: python -m research.studies.image_gpu --fast DIR [--sample NAME].

Every constant that was chosen with inference of image models on both GPUs in view is put back to what it would be without them
and chosen again on the older GPU's eager steps alone, one after the other from a grid fixed here. Then the newer GPU is asked,
eager and compiled: its compiled steps are the only ones there are, so rules for generated kernels are scored with their constant
and without. `DIR` holds recorded graphs (benchmarks/image_models.py --capture DIR).
"""

import argparse
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from research.output import say
from traincast.cost import _products as products
from traincast.cost._operators import kernels

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "image_models.py"
GRID: Mapping[tuple[Any, str], tuple[float, ...]] = {
    (products, "EASY_GAIN"): (0.0, 0.1, 0.25, 0.4), (products, "BOOST"): (1.0, 1.08, 1.15, 1.25),
    (kernels, "UNTURNED"): (1.0, 1.15, 1.3), (kernels, "NARROW_FACTOR"): (0.4, 0.55, 0.75, 1.0),
    (kernels, "UNTURNED_GROUPS"): (1.0, 1.3, 1.6, 2.0), (kernels, "DEPTHWISE_NCHW"): (0.7, 0.85, 1.0),
    (kernels, "DEPTHWISE_SHARE"): (0.06, 0.08, 0.1, 0.14, 0.2),
}  # fmt: skip
"""What was chosen with both GPUs in view, and what is tried. The first choice of all: the value that assumes nothing."""
NEUTRAL = {"EASY_GAIN": 0.0, "BOOST": 1.0, "UNTURNED": 1.0, "NARROW_FACTOR": 1.0, "UNTURNED_GROUPS": 1.0, "DEPTHWISE_NCHW": 1.0,
           "DEPTHWISE_SHARE": 0.14}  # fmt: skip
SEEN, NEW = "3090_e_2.4", ("4090_e_2.4", "4090_e_2.9.1", "4090_c_2.9.1")
ROUNDS = 2


def load_benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("image_models", BENCHMARK)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def put(home: Any, name: str, value: float) -> None:
    if name == "DEPTHWISE_SHARE":
        kernels.DEPTHWISE_SHARE["forward"] = value
    else:
        setattr(home, name, value)


def get(home: Any, name: str) -> float:
    return float(kernels.DEPTHWISE_SHARE["forward"] if name == "DEPTHWISE_SHARE" else getattr(home, name))


class Steps:
    """Measured steps with their graphs, read once."""

    def __init__(self, benchmark: Any, rows: Sequence[dict[str, Any]], fast: Path) -> None:
        self.benchmark, self.graphs = benchmark, {}
        read = benchmark.read_graph
        benchmark.read_graph = lambda path: (
            self.graphs[path] if path in self.graphs else self.graphs.setdefault(path, read(path))
        )
        self.rows, self.fast = rows, fast

    def errors(self, conditions: Sequence[str]) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
        self.benchmark.INFERENCE = tuple(conditions)
        found = [one for row in self.rows for one in self.benchmark.price_inference(row, self.fast, {})]
        return {
            name: np.array([one.seconds / one.measured - 1 for one in found if one.condition == name])
            for name in conditions
        }


def choose(steps: Steps) -> dict[str, float]:
    """The constants that leave the least mean error on the seen GPU, one after the other."""
    for home, name in GRID:
        put(home, name, NEUTRAL[name])
    for _ in range(ROUNDS):
        for (home, name), values in GRID.items():
            scores = []
            for value in values:
                put(home, name, value)
                scores.append(float(np.abs(steps.errors([SEEN])[SEEN]).mean()))
            put(home, name, values[int(np.argmin(scores))])
    return {name: get(home, name) for home, name in GRID}


def describe(error: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    size = np.abs(error)
    return (
        f"n {len(error):4}  mean {size.mean():6.1%}  median {np.median(size):6.1%}  p90 {np.quantile(size, 0.9):6.1%}"
        f"  bias {np.median(error):+6.1%}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    from pyarrow import parquet

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", type=Path, required=True)
    parser.add_argument(
        "--sample", choices=("chosen", "fresh", "unseen", "all"), default="all", help="of the new GPU's steps"
    )
    options = parser.parse_args(arguments)
    benchmark = load_benchmark()
    index = parquet.read_table(benchmark.DATA / "infer_index.parquet").to_pylist()
    shipped = {name: get(home, name) for home, name in GRID}
    found = choose(Steps(benchmark, benchmark.draw(index, "chosen"), options.fast))
    say(f"shipped {shipped}\nwithout the new GPU {found}")
    asked = benchmark.draw_unseen(index) if options.sample == "unseen" else benchmark.draw(index, options.sample)
    steps = Steps(load_benchmark(), asked, options.fast)
    for name, error in steps.errors((SEEN, *NEW)).items():
        say(f"{name:14} {describe(error)}")
    kernels.STRIDED_SUM = 1.0
    for name, error in steps.errors(NEW[2:]).items():
        say(f"{name:14} {describe(error)}  without the rule of strided sums")


if __name__ == "__main__":
    main()
