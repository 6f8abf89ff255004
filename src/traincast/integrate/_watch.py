"""Step times as they come, laid beside a forecast: how fast, how long still, and what makes the run slow."""

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec import Estimate, Forecast
from traincast.units import NORMAL_90, show_seconds

MAX_BLOCKS = 128
"""Steps are kept as sums over blocks; when there are more, neighbours merge, so a run of any length needs the same memory."""
NUM_GROUPS = 8
"""Consecutive steps resemble each other, so the error of their mean is taken between this many long stretches."""
ASSUMED_SPREAD = 0.1
"""Relative spread between stretches that is believed before they show their own; it weighs as one of them."""
DRIFT = 0.02
"""What the speed of a run still changes by in ways that its past does not show: one standard deviation of the log."""
MIN_STEPS = 8
"""Fewer steps after the warm-up say nothing about a cause."""
TOLERANCE = 0.1
"""A cause that is seen directly is told once the run is this much slower than forecast; without one, beyond the interval."""
NOTABLE = 0.08
"""Share of a step below which waiting, uneven ranks and drift are ordinary."""
EXPLAINS = 1 / 3
"""Share of the excess that a cause must explain to be named as the cause."""


@noun
class StepTime:
    """What one step took."""

    seconds: float
    """From the end of the step before to the end of this one, without what is outside."""
    waiting_s: float = 0.0
    """Of these, for the next batch."""
    outside_s: float = 0.0
    """Beside the step: evaluation, checkpoints, logging."""
    cpu_s: float | None = None
    """CPU time of the process, over its threads; None where something else than a CPU computes."""
    starved_s: float = 0.0
    """Of the step, in which the process was ready and did not run: others had its cores."""
    rank_s: tuple[float, ...] = ()
    """Of each rank by itself, before it waits for the others; empty where it was not taken."""

    def __post_init__(self) -> None:
        for amount in (self.seconds, self.waiting_s, self.outside_s, self.starved_s, *self.rank_s):
            if not (amount >= 0 and math.isfinite(amount)):
                raise InvalidInput(f"a step time of {amount} s; durations are finite and at least 0")


@noun
class Finding:
    """Why a run is slower than forecast."""

    cause: str
    """One of CAUSES."""
    seconds: float
    """Of a step that the cause explains."""
    says: str


CAUSES = ("input pipeline", "straggler", "throttling", "contention", "everywhere")


@noun
class Comparison:
    """The run so far beside its forecast."""

    num_done: int
    num_steps: int | None
    forecast: Estimate | None
    """Of one step; None where none could be made."""
    observed_s: float | None
    """Of one step since the warm-up; None before."""
    recent_s: float | None
    waiting_share: float
    """Of the recent steps, for data."""
    remaining: Estimate | None
    """None where neither the number of steps nor any speed is known."""
    finding: Finding | None

    @property
    def ratio(self) -> float | None:
        """Speed beside the forecast: 0.61 is a run at 61 % of the forecast speed."""
        if self.forecast is None or not self.recent_s:
            return None
        return self.forecast.seconds / self.recent_s

    def says(self) -> str:
        """The comparison as one line."""
        place = f"step {self.num_done:,}" + (f" of {self.num_steps:,}" if self.num_steps is not None else "")
        parts = [place]
        if self.recent_s is not None:
            parts.append(f"{show_seconds(self.recent_s)} per step")
        if self.ratio is not None and self.forecast is not None:
            parts.append(f"{self.ratio:.0%} of the forecast speed ({show_seconds(self.forecast.seconds)})")
        if self.remaining is not None:
            left = self.remaining
            parts.append(
                f"{show_seconds(left.seconds)} left ({show_seconds(left.low_s)} to {show_seconds(left.high_s)})"
            )
        return ", ".join(parts)


@dataclass(slots=True)
class _Block:
    """Sums over consecutive steps."""

    num: int
    seconds: float
    waiting_s: float
    outside_s: float
    starved_s: float
    rank_s: tuple[float, ...]
    num_ranked: int

    @staticmethod
    def of(step: StepTime) -> "_Block":
        return _Block(
            1, step.seconds, step.waiting_s, step.outside_s, step.starved_s, step.rank_s, 1 if step.rank_s else 0
        )

    @property
    def own_s(self) -> float:
        """Of one step, without waiting for data or for a core."""
        return max(0.0, self.seconds - self.waiting_s - self.starved_s) / self.num


class RunWatch:
    """One run under watch. It knows no clock and no framework: whoever runs the training hands in what each step took."""

    def __init__(self, forecast: Forecast | None, *, num_steps: int | None = None, warm_up: int = 3) -> None:
        if num_steps is not None and num_steps < 1:
            raise InvalidInput(f"num_steps = {num_steps}; it must be at least 1, or None where it is not known")
        if warm_up < 0:
            raise InvalidInput(f"warm_up = {warm_up}; it must be at least 0")
        self.forecast = forecast
        self.num_steps = num_steps
        self.warm_up = warm_up
        """First steps that count as done but not as typical: they allocate, compile and fill caches."""
        self.num_done = 0
        self._blocks: list[_Block] = []
        self._block_size = 1

    def observe(self, step: StepTime) -> None:
        self.num_done += 1
        if self.num_done <= self.warm_up:
            return
        if self._blocks and self._blocks[-1].num < self._block_size:
            self._blocks[-1] = _merge(self._blocks[-1], _Block.of(step))
        else:
            self._blocks.append(_Block.of(step))
        if len(self._blocks) > MAX_BLOCKS:
            self._block_size *= 2
            self._blocks = list(_merge_pairs(self._blocks))

    def compare(self) -> Comparison:
        recent = self._recent()
        return Comparison(
            num_done=self.num_done, num_steps=self.num_steps,
            forecast=self.forecast.step if self.forecast is not None else None,
            observed_s=_mean_s(self._blocks), recent_s=_mean_s(recent),
            waiting_share=_share(sum(block.waiting_s for block in recent), sum(block.seconds for block in recent)),
            remaining=self.remaining(), finding=self.find_cause(),
        )  # fmt: skip

    def remaining(self) -> Estimate | None:
        """Time to the end of the last step: forecast and observed steps weighed by their uncertainty."""
        if self.num_steps is None:
            return None
        left = max(0, self.num_steps - self.num_done)
        step = self.expect_step(ahead=left)
        if step is None:
            return None
        outside_s = left * self._outside_s()
        return Estimate(
            seconds=left * step.seconds + outside_s, low_s=left * step.low_s + outside_s,
            high_s=left * step.high_s + outside_s, limit=step.limit, ground=step.ground,
        )  # fmt: skip

    def expect_step(self, *, ahead: int) -> Estimate | None:
        """The mean of the next `ahead` steps with its interval."""
        prior = self._prior()
        seen = self._seen(ahead=ahead)
        if seen is None:
            return self.forecast.step if self.forecast is not None else None
        mean, past_variance, future_variance = seen
        if prior is not None:
            expected, variance = prior
            # Steps that contradict the forecast refute it; a compromise between the two would be wrong either way.
            if abs(mean - expected) <= 3 * math.sqrt(variance + past_variance):
                weight = past_variance / (variance + past_variance)
                mean = weight * expected + (1 - weight) * mean
                past_variance *= 1 - weight
        factor = math.exp(NORMAL_90 * math.sqrt(past_variance + future_variance + DRIFT**2))
        seconds = math.exp(mean)
        limit = self.forecast.step.limit if self.forecast is not None else "compute"
        return Estimate(
            seconds=seconds, low_s=seconds / factor, high_s=seconds * factor, limit=limit, ground="measured"
        )

    def find_cause(self) -> Finding | None:
        """Why the recent steps are slower than forecast; None where they are not, or where it is too early to say."""
        recent = self._recent()
        if sum(block.num for block in self._blocks) < MIN_STEPS:
            return None
        recent_s = _mean_s(recent) or 0.0
        found = (self._waits(recent), self._straggles(recent), self._throttles(), self._starves(recent))
        suspects = [each for each in found if each is not None]
        main = max(suspects, key=lambda found: found.seconds, default=None)
        if self.forecast is None:
            return main
        step = self.forecast.step
        excess_s = recent_s - step.seconds
        if excess_s <= TOLERANCE * step.seconds:
            return None
        if main is not None and main.seconds >= EXPLAINS * excess_s:
            return main
        if recent_s <= step.high_s:
            return None
        also = f"; of it {show_seconds(main.seconds)} is the {main.cause}" if main is not None else ""
        return Finding(
            cause="everywhere",
            seconds=excess_s,
            says=f"slower than forecast everywhere: {show_seconds(recent_s)} per step, the forecast was "
            f"{show_seconds(step.seconds)} and at most {show_seconds(step.high_s)}{also}; other work on this machine, slower "
            "kernels than expected or another precision than forecast are what to look for (traincast compare names the ops)",
        )

    def _waits(self, recent: Sequence[_Block]) -> Finding | None:
        num, seconds = _totals(recent)
        waiting_s = sum(block.waiting_s for block in recent) / num
        if waiting_s < NOTABLE * seconds / num:
            return None
        return Finding(
            cause="input pipeline",
            seconds=waiting_s,
            says=f"the input pipeline is too slow: each step waits {show_seconds(waiting_s)} "
            f"({waiting_s * num / seconds:.0%}) for data; more loader workers, prefetching or cheaper preprocessing help",
        )

    def _starves(self, recent: Sequence[_Block]) -> Finding | None:
        num, seconds = _totals(recent)
        starved_s = sum(block.starved_s for block in recent) / num
        if starved_s < NOTABLE * seconds / num:
            return None
        return Finding(
            cause="contention",
            seconds=starved_s,
            says=f"other programs have its cores: for {show_seconds(starved_s)} of each step ({starved_s * num / seconds:.0%}) "
            "this process was ready and did not run; fewer programs at once, or cores of its own (taskset, cgroups) help",
        )

    def _straggles(self, recent: Sequence[_Block]) -> Finding | None:
        ranked = [block for block in recent if block.num_ranked]
        if not ranked:
            return None
        num = sum(block.num_ranked for block in ranked)
        means = [sum(block.rank_s[rank] for block in ranked) / num for rank in range(len(ranked[0].rank_s))]
        typical_s = statistics.median_low(means)
        slowest = max(range(len(means)), key=means.__getitem__)
        if typical_s <= 0 or means[slowest] < (1 + NOTABLE) * typical_s:
            return None
        ratio = means[slowest] / typical_s
        step_s = _mean_s(recent) or 0.0
        return Finding(
            cause="straggler",
            seconds=step_s * (1 - 1 / ratio),
            says=f"rank {slowest} is a straggler: it needs {ratio:.2f} times as long as a typical rank "
            f"({show_seconds(means[slowest])} against {show_seconds(typical_s)}), and the others wait for it",
        )

    def _throttles(self) -> Finding | None:
        """Steps that grow longer without waiting for data: a significant trend (Kendall 1938) of notable size."""
        own = [block.own_s for block in self._blocks]
        quarter = len(own) // 4
        if quarter < 4 or kendall_z(own) < 3:
            return None
        first_s, last_s = statistics.median(own[:quarter]), statistics.median(own[-quarter:])
        if first_s <= 0 or last_s < (1 + NOTABLE) * first_s:
            return None
        return Finding(
            cause="throttling",
            seconds=last_s - first_s,
            says=f"the device is slowing down: {show_seconds(first_s)} per step at first, {show_seconds(last_s)} now; look at "
            "its temperature, its power limit and what else runs on it",
        )

    def _prior(self) -> tuple[float, float] | None:
        """Mean and variance of the log of a step, as forecast."""
        if self.forecast is None:
            return None
        step = self.forecast.step
        if not 0 < step.low_s < step.high_s:
            return None
        return math.log(step.seconds), (math.log(step.high_s / step.low_s) / (2 * NORMAL_90)) ** 2

    def _seen(self, *, ahead: int) -> tuple[float, float, float] | None:
        """Log of the mean step, the variance of that mean, and of the mean of the steps ahead; None before any."""
        num, seconds = _totals(self._blocks)
        if not num or seconds <= 0:
            return None
        groups = _group(self._blocks, NUM_GROUPS)
        mean_s = seconds / num
        squares = sum((block.seconds / block.num / mean_s - 1) ** 2 for block in groups)
        variance = (squares + ASSUMED_SPREAD**2) / len(groups)
        per_group = num / len(groups)
        return math.log(mean_s), variance / len(groups), variance / max(1.0, ahead / per_group)

    def _outside_s(self) -> float:
        """Of one step: as observed, before that as forecast."""
        num, _ = _totals(self._blocks)
        if num:
            return sum(block.outside_s for block in self._blocks) / num
        if self.forecast is None or not self.forecast.job.num_steps:
            return 0.0
        job = self.forecast.job
        return (job.evaluation_s + job.checkpoint_s + job.loading_stall_s) / job.num_steps

    def _recent(self) -> Sequence[_Block]:
        """The last quarter of the steps, of a short run its last eight."""
        chosen: list[_Block] = []
        wanted = max(MIN_STEPS, sum(block.num for block in self._blocks) // 4)
        for block in reversed(self._blocks):
            if sum(each.num for each in chosen) >= wanted:
                break
            chosen.append(block)
        return chosen[::-1]


def kendall_z(values: Sequence[float]) -> float:
    """How many standard deviations more pairs rise than fall, were the order random (Mann 1945)."""
    num = len(values)
    if num < 3:
        return 0.0
    rises = sum(
        (later > earlier) - (later < earlier) for index, earlier in enumerate(values) for later in values[index + 1 :]
    )
    return rises / math.sqrt(num * (num - 1) * (2 * num + 5) / 18)


def _merge(left: _Block, right: _Block) -> _Block:
    if left.rank_s and right.rank_s:
        rank_s = tuple(a + b for a, b in zip(left.rank_s, right.rank_s, strict=True))
    else:
        rank_s = left.rank_s or right.rank_s
    return _Block(
        left.num + right.num, left.seconds + right.seconds, left.waiting_s + right.waiting_s,
        left.outside_s + right.outside_s, left.starved_s + right.starved_s, rank_s, left.num_ranked + right.num_ranked,
    )  # fmt: skip


def _merge_pairs(blocks: Sequence[_Block]) -> Iterator[_Block]:
    for index in range(0, len(blocks), 2):
        pair = blocks[index : index + 2]
        yield _merge(*pair) if len(pair) == 2 else pair[0]


def _group(blocks: Sequence[_Block], num_groups: int) -> list[_Block]:
    """Neighbouring blocks together, at most `num_groups` of about equal length."""
    bounds = [round(index * len(blocks) / num_groups) for index in range(num_groups + 1)]
    groups = []
    for start, stop in itertools.pairwise(bounds):
        if start < stop:
            whole = blocks[start]
            for block in blocks[start + 1 : stop]:
                whole = _merge(whole, block)
            groups.append(whole)
    return groups


def _totals(blocks: Sequence[_Block]) -> tuple[int, float]:
    return sum(block.num for block in blocks), sum(block.seconds for block in blocks)


def _mean_s(blocks: Sequence[_Block]) -> float | None:
    num, seconds = _totals(blocks)
    return seconds / num if num else None


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
