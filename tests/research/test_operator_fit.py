from functools import cache
from pathlib import Path

import numpy as np
import pytest

from research.fits.operators.network import Training, softplus, train_network

pytest.importorskip("pyarrow")

from research.fits.operators.__main__ import main, save
from research.fits.operators.data import Rows, read_rows
from research.fits.operators.models import Recipe, fit_learned, fit_power_law, residuals_on, shared_spread, spread
from traincast.catalog import device as find_device
from traincast.cost._bounds import sustained_clock
from traincast.cost._learned import load_learned
from traincast.errors import InvalidInput

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "gpu_ops"
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the measured operators are not at {SHARED}")


@cache
def shared_rows() -> dict[tuple[str, str], Rows]:
    return read_rows(SHARED, max_rows=60)


QUICK = Recipe(num_members=1, training=Training(num_epochs=6))


def _make_rows(slowdown: float, *, num_rows: int = 400, seed: int = 0) -> Rows:
    """Products on a V100 that all run `slowdown` times longer than their arithmetic alone."""
    rng = np.random.default_rng(seed)
    m, n, k = (2.0 ** rng.uniform(9, 13, num_rows) for _ in range(3))
    columns = np.stack(
        [np.ones(num_rows), m, n, k, np.zeros(num_rows), np.full(num_rows, 4.0), 4 * (m * k + k * n + m * n)], axis=1
    )
    seconds = slowdown * 2 * m * n * k / 14e12
    return Rows(
        columns=columns,
        seconds=seconds,
        weight=np.ones(num_rows),
        model=np.full(num_rows, ""),
        real=np.ones(num_rows, dtype=np.bool_),
    )


def test_the_same_seed_gives_the_same_digits_and_another_seed_does_not() -> None:
    rng = np.random.default_rng(0)
    inputs, weight = rng.normal(size=(300, 4)), np.ones(300)
    target = softplus(inputs[:, 0])
    first, again, other = (
        train_network(inputs, target, weight, training=Training(num_epochs=3, seed=seed)) for seed in (0, 0, 1)
    )
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert not (first[0] == other[0]).all()


def test_a_network_learns_a_smooth_slowdown() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(2000, 3))
    target = softplus(inputs[:, 0] - 0.5 * inputs[:, 1])
    w1, b1, w2, b2, w3, b3 = train_network(inputs, target, np.ones(2000), training=Training())
    predicted = softplus((np.tanh(np.tanh(inputs @ w1 + b1) @ w2 + b2) @ w3 + b3)[:, 0])
    assert np.mean(np.abs(predicted - target)) < 0.03


def test_the_spread_holds_nine_of_ten() -> None:
    residuals = np.random.default_rng(0).normal(scale=0.2, size=4000)
    assert spread(residuals) == pytest.approx(0.2, rel=0.05)


def test_what_a_device_misses_as_a_whole_is_not_averaged_away() -> None:
    biased = [np.full(100, 0.2), np.full(100, -0.2)]
    assert shared_spread(biased) == pytest.approx(0.2)


def test_without_a_cap_every_card_holds_its_clock() -> None:
    law = fit_power_law({}, [], Recipe(capped=False))
    assert sustained_clock(find_device("t4"), "fp32", law) == pytest.approx(1.0)


def test_missing_data_is_one_sentence_and_exit_code_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path), "--out", str(tmp_path / "w.safetensors")]) == 2
    assert "gemm_linear.parquet" in capsys.readouterr().err
    with pytest.raises(InvalidInput, match="gemm_linear"):
        read_rows(tmp_path)


@needs_data
def test_a_model_left_out_leaves_no_row_behind() -> None:
    rows = shared_rows()
    assert any((found.model == "gpt2_large").any() for found in rows.values())
    kept = {key: found.where(found.model != "gpt2_large") for key, found in rows.items()}
    assert not any((found.model == "gpt2_large").any() for found in kept.values())


@needs_data
def test_a_device_left_out_has_no_voice_and_a_saved_fit_predicts_the_same(tmp_path: Path) -> None:
    rows = shared_rows()
    blind = fit_learned(rows, recipe=QUICK, without_device="t4")
    assert all("t4" not in voices.names for voices in blind.families.values())
    save(blind, tmp_path / "w.safetensors")
    again = load_learned(tmp_path / "w.safetensors")
    found = rows["matmul", "t4"]
    assert residuals_on(again, "matmul", found, "t4") == pytest.approx(
        residuals_on(blind, "matmul", found, "t4"), abs=1e-4
    )


@needs_data
def test_no_row_is_kept_whose_bound_the_host_could_hide() -> None:
    rows = shared_rows()
    assert rows["pointwise", "v100-pcie-32g"].seconds.min() > 2e-5


@needs_data
def test_a_slower_measurement_gives_a_slower_model() -> None:
    rows = shared_rows()
    level = {}
    for slowdown in (1.2, 2.0):
        changed = {**rows, ("matmul", "v100-pcie-32g"): _make_rows(slowdown)}
        learned = fit_learned(changed, recipe=QUICK, only=("v100-pcie-32g", "t4"))
        asked = _make_rows(1.0, num_rows=50, seed=1)
        level[slowdown] = float(np.exp(np.median(residuals_on(learned, "matmul", asked, "v100-pcie-32g"))))
    assert level[1.2] == pytest.approx(1.2, rel=0.15)
    assert level[2.0] == pytest.approx(2.0, rel=0.15)
