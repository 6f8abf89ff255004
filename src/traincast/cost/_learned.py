"""Operations and a device to seconds, by small networks fitted under a physical bound: one voice per measured device.

Every measured device has its own networks for log(seconds / bound). A device asks all of them and weighs their answers by
how alike the two data sheets are, so a device never measured enters only through its sheet, and softly.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincast import catalog
from traincast.cost import OpModel
from traincast.cost._attention import AttentionLaw, AttentionShape, time_attention
from traincast.cost._bounds import (
    KERNEL_FLOOR_S,
    PowerLaw,
    generation,
    product_flop_per_s,
    stacked_memory,
)
from traincast.cost._features import FAMILIES, Shapes, describe, saturate
from traincast.cost._laws import KernelLaws, load_laws
from traincast.cost._operators import Kernels, list_kernels
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
from traincast.spec import Device, DeviceLevel, Estimate, Op
from traincast.units import NORMAL_90

Array = NDArray[np.float64]

LIMITS = ("compute", "memory")
PRODUCTS = ("matmul", "conv")
LAWFUL = ("product", "grouped", "attention", "lanes", "blocks")
"""Families of kernels that closed laws price."""
LEVELLED = ("product", "grouped")
"""Those whose level on a device one measured product tells."""
STREAMING = ("pointwise", "softmax", "norm")
"""Families bound by memory."""
RECENT, UNLIKE = 3.0, 0.4
"""The generation from which the product law's share of DRAM holds, and the distance from which it holds alone."""
SLACK = 0.15
"""How far, in log time, a card may beat the clock we expect under its power cap; it never beats the full clock."""
BLOCK = 1024
"""Kernels that are asked for at once."""
WEIGHTS = Path(__file__).parent / "weights" / "operators.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCosts:
    """One entry per op, in the order asked."""

    seconds: Array
    log_sigma: Array
    """One standard deviation of log(measured / predicted)."""
    limit: NDArray[np.str_]
    ground: NDArray[np.str_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarity:
    """How alike two data sheets are, by what library kernels and clocks depend on."""

    reach: float = 0.8
    """The width of the kernel, in distances of the nearest measured device: a measured device listens to itself."""
    nearest: float = 0.03
    """Two sheets closer than this are the same device to us."""
    chip: float = 0.5
    """Weight of stacked against ordinary memory, for products: it also tells chips for data centres from those for graphics."""
    memory: float = 0.4
    """The same for families bound by memory."""

    def place(self, device: Device, family: str) -> Array:
        """Coordinates of a device; a distance of 1 is one generation of product kernels.

        No rate is among them: a faster device of the same make asks the same measured devices, so it is never slower.
        """
        vendor = 0.0 if device.vendor.upper() in ("NVIDIA", "") else 6.0
        stacked = stacked_memory(device)
        if family in PRODUCTS:
            return np.array([generation(device), vendor, self.chip * stacked])
        return np.array([0.5 * generation(device), vendor, self.memory * stacked])

    def weigh(self, place: Array, voices: "Voices") -> tuple[Array, float]:
        """The weight of each voice, and the distance of the nearest."""
        squared = ((voices.places - place) ** 2).sum(axis=1) + voices.handicap**2
        width = self.reach**2 * (squared.min() + self.nearest**2)
        weight = np.exp(-(squared - squared.min()) / (2 * width))
        return weight / weight.sum(), float(np.sqrt(squared.min()))


@dataclass(frozen=True, slots=True, kw_only=True)
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

    def slowdown(self, features: Callable[[str], Array], weight: Array) -> Array:
        """The weighted geometric mean of log(seconds / bound) over the voices, each at the features of its own device."""
        heard = np.flatnonzero(weight > 0.01 * weight.max())
        total: Array | float = 0.0
        for name in dict.fromkeys(self.names[voice] for voice in heard):
            own = [int(voice) for voice in heard if self.names[voice] == name]
            for voice, said in zip(own, self._ask(features(name), own), strict=True):
                total = total + weight[voice] * said
        return np.asarray(total / weight[heard].sum() - SLACK, dtype=np.float64)

    def _ask(self, features: Array, voices: Sequence[int]) -> NDArray[np.float32]:
        """What the voices of one device say, all at once, each a matrix of the stack; block by block, which stay in a cache."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
        for family, dtype in kernels.groups:
            part = kernels.groups[family, dtype]
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
        weight, distance = _weigh(self.similarity, device, family, voices)
        nothing = np.zeros_like(part.resident)
        asked: dict[str, Array] = {}
        if dtype == "fp32" and soak == 0.0 and not part.resident.any() and _is_measured(device, voices):
            asked[device.name] = bounded.features

        def features(name: str) -> Array:
            # A kernel's utilisation is asked of measured devices as they are: no rate of this device enters it.
            found = asked.get(name)
            if found is None:
                found = describe(family, shapes, catalog.device(name), self.law, resident=nothing).features
                if family in STREAMING:
                    # Products ask once, and memory that is given back at once is at hand for the next device.
                    asked[name] = found
            return found

        slowdown = voices.slowdown(features, weight)
        by_compute = bounded.compute_s > bounded.memory_s
        kernel_s = bounded.bound_s * np.exp(slowdown)
        if family in STREAMING:
            # A kernel that is timed alone shows its start as lost bandwidth; in a queue it streams as a long one does.
            steady = self._steady(_long_slowdown(family, part, voices, features, weight), device, distance)
            kernel_s = np.minimum(kernel_s, self.laws.half.start_s + bounded.bound_s * np.exp(steady))
        sigma = np.full(len(slowdown), _blend(voices.sigma_seen, voices.sigma_unseen, distance))
        outside = ((bounded.features < voices.low) | (bounded.features > voices.high)).any(axis=1)
        sigma = np.hypot(np.where(outside, 1.3 * sigma, sigma), part.extra_sigma)
        seconds = np.maximum(np.maximum(kernel_s, bounded.floor_s), KERNEL_FLOOR_S) * part.factor
        measured = device.name in voices.names and (dtype == "fp32" or family not in PRODUCTS)
        ground = np.maximum(0 if measured else 1, part.ground)
        return seconds, sigma, ground, by_compute

    def _steady(self, slowdown: Array, device: Device, distance: float) -> Array:
        """Of long streams: as measured in fp32 on like devices; toward the share of DRAM that kernels on the devices of the
        product law reach, the less like a device is."""
        if generation(device) < RECENT or device.vendor.upper() not in ("NVIDIA", ""):
            return slowdown
        unlike = min(1.0, distance / UNLIKE)
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
        seconds = np.maximum(timed.seconds, KERNEL_FLOOR_S) * part.factor
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


_WEIGHTS: dict[tuple[int, int, int, str], tuple[Similarity, Device, Voices, tuple[Array, float]]] = {}
_MOST_WEIGHTS = 512


def _weigh(similarity: Similarity, device: Device, family: str, voices: Voices) -> tuple[Array, float]:
    """The weights of the voices for the last devices asked for, which every plan asks again."""
    key = id(similarity), id(device), id(voices), family
    found = _WEIGHTS.get(key)
    if found is None:
        if len(_WEIGHTS) >= _MOST_WEIGHTS:
            _WEIGHTS.clear()
        # What it follows from is kept with it, so nothing else can come by the same identities.
        weights = similarity.weigh(similarity.place(device, family), voices)
        found = _WEIGHTS[key] = similarity, device, voices, weights
    return found[3]


def with_levels(model: OpModel, levels: Sequence[DeviceLevel]) -> OpModel:
    """The model with products of measured devices at their measured level; a model without laws stays as it is."""
    if not levels or not isinstance(model, Learned):
        return model
    return replace(model, laws=replace(model.laws, levels={level.device: level for level in levels}))


def _long_slowdown(
    family: str, part: Kernels, voices: Voices, features: Callable[[str], Array], weight: Array
) -> Array:
    """Of the same kernels were they long. Pointwise ones then differ in few respects, so each sort of them is asked once."""
    if family != "pointwise" or not len(part.columns):
        return voices.slowdown(lambda name: saturate(features(name)), weight)
    _, inputs, heavy, aligned = part.columns.T
    _, first, place = np.unique(
        np.minimum(inputs, 3.0) + 16.0 * heavy + 0.5 * aligned, return_index=True, return_inverse=True
    )
    return voices.slowdown(lambda name: saturate(features(name)[first]), weight)[place]


def _is_measured(device: Device, voices: Voices) -> bool:
    """Whether the networks know this very sheet; one that was altered asks the measured ones."""
    return device.name in voices.names and device == catalog.device(device.name)


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
    families = {
        family: Voices(
            names=tuple(names[family]),
            places=np.array([similarity.place(catalog.device(name), family) for name in names[family]]),
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


def read_safetensors(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The public format, read without its library: a length, a JSON header, raw little-endian numbers."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    notes = header.pop("__metadata__", {})
    arrays = {}
    for name, entry in header.items():
        start, stop = (8 + length + offset for offset in entry["data_offsets"])
        arrays[name] = np.frombuffer(raw[start:stop], dtype="<f4").reshape(entry["shape"]).astype(np.float64)
    return arrays, notes


def write_safetensors(path: Path, arrays: Mapping[str, Array], notes: Mapping[str, str]) -> None:
    header: dict[str, object] = {"__metadata__": dict(notes)}
    blobs, offset = [], 0
    for name in sorted(arrays):
        blob = np.ascontiguousarray(arrays[name], dtype="<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(arrays[name].shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))
