"""Rows of measured kernels to a Learned: the power law first, then one small network per family, device and member."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from research.fits.operators.data import Rows
from research.fits.operators.network import Training, train_network
from traincast.catalog import device as find_device
from traincast.cost._bounds import PowerLaw, product_flop_per_s, soaked
from traincast.cost._features import CONSTANTS, FAMILIES, Bounded, describe
from traincast.cost._learned import Learned, Similarity, Voices
from traincast.units import NORMAL_90

Array = NDArray[np.float64]
AllRows = Mapping[tuple[str, str], Rows]

CAPPED_BELOW_W_PER_TFLOP = 16.0
"""Cards with fewer watts per TFLOP/s than this cannot hold their boost clock: the law is fitted on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that is chosen, in one place. The values were fixed by leave-one-GPU-out on the visible data."""

    training: Training = field(default_factory=Training)
    num_members: int = 2
    similarity: Similarity = field(default_factory=Similarity)
    seed: int = 0
    capped: bool = True


def fit_power_law(rows: AllRows, names: Sequence[str], recipe: Recipe) -> PowerLaw:
    """From the fastest large products of the cards whose power is short."""
    if not recipe.capped:
        return PowerLaw(clock_per_watt=1e15, heat=0.0)
    shares, losses = [], []
    for name in names:
        device = find_device(name)
        peak, _ = product_flop_per_s(device, "fp32")
        found = rows.get(("matmul", name))
        if found is None or device.power_watts is None or device.vendor != "NVIDIA":
            continue
        if device.power_watts / (peak / 1e12) > CAPPED_BELOW_W_PER_TFLOP:
            continue
        batch, m, n, k = found.columns[:, :4].T
        large = found.real & (np.minimum(m, n) >= 768) & (k >= 512) & (k <= 8192) & (found.seconds > 2e-3)
        utilization = (2 * batch * m * n * k / peak / found.seconds)[large]
        burst_s = found.burst_s[large]
        cool = burst_s < 1.0
        if cool.sum() < 20:
            continue
        shares.append(float(np.quantile(utilization[cool], 0.75)) / device.power_watts * peak)
        hot = burst_s > 20.0
        if hot.sum() >= 10:
            lost = 1.0 - float(np.median(utilization[hot]) / np.median(utilization[cool]))
            losses.append(lost / max(1.0 - float(np.quantile(utilization[cool], 0.75)), 0.1))
    default = PowerLaw()
    return PowerLaw(
        clock_per_watt=float(np.mean(shares)) if shares else default.clock_per_watt,
        heat=float(np.clip(np.mean(losses), 0.0, 0.8)) if losses else default.heat,
    )


def describe_rows(family: str, rows: Rows, name: str, law: PowerLaw) -> Bounded:
    return describe(family, rows.columns, find_device(name), law, soak=soaked_bursts(rows))


def soaked_bursts(rows: Rows) -> Array:
    return np.array([soaked(burst_s) for burst_s in rows.burst_s.tolist()])


def fit_learned(rows: AllRows, *, recipe: Recipe, without_device: str = "", without_model: str = "",
                only: Sequence[str] | None = None) -> Learned:  # fmt: skip
    """`without_device`, `without_model`: leave every row of it out, operators and nodes alike."""
    names = [name for name in dict.fromkeys(name for _, name in rows) if name != without_device]
    if only is not None:
        names = [name for name in names if name in only]
    kept = {
        key: found.where(found.model != without_model) if without_model else found
        for key, found in rows.items()
        if key[1] in names
    }
    law = fit_power_law(kept, names, recipe)
    families = {family: _fit_family(family, kept, law, recipe) for family in FAMILIES}
    return Learned(
        families=families,
        similarity=recipe.similarity,
        law=law,
    )


def _fit_family(family: str, rows: AllRows, law: PowerLaw, recipe: Recipe) -> Voices:
    names = [name for kind, name in rows if kind == family and len(rows[kind, name].seconds) >= 30]
    bounded = {name: describe_rows(family, rows[family, name], name, law) for name in names}
    pooled = np.concatenate([bounded[name].features for name in names])
    mean, scale = pooled.mean(axis=0), pooled.std(axis=0) + 1e-3
    low, high = np.quantile(pooled, 0.001, axis=0) - 1e-6, np.quantile(pooled, 0.999, axis=0) + 1e-6
    stacks: list[list[Array]] = [[] for _ in range(6)]
    residuals = []
    for index, name in enumerate(names):
        part, found = bounded[name], rows[family, name]
        inputs = (np.clip(part.features, low, high) - mean) / scale
        # A kernel that beat the bound by more was served by a cache the bound does not know.
        target = np.clip(np.log(found.seconds / part.bound_s) + CONSTANTS.slack, 0.005, 4.0)
        members = []
        for member in range(recipe.num_members):
            seed = recipe.seed + 1000 * index + member
            layers = train_network(inputs, target, found.weight, training=replace(recipe.training, seed=seed))
            members.append(layers)
            for stack, layer in zip(stacks, layers, strict=True):
                stack.append(layer)
        predicted = np.mean([_forward(layers, inputs) for layers in members], axis=0)
        residuals.append((predicted - target)[found.real | ~found.real.any()])
    return Voices(
        names=tuple(name for name in names for _ in range(recipe.num_members)),
        places=np.array(
            [recipe.similarity.place(find_device(name), family) for name in names for _ in range(recipe.num_members)]
        ),
        handicap=np.array([_handicap(rows[family, name]) for name in names for _ in range(recipe.num_members)]),
        mean=mean,
        scale=scale,
        layers=tuple(np.array(stack, dtype=np.float32) for stack in stacks),
        low=low,
        high=high,
        sigma_seen=shared_spread(residuals),
        sigma_unseen=2 * shared_spread(residuals),
    )


FEW_REAL_ROWS = 200
HANDICAP = 0.09


def _handicap(rows: Rows) -> float:
    return HANDICAP if int(rows.real.sum()) < FEW_REAL_ROWS else 0.0


def _forward(layers: Sequence[Array], inputs: Array) -> Array:
    w1, b1, w2, b2, w3, b3 = layers
    return np.logaddexp(0.0, (np.tanh(np.tanh(inputs @ w1 + b1) @ w2 + b2) @ w3 + b3)[:, 0])


def spread(residuals: Array) -> float:
    """The sigma whose 90% interval holds 90% of them: conformal, on the log scale."""
    return float(np.quantile(np.abs(residuals), 0.9) / NORMAL_90)


def shared_spread(by_device: Sequence[Array]) -> float:
    """Of what the kernels of a family miss together on one device, which a step of many kernels does not average out.

    The scatter of single kernels is larger; half of it is kept, as one step runs few distinct shapes.
    """
    together = float(np.sqrt(np.mean([np.median(residuals) ** 2 for residuals in by_device])))
    alone = float(np.median([np.median(np.abs(residuals - np.median(residuals))) for residuals in by_device]))
    return float(np.hypot(together, 0.5 * 1.4826 * alone))


def residuals_on(learned: Learned, family: str, rows: Rows, name: str) -> Array:
    """log(predicted / measured) of rows on a device as the model sees it."""
    voices = learned.families[family]
    bounded = describe_rows(family, rows, name, learned.law)
    weight, _ = learned.similarity.weigh(learned.similarity.place(find_device(name), family), voices)
    return np.log(bounded.bound_s / rows.seconds) + voices.slowdown(bounded.features, weight)


def leave_devices_out(rows: AllRows, *, recipe: Recipe) -> dict[str, dict[str, Array]]:
    """log(predicted / measured) by family and device, each device answered by a fit that saw no row of it."""
    found: dict[str, dict[str, Array]] = {family: {} for family in FAMILIES}
    for name in dict.fromkeys(name for _, name in rows):
        blind = fit_learned(rows, recipe=recipe, without_device=name)
        for family in FAMILIES:
            mine = rows.get((family, name))
            if mine is not None and family in blind.families:
                kept = mine.where(mine.real) if mine.real.any() else mine
                found[family][name] = residuals_on(blind, family, kept, name)
    return found


STEP_SHARE = 0.7
"""How much of a family's left-out spread over all measured shapes a real step shows: the rest are shapes no model runs."""


def widen(learned: Learned, blind: Mapping[str, Mapping[str, Array]]) -> Learned:
    """Intervals for devices never measured, from devices that were left out."""
    families = {}
    for family, voices in learned.families.items():
        others = [residuals for name, residuals in blind[family].items() if find_device(name).vendor == "NVIDIA"]
        unseen = STEP_SHARE * shared_spread(others) if others else 2 * voices.sigma_seen
        families[family] = replace(voices, sigma_unseen=max(unseen, voices.sigma_seen))
    return replace(learned, families=families)
