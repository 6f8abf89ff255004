"""The fitted constants of kernels on matrix units that ship with the package."""

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from traincast.cost._attention import AttentionLaw
from traincast.cost._bounds import find_silicon
from traincast.cost._products import GroupLaw, ProductLaw, TileLaw
from traincast.noun import noun
from traincast.spec import Device, DeviceLevel

KERNELS = Path(__file__).parent / "weights" / "kernels.json"
FP8_FORMATS = ("fp8", "int8", "fp4")


@noun
class KernelLaws:
    """One law per family of kernels; products in one byte and less have their own shape."""

    half: ProductLaw
    fp8: ProductLaw
    attention: AttentionLaw
    groups: GroupLaw
    """Of products of experts."""
    devices: tuple[str, ...]
    """Those whose kernels were fitted."""
    levels: Mapping[str, DeviceLevel] = field(default_factory=dict)
    """By device, of those that somebody measured products on."""

    def product(self, dtype: str) -> ProductLaw:
        """`dtype`: the format that the device really runs the product in."""
        return self.fp8 if dtype in FP8_FORMATS else self.half

    def level_log_sigma(self, device: Device, law: ProductLaw | AttentionLaw | GroupLaw) -> float:
        """Of a device's level: none where it was measured, more the less is known of its silicon."""
        level = self.levels.get(device.name)
        if level is not None and not isinstance(law, AttentionLaw):
            return level.log_sigma
        if device.name in self.devices:
            return 0.0
        return math.hypot(law.level_log_sigma, find_silicon(device).log_sigma)

    def level(self, device: Device, dtype: str) -> float:
        """Of products in a format; of the formats measured on the device where it was not measured itself."""
        level = self.levels.get(device.name)
        if level is None:
            return 1.0
        if dtype in level.products:
            return level.products[dtype]
        logs = [math.log(ratio) for ratio in level.products.values()]
        return math.exp(sum(logs) / len(logs))


@functools.cache
def load_laws(path: Path = KERNELS) -> KernelLaws:
    values = json.loads(path.read_text(encoding="utf-8"))
    return KernelLaws(
        half=read_product(values["products_half"]), fp8=read_product(values["products_fp8"]),
        attention=AttentionLaw(**values["attention"]), groups=GroupLaw(**values["groups"]), devices=tuple(values["devices"]),
    )  # fmt: skip


def read_product(constants: Mapping[str, Any]) -> ProductLaw:
    """One law of products from its constants as they are written down."""
    values = dict(constants)
    shared, registers = (_read_tiles(values, ending) for ending in ("", "_registers"))
    energy = {"ada": values.pop("ada")}
    return ProductLaw(**values, shared=shared, registers=registers, energy=energy)


def _read_tiles(values: dict[str, Any], ending: str) -> TileLaw:
    share = tuple(values.pop(f"tile_{size}{ending}") for size in (128, 64, 32))
    others = {name: values.pop(f"{name}{ending}") for name in ("wave_loss", "fill", "split_fill")}
    return TileLaw(**others, share=share)
