"""Quantiles of how measurements lie about a forecast, to intervals and probabilities."""

import itertools
import math

from traincast.errors import InvalidInput
from traincast.noun import noun


@noun
class LogErrors:
    """The log of measured over forecast: its value at each of some levels, between which lines are drawn.

    Beyond the outermost levels the tails fall exponentially, as fast as between the last two.
    """

    levels: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.levels) != len(self.values) or len(self.levels) < 2:
            raise InvalidInput(
                f"{len(self.levels)} levels with {len(self.values)} values; there must be as many, and two or more"
            )
        for row, name in ((self.levels, "levels"), (self.values, "values")):
            if any(b < a for a, b in itertools.pairwise(row)):
                raise InvalidInput(f"the {name} of log errors must not fall: {row}")

    def quantile(self, level: float) -> float:
        """The log error below which so large a share lies."""
        if level < self.levels[0]:
            return self.values[0] - self._low_scale() * math.log(self.levels[0] / max(level, 1e-12))
        if level > self.levels[-1]:
            return self.values[-1] + self._high_scale() * math.log((1 - self.levels[-1]) / max(1 - level, 1e-12))
        place = next(i for i, top in enumerate(self.levels[1:]) if level <= top)
        low, high = self.levels[place], self.levels[place + 1]
        share = (level - low) / (high - low)
        return self.values[place] + share * (self.values[place + 1] - self.values[place])

    def probability_below(self, log_ratio: float) -> float:
        """How often the measurement is below the forecast times exp(log_ratio)."""
        if log_ratio < self.values[0]:
            return self.levels[0] * math.exp((log_ratio - self.values[0]) / self._low_scale())
        if log_ratio > self.values[-1]:
            return 1 - (1 - self.levels[-1]) * math.exp((self.values[-1] - log_ratio) / self._high_scale())
        place = next(i for i, top in enumerate(self.values[1:]) if log_ratio <= top)
        low, high = self.values[place], self.values[place + 1]
        share = (log_ratio - low) / (high - low) if high > low else 0.5
        return self.levels[place] + share * (self.levels[place + 1] - self.levels[place])

    def interval(self, coverage: float) -> tuple[float, float]:
        """Factors on the forecast that hold the measurement as often as `coverage` says."""
        return math.exp(self.quantile((1 - coverage) / 2)), math.exp(self.quantile((1 + coverage) / 2))

    def scaled(self, factor: float) -> "LogErrors":
        return LogErrors(levels=self.levels, values=tuple([factor * value for value in self.values]))

    def _low_scale(self) -> float:
        return max(1e-9, (self.values[1] - self.values[0]) / math.log(self.levels[1] / self.levels[0]))

    def _high_scale(self) -> float:
        fall = math.log((1 - self.levels[-2]) / (1 - self.levels[-1]))
        return max(1e-9, (self.values[-1] - self.values[-2]) / fall)
