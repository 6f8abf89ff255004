"""What operators ask of a simulated cluster: when a job starts, how many nodes are enough, what nodes that come and go change."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from traincast.errors import InvalidInput, UnknownName
from traincast.noun import noun
from traincast.schedule._estimators import Estimator, Fixed, Limits
from traincast.schedule._jobs import Floats, JobTable
from traincast.schedule._metrics import Metrics, measure_schedule
from traincast.schedule._study import Setting, run_policy
from traincast.spec import Fleet, NodePool
from traincast.units import NORMAL_90, parse_seconds

DRAWS = 40


@noun
class Start:
    """When one waiting job starts and ends, in seconds from now: the middle, and nine of ten draws at the latest."""

    job_id: str
    policy: str
    num_draws: int
    p50_start_s: float
    p90_start_s: float
    p50_end_s: float
    p90_end_s: float
    ahead: int
    """Jobs that wait and were submitted before it."""


def predict_start(
    job_id: str,
    jobs: JobTable,
    setting: Setting,
    *,
    policy: str,
    past: JobTable | None = None,
    forecast: Estimator | None = None,
    seed: int = 0,
) -> Start:
    """Let the cluster go on from now, again and again, with run times drawn from what is known of them: a forecast's interval,
    else the parts of their limits that earlier jobs (`past`) used. The scheduler goes by forecasts, or by limits."""
    rows = [row for row, name in enumerate(jobs.job_ids) if name == job_id]
    if not rows:
        waiting = [name for name, ran in zip(jobs.job_ids, jobs.ran_s, strict=True) if math.isnan(ran)]
        raise UnknownName("waiting job", job_id, waiting)
    row = rows[0]
    rng = np.random.default_rng(seed)
    setting = replace(setting, estimator=forecast or Limits(), record=False)
    found = []
    for _ in range(DRAWS):
        drawn = jobs.with_durations(_draw_durations(jobs, past, forecast, rng))
        schedule = run_policy(policy, drawn, setting)
        found.append((float(schedule.start_s[row]), float(schedule.end_s[row])))
    starts, ends = (np.array(column) for column in zip(*found, strict=True))
    if np.isnan(starts).all():
        raise InvalidInput(f"job {job_id} never starts: {schedule.rejected.get(row, 'other jobs always go first')}")
    middle = [float(np.nanquantile(column, share)) for column in (starts, ends) for share in (0.5, 0.9)]
    ahead = int(np.isnan(jobs.ran_s[:row]).sum())
    return Start(
        job_id=job_id, policy=policy, num_draws=DRAWS, p50_start_s=middle[0], p90_start_s=middle[1],
        p50_end_s=middle[2], p90_end_s=middle[3], ahead=ahead,
    )  # fmt: skip


def _draw_durations(
    jobs: JobTable, past: JobTable | None, forecast: Estimator | None, rng: np.random.Generator
) -> Floats:
    """What is left of every job; one that runs lasts longer than it has run."""
    count = len(jobs)
    ran = np.nan_to_num(jobs.ran_s)
    whole = jobs.duration_s + ran
    if forecast is not None and isinstance(beliefs := forecast.start(jobs), Fixed):
        limits = [beliefs.interval_s(job) for job in range(count)]
        spread = [0.0 if pair is None else math.log(pair[1] / pair[0]) / (2 * NORMAL_90) for pair in limits]
        whole = (beliefs.values_s + ran) * np.exp(np.array(spread) * rng.standard_normal(count))
    elif past is not None:
        known = ~np.isnan(past.limit_s) & (past.limit_s > 0)
        ratios = np.clip(past.duration_s[known] / past.limit_s[known], 1e-3, 1.0)
        if len(ratios):
            least = np.minimum(ran / np.maximum(whole, 1.0), 1.0)
            ordered = np.sort(ratios)
            first = np.searchsorted(ordered, least)
            drawn = first + (rng.random(count) * (len(ordered) - first)).astype(np.int64)
            whole = whole * np.where(first < len(ordered), ordered[np.minimum(drawn, len(ordered) - 1)], 1.0)
    return np.maximum(whole - ran, 1.0)


GOAL = re.compile(r"\s*(\w+)\s*<\s*([\w.]+)\s*")


def parse_goal(text: str) -> Callable[[Metrics], bool]:
    """'p90_wait<1h': a metric and what it must stay below."""
    found = GOAL.fullmatch(text)
    names = [name.removesuffix("_s") for name in Metrics.__annotations__ if name.endswith("_s")]
    if found is None or found[1].removesuffix("_s") not in names:
        raise InvalidInput(
            f"--until {text!r} is neither a time such as 7d nor METRIC<TIME; metrics: {', '.join(names)}"
        )
    name, most = f"{found[1].removesuffix('_s')}_s", parse_seconds(found[2])

    def is_met(metrics: Metrics) -> bool:
        return metrics.unfinished == 0 and metrics.rejected == 0 and float(getattr(metrics, name)) < most

    return is_met


def find_nodes(
    jobs: JobTable, setting: Setting, *, policy: str, goal: Callable[[Metrics], bool], most: int = 16
) -> tuple[Fleet | None, int]:
    """The smallest number of nodes of the first pool with which the goal is met, up to `most` times those given; None if it never
    is. Also how many fleets were tried. More nodes are taken to wait less, so the number is searched by halving."""
    tried: dict[int, bool] = {}

    def is_enough(nodes: int) -> bool:
        if nodes not in tried:
            fleet = _with_nodes(setting.fleet, nodes)
            tried[nodes] = goal(measure_schedule(run_policy(policy, jobs, replace(setting, fleet=fleet, record=False))))
        return tried[nodes]

    given = setting.fleet.pools[0].num_nodes
    high = max(given, 1)
    while not is_enough(high):
        if high >= most * given:
            return None, len(tried)
        high *= 2
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return _with_nodes(setting.fleet, high), len(tried)


def _with_nodes(fleet: Fleet, nodes: int) -> Fleet:
    return replace(fleet, pools=(replace(fleet.pools[0], num_nodes=nodes), *fleet.pools[1:]))


@noun
class PlannedNodes:
    """Nodes that join, leave or are set aside at known moments: (node, from, to) is when it is not there. Jobs on a node that
    leaves are cut off and start again."""

    gone: tuple[tuple[int, float, float], ...]

    def _spans(self, node: int) -> list[tuple[float, float]]:
        return sorted((begin, end) for which, begin, end in self.gone if which == node)

    def up_s(self, node: int, count: int) -> float:
        """From the end of the last absence to the beginning of the next."""
        spans = self._spans(node)
        if count >= len(spans):
            return 1e30
        return spans[count][0] - (spans[count - 1][1] if count else 0.0)

    def repair_s(self, node: int, count: int) -> float:
        spans = self._spans(node)
        return spans[count][1] - spans[count][0] if count < len(spans) else 0.0


def plan_nodes(text: str, fleet: Fleet) -> tuple[Fleet, PlannedNodes]:
    """'2d:+4,5d:-2,6d-7d:-8': four nodes of the first pool join at two days, two leave at five, eight are set aside at six."""
    first = fleet.pools[0].num_nodes
    joining: list[tuple[int, float, float]] = []
    leaving: list[tuple[int, float, float]] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*([\w.]+?)(?:-([\w.]+))?:([+-])(\d+)\s*", part)
        if found is None or (found[2] is not None and found[3] == "+"):
            raise InvalidInput(f"{part!r} is not TIME:+NODES, TIME:-NODES or TIME-TIME:-NODES, such as 2d:+4")
        begin, count = parse_seconds(found[1]), int(found[4])
        if found[3] == "+":
            joining += [(first + len(joining) + at, 0.0, begin) for at in range(count)]
            continue
        if count > first:
            raise InvalidInput(f"{part!r}: {count} nodes cannot leave, the first pool has {first}")
        end = 1e30 if found[2] is None else parse_seconds(found[2])
        leaving += [(first - 1 - at, begin, end) for at in range(count)]
    wider = _with_nodes(fleet, first + len(joining))
    return wider, PlannedNodes(gone=(*joining, *leaving))


def match_types(jobs: JobTable, pools: Sequence[NodePool]) -> tuple[JobTable, list[str]]:
    """GPU types of a log (a100, tesla_v100) as the devices of the fleet (a100-80g), by their words, and what was done."""
    devices = list(dict.fromkeys(pool.device for pool in pools))
    asked = {kind for kind in jobs.gpu_types if kind is not None}
    chosen: dict[str, str | None] = {}
    for kind in sorted(asked - set(devices)):
        words = set(re.split(r"[\W_]+", kind.lower())) - {"", "nvidia", "tesla", "geforce", "gpu", "amd", "instinct"}
        fitting = [name for name in devices if words & set(re.split(r"[\W_]+", name.lower()))]
        chosen[kind] = fitting[0] if fitting else devices[0] if len(devices) == 1 else None
    if not chosen:
        return jobs, []
    told = [f"{kind} as {name}" if name else f"{kind} as any (no pool has it)" for kind, name in chosen.items()]
    types = [chosen.get(kind, kind) if kind is not None else None for kind in jobs.gpu_types]
    return replace(jobs, gpu_types=types), [f"GPU types of the log are read as those of the cluster: {', '.join(told)}"]
