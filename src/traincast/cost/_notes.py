"""What a user should know about the kernels of a step: widths that cost time, silicon that nobody measured."""

from collections.abc import Sequence

from traincast.cost import OpModel
from traincast.cost._alignment import warn_alignment
from traincast.cost._silicon import name_unknown_silicon
from traincast.spec import Device, Op


def note_kernels(
    ops: Sequence[Op], device: Device, model: OpModel, counts: Sequence[float] | None = None
) -> tuple[str, ...]:
    """`counts`: how often each op runs; once where it is not given."""
    unknown = name_unknown_silicon(device)
    return (*((unknown,) if unknown else ()), *warn_alignment(ops, device, model, counts))
