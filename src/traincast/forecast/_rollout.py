"""Responses to seconds and memory: prompts are read, tokens follow one by one, and the longest responses are waited for."""

import bisect
import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING

from traincast.cost import Pipelined, copy_bytes_per_s
from traincast.errors import IllegalPlan
from traincast.noun import noun
from traincast.spec import Cluster, Collective, Graph, Job, Lengths, NodeGroup, Parallelism, Rollout, Stack

if TYPE_CHECKING:
    from traincast.forecast._engine import Engine

CACHE_READ_SHARE = 0.8
"""Of the memory rate at which kernels for one query read keys and values (FlashDecoding, PagedAttention): as our fits find for
other kernels that stream through memory."""
TOKEN_S = 1e-3
"""What an engine does between two tokens on the host: scheduling, sampling, de-tokenising. A belief, not measured; vLLM 0.5 spent
more than half of its time there and 0.6 was built to hide it (vLLM team, September 2024)."""
LOG_SIGMA = 0.3
"""Standard deviation of our belief in the log time of generation: no rollout was measured here."""
ROLLOUT_SHARE = 0.9
"""Of a device that only generates: vLLM's default."""
LEAST_WEIGHT_SHARE = 0.5
"""Of the memory that is left, which weights of the generator may take before more devices share them."""
MOST_SIMULATED = 16_384
"""Responses of one generator that are followed one by one; more of them take longer in proportion."""
COPY_EFFICIENCY = 0.8
_GOLDEN = 0.6180339887498949


@noun
class Generation:
    """One rollout."""

    prefill_s: float
    decode_s: float
    sync_s: float
    """New weights to the generators, and training state out of their way."""
    num_generators: int
    tensor: int
    most_at_once: int
    """Sequences that the cache has room for or the engine takes."""
    mean_at_once: float
    tail_s: float
    """In which fewer than half of the sequences at once are still running."""
    cache_bytes: float
    """Of keys and values on one device when it is fullest."""
    needed_bytes: float
    """On one device for the weights and a single longest response, with what training keeps there."""
    capacity_bytes: float
    token_s: float
    """Between two tokens of a response, on average."""

    @property
    def seconds(self) -> float:
        return self.prefill_s + self.decode_s

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.capacity_bytes


def generate(
    engine: "Engine", rollout: Rollout, job: Job, cluster: Cluster, plan: Parallelism, *, resident_bytes: float,
    outside_bytes: float,
) -> Generation:  # fmt: skip
    """`resident_bytes`: what training keeps on a device while it generates; `outside_bytes`: beside the allocator."""
    group = min(cluster.groups, key=lambda one: one.device.memory_bytes)
    separate = rollout.num_devices > 0
    capacity = group.device.memory_bytes - outside_bytes
    share = rollout.memory_share or (ROLLOUT_SHARE if separate else None)
    kept = 0.0 if separate or rollout.offloads else resident_bytes
    room = capacity - kept if share is None else min(capacity - kept, share * group.device.memory_bytes)
    devices = rollout.num_devices or cluster.num_devices
    tensor = rollout.tensor or choose_tensor(rollout, room, devices)
    if devices % tensor:
        raise IllegalPlan(f"rollout_tp = {tensor} does not divide the {devices} devices that generate")
    generators = devices // tensor
    place = _place_of(group, tensor)
    weight_bytes = rollout.weight_bytes / tensor
    cache_bytes = rollout.cache_bytes_per_token / min(tensor, rollout.cache_ways)
    longest_bytes = cache_bytes * (rollout.prompt_tokens + rollout.lengths.longest)
    needed = kept + weight_bytes + longest_bytes + (capacity - kept - room)
    context = rollout.prompt_tokens + (rollout.lengths.longest if rollout.is_plain else rollout.lengths.mean)
    most = rollout.most_sequences * (tensor if rollout.is_plain else 1)
    slots = max(1, min(most, int(max(room - weight_bytes, 0.0) / (cache_bytes * context))))
    own = math.ceil(rollout.num_responses / generators)
    speeds = Speeds(
        step_s=price_tokens(engine, rollout.decodes, place, tensor, software=job.stack if rollout.is_plain else None),
        cached_s=cache_bytes / (CACHE_READ_SHARE * group.device.memory_bytes_per_s * group.speed),
    )
    lengths = draw_lengths(rollout.lengths, own)
    run_through = follow_batches if rollout.is_plain else follow
    run = run_through(lengths, speeds, slots=min(slots, own), prompt_tokens=rollout.prompt_tokens)
    software = job.stack if rollout.is_plain else None
    prefill_s = _run_once(engine, rollout.prefill, place, tensor, software) / rollout.prefill.batch_size
    prompts = math.ceil(rollout.num_prompts / generators)
    return Generation(
        prefill_s=prefill_s * prompts,
        decode_s=run.seconds * own / len(lengths),
        sync_s=_sync(rollout, cluster, plan, tensor=tensor, resident_bytes=resident_bytes),
        num_generators=generators,
        tensor=tensor,
        most_at_once=min(slots, own),
        mean_at_once=run.mean_at_once,
        tail_s=run.tail_s,
        cache_bytes=min(run.most_tokens * cache_bytes, max(room - weight_bytes, longest_bytes)),
        needed_bytes=needed,
        capacity_bytes=capacity,
        token_s=run.seconds / run.num_steps if run.num_steps else 0.0,
    )


def choose_tensor(rollout: Rollout, room_bytes: float, num_devices: int) -> int:
    """The fewest devices among which the weights leave room for keys and values."""
    tensor = 1
    while rollout.weight_bytes / tensor > LEAST_WEIGHT_SHARE * room_bytes and tensor * 2 <= num_devices:
        tensor *= 2
    return tensor


def _place_of(group: NodeGroup, tensor: int) -> Cluster:
    """The devices of one generator."""
    if tensor <= group.devices_per_node:
        own = replace(group, num_nodes=1, devices_per_node=tensor, domains=())
    else:
        own = replace(group, num_nodes=math.ceil(tensor / group.devices_per_node))
    return Cluster(name=f"generator of {tensor} x {group.device.name}", groups=(own,))


def _run_once(engine: "Engine", graph: Graph, place: Cluster, tensor: int, software: Stack | None = None) -> float:
    """One forward pass by a serving engine: kernels are fused, and the host replays them. `software`: by that of training, whose
    host launches every kernel."""
    job = Job(graph=graph, compiled=True, cuda_graphs=True, stack=Stack())
    if software is not None:
        job = Job(graph=graph, stack=software)
    plan = Parallelism(tensor=place.num_devices) if tensor > 1 else Parallelism()
    program = engine.lower(job, place, plan)
    return engine.simulate(program, engine.cost(program, job, place), job, place).duration_s


def price_tokens(
    engine: "Engine", decodes: Sequence[Graph], place: Cluster, tensor: int, *, software: Stack | None = None
) -> Callable[[int], float]:
    """Seconds of one more token of so many sequences, without what they read of earlier ones. More sequences never take less."""
    batches = [graph.batch_size for graph in decodes]
    times = [_run_once(engine, graph, place, tensor, software) for graph in decodes]
    for index in range(len(times) - 2, -1, -1):
        times[index] = min(times[index], times[index + 1])

    def step_s(num_sequences: int) -> float:
        at = bisect.bisect_left(batches, num_sequences)
        if at == 0 or at == len(batches):
            return TOKEN_S + times[min(at, len(times) - 1)]
        low, high = batches[at - 1], batches[at]
        weight = (num_sequences - low) / (high - low)
        return TOKEN_S + times[at - 1] + weight * (times[at] - times[at - 1])

    return step_s


@noun
class Speeds:
    step_s: Callable[[int], float]
    """Of one token of each of so many sequences."""
    cached_s: float
    """For each token that lies in the cache."""


@noun
class Followed:
    seconds: float
    num_steps: float
    mean_at_once: float
    tail_s: float
    most_tokens: float
    """In the cache at once."""


def draw_lengths(lengths: Lengths, count: int) -> tuple[float, ...]:
    """As many quantiles of the distribution, in an order without a trend, scaled so that their mean is the one asked for."""
    num_drawn = min(count, MOST_SIMULATED)
    normal = NormalDist()
    sigma = lengths.log_sigma
    places = [((index + 1) * _GOLDEN) % 1.0 for index in range(num_drawn)]
    ranks = sorted(range(num_drawn), key=places.__getitem__)
    drawn = [0.0] * num_drawn
    for rank, index in enumerate(ranks):
        drawn[index] = math.exp(sigma * normal.inv_cdf((rank + 0.5) / num_drawn))
    scale = lengths.mean / (sum(drawn) / num_drawn)
    for _ in range(20):
        cut = [min(scale * value, lengths.longest) for value in drawn]
        mean = sum(cut) / num_drawn
        if abs(mean / lengths.mean - 1) < 1e-6:
            break
        scale *= lengths.mean / mean
    return tuple(max(1.0, min(scale * value, lengths.longest)) for value in drawn)


def follow(lengths: Sequence[float], speeds: Speeds, *, slots: int, prompt_tokens: float) -> Followed:
    """Continuous batching (Yu et al. 2022): a response that ends makes room for the next; at last only the longest are left."""
    waiting = list(reversed(lengths))
    ends: list[float] = []
    starts = 0.0
    """Sum over running sequences of the step at which each started."""
    at, seconds, served, tail_s, most = 0.0, 0.0, 0.0, 0.0, 0.0
    started: dict[float, list[float]] = {}
    while waiting or ends:
        while waiting and len(ends) < slots:
            length = waiting.pop()
            heapq.heappush(ends, at + length)
            started.setdefault(at + length, []).append(at)
            starts += at
        running = len(ends)
        steps = ends[0] - at
        # Each running sequence holds its prompt and what it has generated; the sum grows by one for each with every step.
        held = running * (prompt_tokens + at) - starts
        spent = steps * speeds.step_s(running) + speeds.cached_s * (held * steps + running * steps * steps / 2)
        seconds += spent
        served += running * steps
        most = max(most, held + running * steps)
        if running < slots / 2:
            tail_s += spent
        at = ends[0]
        while ends and ends[0] <= at:
            end = heapq.heappop(ends)
            starts -= started[end].pop()
    return Followed(
        seconds=seconds, num_steps=at, mean_at_once=served / at if at else 0.0, tail_s=tail_s, most_tokens=most
    )


def follow_batches(lengths: Sequence[float], speeds: Speeds, *, slots: int, prompt_tokens: float) -> Followed:
    """Fixed batches one after the other: those that have ended are computed on until the longest of their batch has."""
    batches = [lengths[start : start + slots] for start in range(0, len(lengths), slots)]
    runs = [
        follow([max(batch)] * len(batch), speeds, slots=len(batch), prompt_tokens=prompt_tokens) for batch in batches
    ]
    steps = sum(run.num_steps for run in runs)
    usual = [sum(batch) / len(batch) for batch in batches]
    waited_s = sum(run.seconds * (1 - mean / max(batch)) for run, mean, batch in zip(runs, usual, batches, strict=True))
    return Followed(
        seconds=sum(run.seconds for run in runs), num_steps=steps, tail_s=waited_s,
        mean_at_once=sum(lengths) / steps if steps else 0.0, most_tokens=max(run.most_tokens for run in runs),
    )  # fmt: skip


def _sync(rollout: Rollout, cluster: Cluster, plan: Parallelism, *, tensor: int, resident_bytes: float) -> float:
    """Sharded weights are gathered; generators on devices of their own get them over the network; what was put into host memory
    is copied out and back."""
    group = cluster.groups[0]
    links = Pipelined()
    pieces = (plan.num_shards if plan.zero == 3 else 1) * plan.tensor * plan.pipeline
    seconds = 2 * rollout.synced_bytes / tensor / (CACHE_READ_SHARE * group.device.memory_bytes_per_s)
    if pieces > 1:
        gathered = Collective(
            kind="all_gather", num_bytes=rollout.synced_bytes / (1 if rollout.num_devices else tensor), axis="data",
            num_ranks=min(pieces, cluster.num_devices), stride=1, phase="optimizer",
        )  # fmt: skip
        seconds += links.estimate(gathered, cluster).seconds
    if rollout.num_devices:
        devices = cluster.num_devices + rollout.num_devices
        nodes = math.ceil(devices / group.devices_per_node)
        joined = Cluster(name="trainers and generators", groups=(replace(group, num_nodes=nodes),))
        sent = Collective(
            kind="broadcast", num_bytes=rollout.synced_bytes, axis="data", num_ranks=min(devices, joined.num_devices),
            stride=1, phase="optimizer",
        )  # fmt: skip
        seconds += links.estimate(sent, joined).seconds
    if rollout.offloads:
        seconds += 2 * resident_bytes / (COPY_EFFICIENCY * copy_bytes_per_s(group.device))
    return seconds
