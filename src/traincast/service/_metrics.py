"""Counts and durations of a service as Prometheus text."""

import time
from collections.abc import Iterable, Mapping

from traincast.service._faults import KINDS
from traincast.service._memory import resident_bytes
from traincast.service._state import Queue

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Meter:
    """What happened since the service began."""

    def __init__(self) -> None:
        self.started_s = time.time()
        self.cache_hits = 0
        self.cache_misses = 0
        self.audit_lost = 0
        self._requests: dict[tuple[str, str, int], int] = {}
        self._buckets: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def count(self, *, method: str, route: str, status: int, seconds: float) -> None:
        key = (method, route, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        buckets = self._buckets.setdefault(route, [0] * (len(BUCKETS_S) + 1))
        buckets[next((place for place, edge in enumerate(BUCKETS_S) if seconds <= edge), len(BUCKETS_S))] += 1
        self._sums[route] = self._sums.get(route, 0.0) + seconds

    def format(
        self,
        *,
        queue: Queue,
        faults: Mapping[str, int],
        num_rescued: int,
        runners_alive: int,
        waiting: int,
        refused: int,
        cached_bytes: int,
        pids: Iterable[int],
    ) -> str:
        lines: list[str] = []

        def add(name: str, kind: str, words: str, samples: Iterable[tuple[str, float]]) -> None:
            lines.extend((f"# HELP traincast_{name} {words}", f"# TYPE traincast_{name} {kind}"))
            lines.extend(f"traincast_{name}{labels} {value:.10g}" for labels, value in samples)

        add("requests_total", "counter", "HTTP requests answered.",
            [(f'{{method="{method}",route="{route}",status="{status}"}}', count)
             for (method, route, status), count in sorted(self._requests.items())])  # fmt: skip
        lines.append("# HELP traincast_request_seconds Time to answer.")
        lines.append("# TYPE traincast_request_seconds histogram")
        for route, buckets in sorted(self._buckets.items()):
            below = 0
            for edge, count in zip((*BUCKETS_S, float("inf")), buckets, strict=True):
                below += count
                label = "+Inf" if edge == float("inf") else f"{edge:g}"
                lines.append(f'traincast_request_seconds_bucket{{route="{route}",le="{label}"}} {below}')
            lines.append(f'traincast_request_seconds_sum{{route="{route}"}} {self._sums[route]:.6f}')
            lines.append(f'traincast_request_seconds_count{{route="{route}"}} {below}')
        add("cache_hits_total", "counter", "Answers given from memory.", [("", self.cache_hits)])
        add("cache_misses_total", "counter", "Answers that were computed.", [("", self.cache_misses)])
        add("cache_bytes", "gauge", "Size of the answers in memory.", [("", cached_bytes)])
        add("waiting_requests", "gauge", "Requests that wait for a worker.", [("", waiting)])
        add("refused_requests_total", "counter", "Requests refused because too many wait.", [("", refused)])
        add(
            "jobs",
            "gauge",
            "Jobs by state.",
            [(f'{{state="{state}"}}', count) for state, count in queue.counts.items()],
        )
        add("queue_age_seconds", "gauge", "How long the first job that waits has waited.", [("", queue.oldest_s)])
        add("job_runners", "gauge", "Job runners that are alive.", [("", runners_alive)])
        add(
            "storage_faults_total",
            "counter",
            "Faults of the state's storage by kind.",
            [(f'{{kind="{kind}"}}', faults.get(kind, 0)) for kind in KINDS],
        )
        add("storage_rescued_rows_total", "counter", "Rows saved from a damaged or replaced file.", [("", num_rescued)])
        add("audit_lines_lost_total", "counter", "Lines of the audit log that could not be written.",
            [("", self.audit_lost)])  # fmt: skip
        add("resident_bytes", "gauge", "Memory of the service and of its workers.",
            [('{process="service"}', resident_bytes()),
             *((f'{{process="worker",pid="{pid}"}}', resident_bytes(pid)) for pid in pids)])  # fmt: skip
        add("start_time_seconds", "gauge", "When the service began.", [("", self.started_s)])
        return "\n".join(lines) + "\n"
