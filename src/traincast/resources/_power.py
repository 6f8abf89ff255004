"""The document `power` to what devices draw, at work and while they wait, and how a power limit stretches a step."""

import functools

from traincast.catalog import read_constants
from traincast.noun import noun


@noun
class Power:
    """Shares of the rated power, but for the last four (see the document)."""

    idle: float
    work: float
    static: float
    kept: float
    follows: float
    drawn_low: float
    drawn_high: float

    def draw(self, busy: float, limit: float | None = None) -> float:
        """Mean share of the rated power, of a device that runs kernels for a share `busy` of the time."""
        free = self.idle + self.work * min(1.0, busy)
        return free if limit is None else min(free, self.kept * limit)

    def full_seconds(self, busy: float, limit: float | None, *, training_s: float, waiting_s: float) -> float:
        """Seconds at rated power that take the same energy."""
        return self.draw(busy, limit) * training_s + self.draw(0.0, limit) * waiting_s

    def stretch(self, limit: float) -> float:
        """How many times longer kernels take where the limit (a share of the rated power) holds a busy device: its clock follows
        what is left above the static draw."""
        free, held = self.draw(1.0), self.draw(1.0, limit)
        if held >= free:
            return 1.0
        left = max(held - self.static, 0.03 * (free - self.static))
        return 1.0 + self.follows * ((free - self.static) / left - 1.0)


@functools.cache
def power() -> Power:
    return read_constants(Power, "power")
