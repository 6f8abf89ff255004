"""The baselines repeat the figures that ../shared/cases/README.md prints for them."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.baselines import constant_utilization, nominal_memory_bytes
from research.baselines.ernest import ernest, ernest_by_batch, ernest_by_flop, nonnegative_least_squares
from research.baselines.memory import FAILS_ABOVE_BYTES
from research.baselines.scaling import no_scaling
from traincast.accuracy._cases import Case, Measured, parse_case, parse_observation, read_rows
from traincast.accuracy._scores import score

PEAKS = {"a100": 312e12, "h100-sxm": 989e12, "gb200": 2500e12}
FACTORS = {"bf16": 1, "fp16": 1, "fp8": 2, "fp4": 4, "fp32": 0.0625}


def printed_rate(gpu: str, dtype: str) -> float | None:
    """The peaks that the shared script uses, so that its figures can be repeated to the last digit."""
    peak = next((value for name, value in PEAKS.items() if gpu.startswith(name)), None)
    return None if peak is None or dtype not in FACTORS else peak * FACTORS[dtype]


@cache
def measured(folder: Path, *names: str) -> tuple[Measured, ...]:
    rows = [row for name in names for row in read_rows(folder / f"{name}.parquet")]
    observed = [(row, parse_observation(row)) for row in rows]
    return tuple(
        Measured(case=parse_case(row), step_s=one.step_s) for row, one in observed if one.scores_time and one.step_s
    )


@pytest.mark.parametrize(
    ("known_gpus", "asked_gpus", "constant", "by_flop"),
    [((2, 4), (8,), (51.8, 49.9), (30.0, 24.5))],
)
def test_vtrain_scale_baselines_repeat_the_printed_figures(
    shared_cases: Path,
    known_gpus: tuple[int, ...],
    asked_gpus: tuple[int, ...],
    constant: tuple[float, float],
    by_flop: tuple[float, float],
) -> None:
    rows = [row for row in measured(shared_cases, "llm") if row.case.source == "vtrain_single"]
    known = [row for row in rows if row.case.n_gpus in known_gpus]
    asked = [row for row in rows if row.case.n_gpus in asked_gpus]
    truth, cases = [row.step_s for row in asked], [row.case for row in asked]
    assert len(asked) == 540
    for guess, printed in (
        (constant_utilization(known, cases, rate=printed_rate), constant),
        (ernest_by_flop(known, cases, rate=printed_rate), by_flop),
    ):
        found = score(truth, guess)
        assert found.mean is not None
        assert found.median is not None
        assert (round(found.mean * 100, 1), round(found.median * 100, 1)) == printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "no_scaling_figures", "ernest_figures"),
    [("sia_aws", (47.0, 55.2), (26.3, 28.5)), ("sia_dgx", (15.6, 10.6), (9.2, 6.4))],
)
def test_sia_baselines_repeat_the_printed_figures(
    shared_cases: Path, cluster: str, no_scaling_figures: tuple[float, float], ernest_figures: tuple[float, float]
) -> None:
    rows = [
        row
        for row in measured(shared_cases, "single_gpu", "dp")
        if (row.case.source or "").removesuffix("-ext") == cluster
    ]
    known = [row for row in rows if row.case.n_nodes == 1]
    asked = [row for row in rows if (row.case.n_nodes or 1) > 1]
    truth, cases = [row.step_s for row in asked], [row.case for row in asked]
    for guess, printed in (
        (no_scaling(known, cases), no_scaling_figures),
        (ernest_by_batch(known, cases), ernest_figures),
    ):
        found = score(truth, guess)
        assert found.mean is not None
        assert found.median is not None
        assert (round(found.mean * 100, 1), round(found.median * 100, 1)) == printed


def test_the_nominal_memory_formula_repeats_the_printed_figures(shared_cases: Path) -> None:
    rows = [row for row in read_rows(shared_cases / "memory.parquet") if row["source"] == "hf_ultrascale"]
    pairs = [(nominal_memory_bytes(parse_case(row)), parse_observation(row)) for row in rows]
    good = [(one.memory_bytes, guess) for guess, one in pairs if one.status == "ok" and one.memory_bytes]
    found = score([truth for truth, _ in good], [guess for _, guess in good])
    assert found.num_answered == 1064
    assert found.mean is not None
    assert round(found.mean * 100, 1) == 14.7
    right = sum((one.status == "failed") == ((guess or 0) > FAILS_ABOVE_BYTES) for guess, one in pairs)
    assert round(right / len(pairs) * 100, 1) == 89.6


def make_case(**values: object) -> Case:
    return Case(**{"case_id": "x", "gpu": "a100-sxm4-40g", "source": "s", "model": "m", **values})  # type: ignore[arg-type]


def test_no_scaling_interpolates_the_own_profile_and_grows_linearly_above_it() -> None:
    known = [Measured(case=make_case(n_gpus=1, micro_batch=float(b)), step_s=t) for b, t in ((1, 1.0), (4, 2.0))]
    asked = [make_case(n_gpus=8, micro_batch=float(b)) for b in (1, 2, 4, 8)]
    assert no_scaling(known, asked) == pytest.approx([1.0, 2**0.5, 2.0, 4.0])


def test_no_scaling_has_no_answer_for_a_job_it_never_saw() -> None:
    known = [Measured(case=make_case(n_gpus=1, micro_batch=1.0), step_s=1.0)]
    assert no_scaling(known, [make_case(model="other", n_gpus=8, micro_batch=1.0)]) == [None]


def test_ernest_recovers_the_law_it_assumes() -> None:
    def law(case: Case) -> float:
        return 0.1 + 2.0 * (case.global_batch or 0) / (case.n_gpus or 1) + 0.05 * (case.n_gpus or 1)

    cases = [make_case(n_gpus=n, global_batch=float(b)) for n in (1, 2, 4, 8) for b in (8, 16, 64)]
    known = [Measured(case=case, step_s=law(case)) for case in cases]
    far = make_case(n_gpus=32, global_batch=512.0)
    assert ernest(known, [far], size=lambda case: case.global_batch) == pytest.approx([law(far)], rel=1e-6)


@given(st.integers(0, 2**32 - 1))
def test_least_squares_weights_are_never_negative_and_never_worse_than_zero(seed: int) -> None:
    random = np.random.default_rng(seed)
    design, target = random.normal(size=(12, 4)), random.normal(size=12)
    weights = nonnegative_least_squares(design, target)
    assert (weights >= 0).all()
    assert np.linalg.norm(design @ weights - target) <= np.linalg.norm(target) + 1e-9
