"""Operations and a device to seconds, by small networks fitted under a physical bound: one voice per measured device.

Every measured device has its own networks for log(seconds / bound). A device asks all of them about its own waves and limits and
weighs their answers by how alike the two data sheets are.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincast import catalog
from traincast.cost import OpModel
from traincast.cost._attention import AttentionLaw, AttentionShape, time_attention
from traincast.cost._bounds import CONSTANTS as BOUNDS
from traincast.cost._bounds import (
    PowerLaw,
    generation,
    product_flop_per_s,
    stacked_memory,
)
from traincast.cost._features import CONSTANTS, FAMILIES, Shapes, describe, saturate
from traincast.cost._kernels import Kernels, list_kernels
from traincast.cost._laws import KernelLaws, load_laws
from traincast.cost._products import (
    GroupLaw,
    ProductLaw,
    ProductShape,
    time_blocks,
    time_groups,
    time_lanes,
    time_products,
)
from traincast.errors import InvalidInput
from traincast.files import read_safetensors
from traincast.noun import noun
from traincast.spec import MATMULS, Device, DeviceLevel, Estimate, Op
from traincast.units import NORMAL_90

Array = NDArray[np.float64]

LIMITS = ("compute", "memory")
LAWFUL = ("product", "grouped", "attention", "lanes", "blocks")
"""Families of kernels that closed laws price."""
LEVELLED = ("product", "grouped")
"""Those whose level on a device one measured product tells."""
STREAMING = ("pointwise", "softmax", "norm")
"""Families bound by memory."""
BLOCK = 1024
"""Kernels that are asked for at once."""
WEIGHTS = Path(__file__).parent / "weights" / "operators.safetensors"


@noun
class OpCosts:
    """One entry per op, in the order asked."""

    seconds: Array
    log_sigma: Array
    """One standard deviation of log(measured / predicted)."""
    limit: NDArray[np.str_]
    ground: NDArray[np.str_]


@noun
class Similarity:
    """How alike two data sheets are, by what library kernels and clocks depend on."""

    reach: float = CONSTANTS.reach
    nearest: float = CONSTANTS.nearest
    chip: float = CONSTANTS.chip
    memory: float = CONSTANTS.memory

    def place(self, device: Device, family: str) -> Array:
        """Coordinates of a device; a distance of 1 is one generation of product kernels.

        No rate is among them: a faster device of the same make asks the same measured devices, so it is never slower.
        """
        vendor = 0.0 if device.vendor.upper() in ("NVIDIA", "") else CONSTANTS.other_vendor
        stacked = stacked_memory(device)
        if family in MATMULS:
            return np.array([generation(device), vendor, self.chip * stacked])
        return np.array([CONSTANTS.streamed_generations * generation(device), vendor, self.memory * stacked])

    def weigh(self, place: Array, voices: "Voices") -> tuple[Array, float]:
        """The weight of each voice, and the distance of the nearest."""
        squared = ((voices.places - place) ** 2).sum(axis=1) + voices.handicap**2
        width = self.reach**2 * (squared.min() + self.nearest**2)
        weight = np.exp(-(squared - squared.min()) / (2 * width))
        return weight / weight.sum(), float(np.sqrt(squared.min()))


@noun
class Voices:
    """The networks of one family: for every measured device a few members, stacked along the first axis."""

    names: tuple[str, ...]
    """The measured device behind each network; members of one device follow one another."""
    places: Array
    handicap: Array
    """Added to the distance of a device that was measured on few shapes of real models: it is trusted less, even by itself."""
    mean: Array
    scale: Array
    layers: tuple[NDArray[np.float32], ...]
    low: Array
    high: Array
    """The range of features that was measured."""
    sigma_seen: float
    sigma_unseen: float

    def slowdown(self, features: Array, weight: Array) -> Array:
        """The weighted geometric mean of log(seconds / bound) over the voices."""
        heard = np.flatnonzero(weight > CONSTANTS.least_voice * weight.max())
        said = self._ask(features, heard)
        return np.asarray(weight[heard] @ said / weight[heard].sum() - CONSTANTS.slack, dtype=np.float64)

    def _ask(self, features: Array, voices: NDArray[np.intp]) -> NDArray[np.float32]:
        """What these voices say, all at once, each a matrix of the stack; block by block, which stay in a cache."""
        w1, b1, w2, b2, w3, b3 = (layer[voices].swapaxes(1, -1) for layer in self.layers)
        b1, b2, b3 = b1[..., None], b2[..., None], b3[..., None]
        low, high, mean, scale = (
            one[:, None].astype(np.float32) for one in (self.low, self.high, self.mean, self.scale)
        )
        said = np.empty((len(voices), len(features)), dtype=np.float32)
        # Kernels lie along the last axis: steps over it are long.
        across = features.T.astype(np.float32)
        for start in range(0, len(features), BLOCK):
            scaled = np.maximum(across[:, start : start + BLOCK], low)
            np.minimum(scaled, high, out=scaled)
            scaled -= mean
            scaled /= scale
            hidden = w1 @ scaled
            hidden += b1
            hidden = w2 @ np.tanh(hidden, out=hidden)
            hidden += b2
            raw = w3 @ np.tanh(hidden, out=hidden)
            raw += b3
            # Raw answers are far below where an exponential of four bytes ends.
            np.log1p(np.exp(raw[:, 0]), out=said[:, start : start + BLOCK])
        return said


@noun
class Learned:
    """Prices operations on one device (an OpModel)."""

    families: Mapping[str, Voices]
    similarity: Similarity = field(default_factory=Similarity)
    law: PowerLaw = field(default_factory=PowerLaw)
    laws: KernelLaws = field(default_factory=load_laws)

    def predict(self, ops: Sequence[Op], device: Device, *, soak: float = 0.0, lone: bool = False) -> OpCosts:
        """`soak`: how far sustained load has warmed the card in fp32, 0 to 1 (see traincast.cost._bounds.soaked).

        `lone`: kernels on matrix units as a benchmark of single kernels reads them, not as a training step runs them.
        """
        kernels = list_kernels(ops, device)
        num_ops = len(ops)
        seconds, compute_s = np.zeros(num_ops), np.zeros(num_ops)
        spread, worst = np.zeros(num_ops), np.zeros(num_ops, dtype=np.int64)
        for (family, dtype), part in kernels.items():
            if family in LAWFUL:
                cost_s, sigma, ground, by_compute = self._price_by_law(family, dtype, part, device, lone=lone)
            else:
                cost_s, sigma, ground, by_compute = self._price(family, dtype, part, device, soak)
            owner = part.owner
            np.add.at(seconds, owner, cost_s)
            np.add.at(compute_s, owner, cost_s * by_compute)
            np.add.at(spread, owner, cost_s * sigma)
            np.maximum.at(worst, owner, ground)
        safe = np.maximum(seconds, 1e-12)
        grounds = np.array(("measured", "transfer", "bound"))
        return OpCosts(
            seconds=seconds,
            log_sigma=spread / safe,
            limit=np.where(compute_s > 0.5 * safe, LIMITS[0], LIMITS[1]),
            ground=grounds[worst],
        )

    def _price(self, family: str, dtype: str, part: Kernels, device: Device,
               soak: float) -> tuple[Array, Array, NDArray[np.int64], NDArray[np.bool_]]:  # fmt: skip
        voices = self.families[family]
        shapes = Shapes(family, part.columns)
        bounded = describe(family, shapes, device, self.law, dtype=dtype, soak=soak, resident=part.resident)
        weight, distance, asked = _weigh(self.similarity, device, family, voices)
        features = bounded.features
        if asked is not device or dtype != "fp32" or soak or part.resident.any():
            # Utilisation was measured in fp32, on cool devices, with operands in DRAM.
            features = describe(family, shapes, asked, self.law, resident=np.zeros_like(part.resident)).features
        slowdown = voices.slowdown(features, weight)
        by_compute = bounded.compute_s > bounded.memory_s
        kernel_s = bounded.bound_s * np.exp(slowdown)
        if family in STREAMING:
            # A kernel that is timed alone shows its start as lost bandwidth; in a queue it streams as a long one does.
            long = _long_slowdown(family, part, voices, features, weight)
            if family == "pointwise":
                long = self._steady(long, device, distance)
            kernel_s = np.minimum(kernel_s, self.laws.half.start_s + bounded.bound_s * np.exp(long))
        sigma = np.full(len(slowdown), _blend(voices.sigma_seen, voices.sigma_unseen, distance))
        outside = ((bounded.features < voices.low) | (bounded.features > voices.high)).any(axis=1)
        sigma = np.hypot(np.where(outside, CONSTANTS.outside_factor * sigma, sigma), part.extra_sigma)
        seconds = np.maximum(np.maximum(kernel_s, bounded.floor_s), BOUNDS.kernel_floor_s) * part.factor
        measured = device.name in voices.names and (dtype == "fp32" or family not in MATMULS)
        ground = np.maximum(0 if measured else 1, part.ground)
        return seconds, sigma, ground, by_compute

    def _steady(self, slowdown: Array, device: Device, distance: float) -> Array:
        """Of long streams that read and write once: as measured in fp32 on like devices; toward the share of DRAM that kernels
        on the devices of the matmul law reach, the less like a device is. Norms and softmax do more than stream."""
        if generation(device) < CONSTANTS.recent or device.vendor.upper() not in ("NVIDIA", ""):
            return slowdown
        unlike = min(1.0, distance / CONSTANTS.unlike)
        least = np.minimum(slowdown, -np.log(self.laws.half.dram_share))
        return np.asarray((1.0 - unlike) * slowdown + unlike * least, dtype=np.float64)

    def _price_by_law(self, family: str, dtype: str, part: Kernels, device: Device, *,
                      lone: bool) -> tuple[Array, Array, NDArray[np.int64], NDArray[np.bool_]]:  # fmt: skip
        _, real = product_flop_per_s(device, dtype)
        products = self.laws.product(real)
        law: ProductLaw | AttentionLaw | GroupLaw = products
        if family == "attention":
            law = self.laws.attention
            shape = AttentionShape(*part.columns.T)
            timed = time_attention(self.laws.attention, products, shape, device, dtype, lone=lone)
        elif family == "lanes":
            flop, moved, share = part.columns.T
            timed = time_lanes(products, flop, moved, share, device)
        elif family == "blocks":
            num_blocks, each, moved = part.columns.T
            timed = time_blocks(products, num_blocks, each, moved, device)
        else:
            batch, m, n, k, uneven, _, moved = part.columns.T
            gathered = uneven if family == "product" else None
            asked = ProductShape(
                batch=batch, m=m, n=n, k=k, num_bytes=moved, resident=part.resident, gathered_bytes=gathered
            )
            if family == "grouped":
                law = self.laws.groups
                timed = time_groups(self.laws.groups, products, asked, device, dtype, uneven=uneven, lone=lone)
            else:
                timed = time_products(products, asked, device, dtype, lone=lone)
        level = self.laws.level_log_sigma(device, law)
        sigma = np.hypot(np.hypot(law.log_sigma, level), part.extra_sigma)
        if family in LEVELLED and self.laws.levels:
            timed = timed.levelled(self.laws.level(device, real), join=products.join)
        seconds = np.maximum(timed.seconds, BOUNDS.kernel_floor_s) * part.factor
        ground = np.maximum(0 if device.name in self.laws.devices else 1, part.ground)
        return seconds, sigma, ground, timed.compute_s > timed.memory_s

    def estimate_ops(self, ops: Sequence[Op], device: Device) -> tuple[Estimate, ...]:
        costs = self.predict(ops, device)
        factors = np.exp(NORMAL_90 * costs.log_sigma)
        return tuple(
            Estimate(
                seconds=seconds,
                low_s=seconds / factor,
                high_s=seconds * factor,
                limit=limit,
                ground=ground,
            )
            for seconds, factor, limit, ground in zip(
                costs.seconds.tolist(),
                factors.tolist(),
                costs.limit.tolist(),
                costs.ground.tolist(),
                strict=True,
            )
        )


def _weigh(similarity: Similarity, device: Device, family: str, voices: Voices) -> tuple[Array, float, Device]:
    """The weights of the voices, the distance of the nearest, and the device as they are asked about it, with the cache of the
    nearest: what more cache does to utilisation is not extrapolated, so that it never makes a kernel slower."""
    weight, distance = similarity.weigh(similarity.place(device, family), voices)
    l2_bytes = catalog.device_entry(voices.names[int(weight.argmax())]).device.l2_bytes
    return weight, distance, device if l2_bytes == device.l2_bytes else replace(device, l2_bytes=l2_bytes)


def with_levels(model: OpModel, levels: Sequence[DeviceLevel]) -> OpModel:
    """The model with products of measured devices at their measured level; a model without laws stays as it is."""
    if not levels or not isinstance(model, Learned):
        return model
    return replace(model, laws=replace(model.laws, levels={level.device: level for level in levels}))


def _long_slowdown(family: str, part: Kernels, voices: Voices, features: Array, weight: Array) -> Array:
    """Of the same kernels were they long. Pointwise ones then differ in few respects, so each sort of them is asked once."""
    if family != "pointwise" or not len(part.columns):
        return voices.slowdown(saturate(features), weight)
    _, inputs, heavy, aligned = part.columns.T
    _, first, place = np.unique(
        np.minimum(inputs, 3) + 16 * heavy + 0.5 * aligned, return_index=True, return_inverse=True
    )
    return voices.slowdown(saturate(features[first]), weight)[place]


def _blend(seen: float, unseen: float, distance: float) -> float:
    return seen + (unseen - seen) * min(1.0, distance)


@functools.cache
def load_learned(path: Path = WEIGHTS) -> Learned:
    """The fitted models that ship with the package."""
    if not path.is_file():
        raise InvalidInput(f"no fitted operator models at {path}; run `make fit-operators`, which writes them")
    arrays, notes = read_safetensors(path)
    names = json.loads(notes["names"])
    constants = json.loads(notes["constants"])
    similarity = Similarity(**constants["similarity"])
    known = list(dict.fromkeys(name for group in names.values() for name in group))
    measured = dict(zip(known, catalog.devices(known), strict=True))
    families = {
        family: Voices(
            names=tuple(names[family]),
            places=np.array([similarity.place(measured[name], family) for name in names[family]]),
            handicap=arrays[f"{family}.handicap"],
            mean=arrays[f"{family}.mean"],
            scale=arrays[f"{family}.scale"],
            layers=tuple(arrays[f"{family}.layer{index}"].astype(np.float32) for index in range(6)),
            low=arrays[f"{family}.low"],
            high=arrays[f"{family}.high"],
            sigma_seen=float(arrays[f"{family}.sigma"][0]),
            sigma_unseen=float(arrays[f"{family}.sigma"][1]),
        )
        for family in FAMILIES
    }
    return Learned(
        families=families,
        similarity=similarity,
        law=PowerLaw(**constants["law"]),
    )
