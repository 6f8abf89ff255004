"""Who slows whom down on shared uplinks of racks, as `schedule.network` says, for the jobs that a start or a stop touches."""

from typing import Any, NamedTuple

from traincast.schedule._kernels.ends import Ends, add_end, drop_end
from traincast.schedule._kernels.hazards import Hazards
from traincast.schedule._kernels.heaps import forget_stale
from traincast.schedule._kernels.nodes import Nodes
from traincast.schedule._kernels.reserve import Profile
from traincast.schedule._kernels.shadow import VALID, Shadow
from traincast.schedule._kernels.tables import (
    BY_LEVEL,
    EASY,
    PREEMPT,
    Events,
    Jobs,
    Rules,
    expect_end,
    expect_level,
    settle,
)


class Links(NamedTuple):
    """What jobs that cross racks ask of uplinks of one capacity. The racks of job j are a chain of entries from `path[j]` on; the
    jobs on the uplink of rack r are `members[first[r] : first[r] + counts[r]]`. `base` is a job's speed alone on the network. The
    others are room for one group of connected jobs and their racks."""

    capacity: float
    demand: Any
    share: Any
    base: Any
    path: Any
    entry_rack: Any
    entry_next: Any
    free: Any
    first: Any
    counts: Any
    members: Any
    group: Any
    grant: Any
    seen: Any
    racks: Any
    num_racks: Any
    rack_seen: Any
    left: Any
    users: Any


class Promises(NamedTuple):
    """What is believed about the future: ends of running jobs, the nodes of one reservation, free GPUs over time, speeds."""

    ends: Ends
    shadow: Shadow
    profile: Profile
    links: Links


def share_links(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, events: Events, hazards: Hazards, promises: Promises
) -> bool:
    """Take notice of the jobs that started or stopped, one after the other; whether anybody's speed has changed."""
    links = promises.links
    changed = False
    for at in range(events.moves.size[0]):
        who = events.moves.jobs[at]
        num_group = join_links(who, jobs, nodes, links) if who >= 0 else leave_links(-1 - who, links)
        if num_group > 0:
            divide(num_group, links)
        for spot in range(num_group):
            job = links.group[spot]
            wish = links.demand[job]
            share = links.share[job]
            rate = links.base[job] * (1.0 / (1.0 - share + share * wish / links.grant[spot]))
            if events.expect[2 * job] >= 0.0 and rate != jobs.rate[job]:
                changed = True
                set_rate(job, rate, now, rules, jobs, nodes, events, hazards, promises.ends, promises.shadow)
    events.moves.size[0] = 0
    return changed


def set_rate(
    job: int, rate: float, now: float, rules: Rules, jobs: Jobs, nodes: Nodes, events: Events, hazards: Hazards,
    ends: Ends, shadow: Shadow,
) -> None:  # fmt: skip
    """A running job goes on at another speed, so it ends at another moment and reservations are made anew."""
    if rules.fit == EASY:
        shadow.state[VALID] = 0
        drop_end(job, ends)
    elapsed = now - jobs.since[job]
    if elapsed > 0.0:
        settle(job, now, jobs, nodes)
        jobs.since[job] = now
        if hazards.wanted == 1:
            hazards.since_checkpoint[job] += elapsed
    jobs.rate[job] = rate
    if events.size[0] > len(events.keys) - 4:
        forget_stale(events.keys, events.tokens, events.size, events.expect)
    expect_end(job, now, jobs, events)
    if rules.fit == EASY:
        ends.at[job] = jobs.since[job] + jobs.guess[job] / rate
        add_end(job, ends)
    if rules.moving == 1:
        jobs.keys[job] = jobs.since[job] + jobs.guess[job] / rate
    if rules.fit == PREEMPT and rules.order == BY_LEVEL and elapsed > 0.0:
        expect_level(job, now, rules, jobs, events)


def join_links(job: int, jobs: Jobs, nodes: Nodes, links: Links) -> int:
    """A job on several racks uses the uplinks of them all; how many jobs it is connected with, itself among them."""
    first = nodes.rack_of[nodes.part_node[nodes.head[job]]]
    part = nodes.head[job]
    while part >= 0 and nodes.rack_of[nodes.part_node[part]] == first:
        part = nodes.part_next[part]
    if part < 0:
        return 0
    links.base[job] = jobs.rate[job]
    part = nodes.head[job]
    while part >= 0:
        rack = nodes.rack_of[nodes.part_node[part]]
        entry = links.path[job]
        while entry >= 0 and links.entry_rack[entry] != rack:
            entry = links.entry_next[entry]
        if entry < 0:
            add_entry(job, rack, links)
        part = nodes.part_next[part]
    return connect(job, links)


def add_entry(job: int, rack: int, links: Links) -> None:
    entry = links.free[0]
    links.free[0] = links.entry_next[entry]
    links.entry_rack[entry] = rack
    links.entry_next[entry] = links.path[job]
    links.path[job] = entry
    links.members[links.first[rack] + links.counts[rack]] = job
    links.counts[rack] += 1


def leave_links(job: int, links: Links) -> int:
    """A job has stopped; how many jobs were connected with it."""
    if links.path[job] < 0:
        return 0
    entry = links.path[job]
    last = entry
    while entry >= 0:
        rack = links.entry_rack[entry]
        base = links.first[rack]
        links.counts[rack] -= 1
        at = 0
        while links.members[base + at] != job:
            at += 1
        links.members[base + at] = links.members[base + links.counts[rack]]
        last = entry
        entry = links.entry_next[entry]
    num_group = connect(job, links)
    links.entry_next[last] = links.free[0]
    links.free[0] = links.path[job]
    links.path[job] = -1
    return num_group


def connect(job: int, links: Links) -> int:
    """All jobs (`group`) and racks (`racks`) that are connected with the racks of a job by shared uplinks."""
    links.num_racks[0] = 0
    add_racks(job, links)
    num_group = 0
    at = 0
    while at < links.num_racks[0]:
        rack = links.racks[at]
        for spot in range(links.first[rack], links.first[rack] + links.counts[rack]):
            other = links.members[spot]
            if links.seen[other] == 0:
                links.seen[other] = 1
                links.group[num_group] = other
                num_group += 1
                add_racks(other, links)
        at += 1
    for at in range(links.num_racks[0]):
        links.rack_seen[links.racks[at]] = 0
    for at in range(num_group):
        links.seen[links.group[at]] = 0
    return num_group


def add_racks(job: int, links: Links) -> None:
    entry = links.path[job]
    while entry >= 0:
        rack = links.entry_rack[entry]
        if links.rack_seen[rack] == 0:
            links.rack_seen[rack] = 1
            links.racks[links.num_racks[0]] = rack
            links.num_racks[0] += 1
        entry = links.entry_next[entry]


def divide(num_group: int, links: Links) -> None:
    """Max-min shares of the group: raise all together; a job is through (`seen`) when it has what it asks for or when one of
    its links is full."""
    for at in range(links.num_racks[0]):
        links.left[links.racks[at]] = links.capacity
    for at in range(num_group):
        links.grant[at] = 0.0
    num_open = num_group
    while num_open > 0:
        rise = count_users(num_group, links)
        for at in range(num_group):
            if links.seen[links.group[at]] == 0:
                links.grant[at] += rise
        for at in range(links.num_racks[0]):
            rack = links.racks[at]
            links.left[rack] -= rise * links.users[rack]
        before = num_open
        for at in range(num_group):
            job = links.group[at]
            if links.seen[job] == 0 and (
                links.grant[at] >= links.demand[job] * (1 - 1e-12) or meets_full_link(job, links)
            ):
                links.seen[job] = 1
                num_open -= 1
        if num_open == before:
            break
    for at in range(num_group):
        links.seen[links.group[at]] = 0


def count_users(num_group: int, links: Links) -> float:
    """By how much all that are not through can rise together."""
    for at in range(links.num_racks[0]):
        links.users[links.racks[at]] = 0
    rise: float = 1e300
    for at in range(num_group):
        job = links.group[at]
        if links.seen[job] == 1:
            continue
        rise = min(rise, links.demand[job] - links.grant[at])
        entry = links.path[job]
        while entry >= 0:
            links.users[links.entry_rack[entry]] += 1
            entry = links.entry_next[entry]
    for at in range(links.num_racks[0]):
        rack = links.racks[at]
        if links.users[rack] > 0:
            rise = min(rise, links.left[rack] / links.users[rack])
    return rise


def meets_full_link(job: int, links: Any) -> bool:
    entry = links.path[job]
    while entry >= 0:
        if links.left[links.entry_rack[entry]] <= 1e-9 * links.capacity:
            return True
        entry = links.entry_next[entry]
    return False
