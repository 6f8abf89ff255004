"""Queues of Kubernetes: quotas, cohorts and preemption."""

from pathlib import Path

import numpy as np
import pytest

from schedule.builders import fleet, table
from traincast.cli.schedule import Options, compare_cases
from traincast.errors import InvalidInput
from traincast.schedule._kueue import Kueue
from traincast.schedule._manifests import read_queues
from traincast.schedule._simulator import simulate_cluster
from traincast.spec._fleet import Schedule

CLUSTER_QUEUE = """
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {{name: {name}}}
spec:
  cohort: {cohort}
  queueingStrategy: {strategy}
  preemption: {{reclaimWithinCohort: {reclaims}, withinClusterQueue: {within}}}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu, cpu]
    flavors:
    - name: a100
      resources:
      - {{name: nvidia.com/gpu, nominalQuota: {nominal}{limit}}}
      - {{name: cpu, nominalQuota: 999}}
---
kind: LocalQueue
metadata: {{name: {name}-local, namespace: team-{name}}}
spec: {{clusterQueue: {name}}}
---
"""
PLAIN = {
    "cohort": "all",
    "strategy": "BestEffortFIFO",
    "reclaims": "Never",
    "within": "Never",
    "nominal": 4,
    "limit": "",
}


def kueue(tmp_path: Path, *queues: dict[str, object]) -> Kueue:
    (tmp_path / "queues.yaml").write_text("".join(CLUSTER_QUEUE.format(**{**PLAIN, **queue}) for queue in queues))
    return Kueue(read_queues(tmp_path / "queues.yaml"))


def starts(schedule: Schedule) -> list[float]:
    return np.asarray(schedule.start_s).tolist()


def test_a_queue_borrows_what_its_cohort_does_not_use(tmp_path: Path) -> None:
    jobs = table((0.0, 4.0, 50.0), (0.0, 4.0, 50.0), (10.0, 2.0, 5.0), tenants=["a-local", "a-local", "b-local"])
    policy = kueue(tmp_path, {"name": "a"}, {"name": "b"})
    assert starts(simulate_cluster(jobs, policy, fleet=fleet(2, 4))) == [0.0, 0.0, 50.0]
    alone = kueue(tmp_path, {"name": "a", "cohort": "one"}, {"name": "b", "cohort": "two"})
    assert starts(simulate_cluster(jobs, alone, fleet=fleet(2, 4))) == [0.0, 50.0, 10.0]
    limited = kueue(tmp_path, {"name": "a", "limit": ", borrowingLimit: 2"}, {"name": "b"})
    assert starts(simulate_cluster(jobs, limited, fleet=fleet(2, 4))) == [0.0, 50.0, 10.0]
    kept = kueue(tmp_path, {"name": "a"}, {"name": "b", "limit": ", lendingLimit: 2"})
    assert starts(simulate_cluster(jobs, kept, fleet=fleet(2, 4))) == [0.0, 50.0, 10.0]


def test_an_owner_takes_its_quota_back(tmp_path: Path) -> None:
    jobs = table((0.0, 4.0, 50.0), (1.0, 4.0, 50.0), (10.0, 2.0, 5.0), tenants=["a-local", "a-local", "team-b"])
    policy = kueue(tmp_path, {"name": "a"}, {"name": "b", "reclaims": "Any"})
    found = simulate_cluster(jobs, policy, fleet=fleet(2, 4))
    assert starts(found) == [0.0, 1.0, 10.0]
    assert found.preemptions.tolist() == [0, 1, 0]


def test_a_strict_queue_stops_at_its_head_and_another_does_not(tmp_path: Path) -> None:
    rows = [(0.0, 3.0, 50.0), (1.0, 4.0, 5.0), (2.0, 1.0, 5.0)]
    jobs = table(*rows, tenants=["a-local"] * 3)
    strict = kueue(tmp_path, {"name": "a", "strategy": "StrictFIFO"})
    assert starts(simulate_cluster(jobs, strict, fleet=fleet(1, 4))) == [0.0, 50.0, 55.0]
    assert starts(simulate_cluster(jobs, kueue(tmp_path, {"name": "a"}), fleet=fleet(1, 4))) == [0.0, 50.0, 2.0]


def test_priority_preempts_within_a_queue_where_it_may(tmp_path: Path) -> None:
    jobs = table((0.0, 4.0, 50.0), (5.0, 4.0, 10.0), tenants=["a-local"] * 2, priority=[0.0, 5.0])
    policy = kueue(tmp_path, {"name": "a", "within": "LowerPriority"})
    assert starts(simulate_cluster(jobs, policy, fleet=fleet(1, 4))) == [0.0, 5.0]


def test_what_no_quota_allows_is_rejected_by_name(tmp_path: Path) -> None:
    jobs = table((0.0, 6.0, 50.0), (0.0, 1.0, 5.0), tenants=["a-local", "nobody"])
    found = simulate_cluster(jobs, kueue(tmp_path, {"name": "a"}), fleet=fleet(2, 4))
    assert "a gives at most 4" in found.rejected[0]
    assert "no queue takes jobs of 'nobody'" in found.rejected[1]


def test_the_command_reads_queues_and_names_what_is_not_modelled(tmp_path: Path) -> None:
    path = tmp_path / "queues.yaml"
    path.write_text(CLUSTER_QUEUE.format(**PLAIN, name="tenant-0") + "kind: Topology\nmetadata: {name: racks}\n")
    read, cases = compare_cases("synthetic:20", Options(cluster=["2x8"], policy="kueue", queues=path))
    assert any("Topology racks" in note for note in read.notes)
    assert cases[0].schedule.policy == "kueue"
    with pytest.raises(InvalidInput, match="knows no queues"):
        compare_cases("synthetic:20", Options(cluster=["2x8"], policy="fifo", queues=path))
