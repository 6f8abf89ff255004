"""Who slows whom down: max-min sharing of rack uplinks between jobs that span racks (Bertsekas and Gallager, 1992)."""

from collections.abc import Iterable

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.schedule._placement import NodeMap, Placement
from traincast.spec import Fleet


@noun
class UniformTraffic:
    """Every GPU of a job that spans racks asks for the same bandwidth for the same share of its time."""

    bytes_per_s_per_gpu: float
    share: float = 0.3

    def __post_init__(self) -> None:
        if self.bytes_per_s_per_gpu <= 0 or not 0 <= self.share <= 1:
            raise InvalidInput("traffic needs bytes_per_s_per_gpu above 0 and a share within 0..1")


def max_min_rates(
    demands: dict[int, float], paths: dict[int, frozenset[int]], capacity: dict[int, float]
) -> dict[int, float]:
    """Raise all rates together; freeze a job when it has what it asks for or when one of its links is full."""
    rates = dict.fromkeys(demands, 0.0)
    open_jobs = set(demands)
    left = dict(capacity)
    while open_jobs:
        users: dict[int, int] = {}
        for job in open_jobs:
            for link in paths[job]:
                users[link] = users.get(link, 0) + 1
        rise = min(demands[job] - rates[job] for job in open_jobs)
        if users:
            rise = min(rise, min(left[link] / count for link, count in users.items()))
        for job in open_jobs:
            rates[job] += rise
        for link, count in users.items():
            left[link] -= rise * count
        full = {link for link in users if left[link] <= 1e-9 * capacity[link]}
        frozen = {
            job for job in open_jobs if rates[job] >= demands[job] * (1 - 1e-12) or not full.isdisjoint(paths[job])
        }
        open_jobs -= frozen or open_jobs
    return rates


class LinkSharing:
    """The jobs that cross racks now; only the jobs connected to a change by shared uplinks are recomputed."""

    def __init__(self, model: UniformTraffic, fleet: Fleet) -> None:
        if fleet.rack_uplink_bytes_per_s is None or fleet.nodes_per_rack is None:
            raise InvalidInput("network contention needs the fleet's nodes_per_rack and rack_uplink_bytes_per_s")
        self._model = model
        self._capacity = fleet.rack_uplink_bytes_per_s
        self._paths: dict[int, frozenset[int]] = {}
        self._gpus: dict[int, float] = {}
        self._on_link: dict[int, set[int]] = {}

    def join(self, job: int, placement: Placement, nodes: NodeMap) -> bool:
        racks = frozenset(nodes.rack_of[node] for node, _ in placement)
        if len(racks) < 2:
            return False
        self._paths[job] = racks
        self._gpus[job] = sum(count for _, count in placement)
        for rack in racks:
            self._on_link.setdefault(rack, set()).add(job)
        return True

    def leave(self, job: int) -> set[int]:
        """Forget the job and return who shared a link with it."""
        racks = self._paths.pop(job, None)
        if racks is None:
            return set()
        del self._gpus[job]
        touched: set[int] = set()
        for rack in racks:
            self._on_link[rack].discard(job)
            touched |= self._on_link[rack]
        return touched

    def factors(self, touched: Iterable[int]) -> dict[int, float]:
        """The speed of every job connected to these, relative to being alone on the network."""
        group: set[int] = set()
        todo = [job for job in touched if job in self._paths]
        while todo:
            job = todo.pop()
            if job in group:
                continue
            group.add(job)
            for rack in self._paths[job]:
                todo.extend(self._on_link[rack] - group)
        if not group:
            return {}
        paths = {job: self._paths[job] for job in sorted(group)}
        demands = {job: self._model.bytes_per_s_per_gpu * self._gpus[job] for job in paths}
        links = {link for path in paths.values() for link in path}
        rates = max_min_rates(demands, paths, dict.fromkeys(links, self._capacity))
        share = self._model.share
        return {job: 1.0 / (1.0 - share + share * demands[job] / rates[job]) for job in paths}
