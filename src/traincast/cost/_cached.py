"""An op model that prices the same ops on the same device once: rows of a table that differ in placement share them."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import field

from traincast.cost import OpModel
from traincast.noun import noun
from traincast.spec import Device, Estimate, Op

CAPACITY = 256

_Key = tuple[str, tuple[int, ...]]
_Entry = tuple[tuple[Op, ...], tuple[Estimate, ...]]


@noun
class Cached:
    """Any op model, with its last answers kept. Devices of one name are taken to be equal, as in the catalogue."""

    base: OpModel
    _memory: "OrderedDict[_Key, _Entry]" = field(default_factory=OrderedDict)

    def estimate_ops(self, ops: Sequence[Op], device: Device) -> tuple[Estimate, ...]:
        # Ops are told apart by identity, which is exact and cheap; the entry keeps them alive, so no identity is reused.
        key = device.name, tuple(id(op) for op in ops)
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key][1]
        estimates = self.base.estimate_ops(ops, device)
        self._memory[key] = tuple(ops), estimates
        if len(self._memory) > CAPACITY:
            self._memory.popitem(last=False)
        return estimates
