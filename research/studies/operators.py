"""What the operator models cost and how far they are off, on devices and models left out: research.studies.operators PART.

PART is speed, steps, ablation, baselines or single; all but the first need the measured data in ../shared.
"""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from research.baselines.operators import fit_additive, roofline_seconds, scale_waves
from research.fits.operators.data import DEVICE_OF, Rows, read_rows
from research.fits.operators.models import Recipe, describe_rows, fit_learned
from research.fits.operators.network import Training
from traincast import catalog
from traincast.catalog import from_shape, workload
from traincast.cost import SLACK, Learned, Pricing, Similarity, Voices, load_learned
from traincast.forecast import forecast
from traincast.spec import Forecast, Graph, Job, Op

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "gpu_ops"
NVIDIA = tuple(name for name in DEVICE_OF.values() if name != "mi100")
NEUSIGHT_TRAINED_ON = ("p4", "p100-pcie-16g", "t4", "v100-pcie-32g", "a100-pcie-40g")
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    device: str
    model: str
    graph: Graph
    measured_s: float
    clean: bool
    neusight_s: float | None


def read_steps() -> list[Step]:
    """The plain single-device runs. Where memory allocation spoilt the forward pass, only the backward pass is scored."""
    import pyarrow.parquet as pq

    return [
        Step(
            device=DEVICE_OF[row["gpu"]],
            model=row["model"],
            graph=build_graph(row["model"], row["batch"], row["seq"], row["mode"]),
            measured_s=1e-3 * (row["latency_ms"] if row["label_quality"] == "ok" else row["bw_ms"]),
            clean=row["label_quality"] == "ok",
            neusight_s=1e-3 * row["pred_neusight_ms"],
        )
        for row in pq.read_table(DATA / "gpu_steps.parquet").to_pylist()
        if row["n_gpus"] == 1 and not row["torch_compile"]
    ]


def build_graph(model: str, batch: int, seq: int, mode: str) -> Graph:
    recipe: dict[str, Any] = {
        "mode": "inference" if mode == "inference" else "forward_backward",
        "attention": "eager",
        "loss": False,
    }
    if model == "bert_large" and mode == "inference":
        # NeuSight ran inference with a classifier on top, training with the two heads of pre-training.
        return from_shape(
            arch="bert", n_layers=24, hidden=1024, heads=16, vocab=30522, seq=seq, batch=batch, style={"head": "squad"}, **recipe
        )  # fmt: skip
    return workload({"bert_large": "bert-large", "gpt2_large": "gpt2-large"}[model], batch=batch, seq=seq, **recipe)


def price(step: Step, learned: Any) -> Forecast:
    cluster = catalog.cluster(device=step.device, nodes=1, devices_per_node=1)
    return forecast(Job(graph=step.graph), cluster, costs=Pricing(ops=learned))


def score(steps: list[Step], choose: Callable[[Step], Any]) -> dict[str, list[tuple[float, bool]]]:
    """Relative errors of the clean steps, and whether the 90% interval held, by device."""
    found: dict[str, list[tuple[float, bool]]] = {}
    for step in steps:
        if not step.clean:
            continue
        answer = price(step, choose(step)).step
        held = answer.low_s <= step.measured_s <= answer.high_s
        found.setdefault(step.device, []).append((answer.seconds / step.measured_s - 1, held))
    return found


def show(title: str, found: Mapping[str, list[tuple[float, bool]]]) -> None:
    errors = np.array([error for rows in found.values() for error, _ in rows])
    held = np.mean([kept for rows in found.values() for _, kept in rows])
    parts = " ".join(f"{name} {100 * np.mean([abs(e) for e, _ in rows]):.1f}" for name, rows in found.items())
    print(
        f"{title:<34} mean {100 * np.mean(np.abs(errors)):5.1f}  median {100 * np.median(np.abs(errors)):5.1f}  "
        f"p90 {100 * np.quantile(np.abs(errors), 0.9):5.1f}  worst {100 * np.max(np.abs(errors)):5.1f}  "
        f"bias {100 * np.median(errors):+5.1f}  held {100 * held:3.0f}%  | {parts}",
        flush=True,
    )


def show_each(steps: list[Step], choose: Callable[[Step], Any]) -> None:
    for step in steps:
        answer = price(step, choose(step)).step
        note = "" if step.clean else "  against the backward pass alone: its forward label is spoilt"
        error = 100 * (answer.seconds / step.measured_s - 1)
        print(
            f"  {step.device:<16}{step.model:<12}{step.graph.mode:<18}batch {step.graph.batch_size:<3} {error:+6.1f}%{note}"
        )


def run_speed() -> None:
    ops = [
        Op(
            name="mm", kind="matmul", flop=2.0 * (64 + i) * 1024 * 512, bytes_read=4e6, bytes_written=1e6,
            attrs={"batch": 1, "m": 64 + i, "n": 1024, "k": 512, "layout": "tn"},
        )
        for i in range(10_000)
    ]  # fmt: skip
    half = [replace(op, dtype="bf16") for op in ops]
    started_s = time.perf_counter()
    learned = load_learned()
    print(f"load weights {1e3 * (time.perf_counter() - started_s):.1f} ms")
    for name in ("v100-pcie-32g", "h100-sxm-80g"):
        device = catalog.device(name)
        best_s = min(_timed(lambda device=device: learned.predict(ops, device)) for _ in range(5))
        print(f"10,000 distinct products on {name}: {1e3 * best_s:.1f} CPU ms")
        best_s = min(_timed(lambda device=device: learned.predict(half, device)) for _ in range(5))
        print(f"10,000 distinct products in bf16 on {name}: {1e3 * best_s:.1f} CPU ms")


def _timed(call: Callable[[], object]) -> float:
    started_s = time.process_time()
    call()
    return time.process_time() - started_s


def quick_rows(rows: dict[tuple[str, str], Rows]) -> dict[tuple[str, str], Rows]:
    """No step here convolves: keep just enough of that family to fit it."""
    kept = {key: found for key, found in rows.items() if key[0] != "conv"}
    for key, found in rows.items():
        if key[0] == "conv":
            kept[key] = found.where(np.arange(len(found.seconds)) < 200)
    return kept


def fit_folds(rows: Mapping[tuple[str, str], Rows], recipe: Recipe, **changes: Any) -> dict[str, Learned]:
    return {name: fit_learned(rows, recipe=recipe, without_device=name, **changes) for name in NVIDIA}


def blind_spreads(folds: Mapping[str, Learned]) -> dict[str, Learned]:
    """Every fold with the spreads that ship: they were found by leaving devices out of operators, never from steps."""
    shipped = load_learned().families
    return {
        name: replace(
            learned,
            families={
                family: replace(
                    voices, sigma_seen=shipped[family].sigma_seen, sigma_unseen=shipped[family].sigma_unseen
                )
                for family, voices in learned.families.items()
            },
        )
        for name, learned in folds.items()
    }


def run_steps() -> None:
    steps = read_steps()
    rows = quick_rows(read_rows(DATA))
    recipe = Recipe()
    folds = blind_spreads(fit_folds(rows, recipe))
    nvidia = [step for step in steps if step.device in NVIDIA]
    show("leave one GPU out", score(nvidia, lambda step: folds[step.device]))
    show_each(nvidia, lambda step: folds[step.device])
    models = {name: fit_learned(rows, recipe=recipe, without_model=name) for name in ("bert_large", "gpt2_large")}
    models = blind_spreads(models)
    show("seen GPU, model left out", score(nvidia, lambda step: models[step.model]))
    strict = blind_spreads({"five": fit_learned(rows, recipe=recipe, only=NEUSIGHT_TRAINED_ON)})["five"]
    show("strict: NeuSight's five GPUs only", score(steps, lambda _step: strict))
    show("shipped, MI100 (seen)", score([s for s in steps if s.device == "mi100"], lambda _step: load_learned()))
    peers: dict[str, list[tuple[float, bool]]] = {}
    for step in nvidia:
        if step.clean and step.neusight_s is not None:
            peers.setdefault(step.device, []).append((step.neusight_s / step.measured_s - 1, False))
    show("NeuSight, published (has seen them)", peers)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherVoices:
    """Any regressor per device in the slot of the networks."""

    names: tuple[str, ...]
    places: Array
    handicap: Array
    low: Array
    high: Array
    sigma_seen: float
    sigma_unseen: float
    answer: tuple[Callable[[Array], Array], ...]

    def slowdown(self, features: Callable[[str], Array], weight: Array) -> Array:
        parts = zip(weight, self.answer, self.names, strict=True)
        return np.asarray(sum(w * call(features(name)) for w, call, name in parts), dtype=np.float64)


def swap_voices(
    rows: Mapping[tuple[str, str], Rows],
    learned: Learned,
    fit: Callable[[Array, Array, Array], Callable[[Array], Array]],
) -> Learned:
    families: dict[str, Any] = {}
    for family, voices in learned.families.items():
        names = tuple(dict.fromkeys(voices.names))
        answers = []
        for name in names:
            bounded = describe_rows(family, rows[family, name], name, learned.law)
            target = np.log(rows[family, name].seconds / bounded.bound_s)
            answers.append(fit(bounded.features, np.clip(target, -SLACK, 4.0), rows[family, name].weight))
        families[family] = OtherVoices(
            names=names, places=np.array([voices.places[voices.names.index(name)] for name in names]),
            handicap=np.array([voices.handicap[voices.names.index(name)] for name in names]), low=voices.low,
            high=voices.high, sigma_seen=0.1, sigma_unseen=0.1, answer=tuple(answers),
        )  # fmt: skip
    return replace(learned, families=families)


def grow_trees(features: Array, target: Array, weight: Array) -> Callable[[Array], Array]:
    import lightgbm as lgb

    settings = {
        "objective": "l1", "num_leaves": 31, "learning_rate": 0.06, "min_data_in_leaf": 30, "num_threads": 1, "verbose": -1,
        "seed": 0, "deterministic": True,
    }  # fmt: skip
    booster = lgb.train(settings, lgb.Dataset(features, target, weight=weight), 200)
    return lambda asked: np.asarray(booster.predict(asked), dtype=np.float64)


def fit_level(features: Array, target: Array, weight: Array) -> Callable[[Array], Array]:
    """The analytic curve: one utilisation that falls with partial waves and short kernels, by three coefficients."""
    design = _curve(features)
    root = np.sqrt(weight)[:, None]
    solution, *_ = np.linalg.lstsq(design * root, target * root[:, 0], rcond=None)
    return lambda asked: np.maximum(_curve(asked) @ solution, -SLACK)


def _curve(features: Array) -> Array:
    size = features[:, 1] if features.shape[1] > 10 else features[:, 0]
    fill = -np.log(np.maximum(features[:, 6], 0.05)) if features.shape[1] > 10 else np.zeros(len(features))
    return np.stack([np.ones(len(features)), np.exp2(-0.5 * size), fill], axis=1)


def run_ablation() -> None:
    steps = [step for step in read_steps() if step.device in NVIDIA]
    rows = quick_rows(read_rows(DATA))
    recipe = Recipe(num_members=1, training=Training(num_epochs=40))
    folds = fit_folds(rows, recipe)

    def report(title: str, changed: Mapping[str, Learned]) -> None:
        show(title, score(steps, lambda step: changed[step.device]))

    def similar(**fields: float) -> dict[str, Learned]:
        return {name: _replace_similarity(learned, Similarity(**fields)) for name, learned in folds.items()}

    report("soft similarity, capped, networks", folds)
    report("hard nearest device", similar(reach=0.05))
    report("pooled devices", similar(reach=50.0))
    report("without the make of the memory", similar(chip=0.0, memory=0.0))
    report("boosted trees as voices", {name: swap_voices(rows, learned, grow_trees) for name, learned in folds.items()})
    report(
        "analytic curves as voices", {name: swap_voices(rows, learned, fit_level) for name, learned in folds.items()}
    )
    report("nominal peak, no power cap", fit_folds(rows, replace(recipe, capped=False)))
    operators_only = {key: found.where(found.model == "") for key, found in rows.items()}
    report("without rows of model nodes", fit_folds(operators_only, recipe))
    report("soaked with heat in the step", _soaked(folds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Soaked:
    learned: Learned

    def estimate_ops(self, ops: Any, device: Any) -> Any:
        hot = self.learned.predict(ops, device, soak=1.0)
        cool = self.learned.predict(ops, device)
        ratio = hot.seconds / np.maximum(cool.seconds, 1e-12)
        return tuple(e.scaled(float(r)) for e, r in zip(self.learned.estimate_ops(ops, device), ratio, strict=True))


def _soaked(folds: Mapping[str, Learned]) -> dict[str, Any]:
    return {name: Soaked(learned=learned) for name, learned in folds.items()}


def _replace_similarity(learned: Learned, similarity: Similarity) -> Learned:
    families: dict[str, Voices] = {}
    for family, voices in learned.families.items():
        places = np.array([similarity.place(catalog.device(name), family) for name in voices.names])
        families[family] = replace(voices, places=places)
    return replace(learned, families=families, similarity=similarity)


def run_baselines() -> None:
    """On the same clean steps: the data sheet alone, a line per kind, and one device's prices carried to another."""
    steps = [step for step in read_steps() if step.device in NVIDIA and step.clean]
    shipped = load_learned()

    def table(title: str, answer: Callable[[Step], float]) -> None:
        found: dict[str, list[tuple[float, bool]]] = {}
        for step in steps:
            found.setdefault(step.device, []).append((answer(step) / step.measured_s - 1, False))
        show(title, found)

    def total(step: Step, seconds: Array) -> float:
        return float((seconds * np.array(step.graph.counts())).sum())

    table("roofline of the data sheet", lambda s: total(s, roofline_seconds(s.graph.ops, catalog.device(s.device))))

    def line(step: Step) -> float:
        ops, seconds, devices = [], [], []
        for other in steps:
            if other.device != step.device:
                device = catalog.device(other.device)
                ops += list(other.graph.ops)
                seconds += shipped.predict(other.graph.ops, device).seconds.tolist()
                devices += [device] * len(other.graph.ops)
        return total(step, fit_additive(ops, seconds, devices).seconds(step.graph.ops, catalog.device(step.device)))

    table("a line per kind, other GPUs", line)
    for origin_name in ("v100-pcie-32g", "t4"):
        origin = catalog.device(origin_name)

        def waves(step: Step, origin: Any = origin) -> float:
            measured = shipped.predict(step.graph.ops, origin).seconds
            return total(step, scale_waves(measured, step.graph.ops, origin=origin, target=catalog.device(step.device)))

        table(f"wave scaling from {origin_name}", waves)


CASES = DATA.parents[1] / "cases"


def run_single() -> None:
    """One device in half precision or TF32 as shipped, nothing granted; the constants of the stacks have seen these rows."""
    from pyarrow import parquet

    from traincast.accuracy import Scored, answer_rows, parse_case, parse_observation, score_time

    table = parquet.read_table(DATA.parents[1] / "cases" / "single_gpu.parquet").to_pylist()
    rows = [row for row in table if row["dtype"] != "fp32" and parse_observation(row).scores_time]
    scored = [
        Scored(case=parse_case(row), observation=parse_observation(row), prediction=answer)
        for row, answer in zip(rows, answer_rows(rows), strict=True)
    ]
    groups = {
        "all": scored,
        "without Sia": [one for one, row in zip(scored, rows, strict=True) if "sia" not in row["source"]],
    }
    for source in sorted({row["source"] for row in rows}):
        groups[source] = [one for one, row in zip(scored, rows, strict=True) if row["source"] == source]
    for name, chosen in groups.items():
        found = score_time(chosen)
        print(f"{name:20} n {found.num_cases:4} mean {found.mean:6.1%} median {found.median:6.1%} p90 {found.p90:6.1%}")


PARTS = {
    "single": run_single,
    "speed": run_speed,
    "steps": run_steps,
    "ablation": run_ablation,
    "baselines": run_baselines,
}


def main() -> None:
    part = sys.argv[1] if len(sys.argv) > 1 else "speed"
    if part not in PARTS:
        raise SystemExit(f"unknown part {part!r}; known parts: {', '.join(PARTS)}")
    PARTS[part]()


if __name__ == "__main__":
    main()
