"""Slurm as a site runs it: its files, its priorities, its looks at the queue, against rules restated second by second."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schedule.builders import table
from traincast.cli.schedule import Options, compare_cases
from traincast.errors import InvalidInput
from traincast.schedule._estimators import Limits
from traincast.schedule._jobs import JobTable
from traincast.schedule._sacct import read_submit_line
from traincast.schedule._simulator import simulate_cluster
from traincast.schedule._slurm.accounting import Association
from traincast.schedule._slurm.conf import parse_slurm_time, read_conf
from traincast.schedule._slurm.hostlists import expand_hosts
from traincast.schedule._slurm.policy import Slurm
from traincast.schedule._slurm.priority import ShareTree
from traincast.schedule._slurm.site import SlurmSite, read_site
from traincast.spec._fleet import Schedule

NODES = "NodeName=n[1-2] CPUs=16 RealMemory=1000 Gres=gpu:a100:4\n"
ONE = f"{NODES}PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE\n"
QUICK = "SchedulerParameters=bf_interval=1,bf_resolution=1,bf_window=100000\n"
FIRST = "PriorityType=priority/basic\n"


def site(tmp_path: Path, text: str, **files: str) -> SlurmSite:
    (tmp_path / "slurm.conf").write_text(text)
    found = {}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        found[name] = tmp_path / name
    return read_site(tmp_path / "slurm.conf", **found)


def run(rules: SlurmSite, jobs: JobTable, **more: object) -> Schedule:
    return simulate_cluster(jobs, Slurm(rules), fleet=rules.fleet, estimator=Limits(), record=True, **more)  # type: ignore[arg-type]


def limited(*rows: tuple[float, float, float], **columns: object) -> JobTable:
    """Rows of (submit, GPUs, duration), with a limit of exactly the duration unless one is given."""
    return table(*rows, **{"limit_s": [row[2] for row in rows], **columns})


def test_hosts_in_brackets_are_expanded() -> None:
    assert expand_hosts("n[08-11],login,r[0-1]-g[1,3]") == [
        "n08", "n09", "n10", "n11", "login", "r0-g1", "r0-g3", "r1-g1", "r1-g3",
    ]  # fmt: skip
    with pytest.raises(InvalidInput, match="not closed"):
        expand_hosts("n[1-2")
    with pytest.raises(InvalidInput, match="not a range"):
        expand_hosts("n[a-b]")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60", 3600), ("1:30", 90), ("2:00:00", 7200), ("7-00:00:00", 604800), ("1-12", 129600), ("INFINITE", np.inf)],
)
def test_times_are_read_as_slurm_writes_them(text: str, seconds: float) -> None:
    assert parse_slurm_time(text) == seconds


def test_a_conf_with_includes_defaults_continuations_and_sets(tmp_path: Path) -> None:
    (tmp_path / "nodes.conf").write_text(
        "NodeName=DEFAULT Sockets=2 CoresPerSocket=24 ThreadsPerCore=2 RealMemory=512000 Feature=ib\n"
        'NodeName=a[01-03] Gres=gpu:a100:8(S:0-1),nvme:1 Feature="ib,a100" Weight=5\n'
        "NodeName=v[1-2] Gres=gpu:v100:4 \\\n  State=DRAIN # broken\n"
        "NodeName=cpu[1-40]\n"
    )
    (tmp_path / "slurm.conf").write_text(
        "# site\nClusterName=here\nInclude nodes.conf\nNodeSet=fast Feature=a100\n"
        "PartitionName=DEFAULT MaxTime=2-0 State=UP\nPartitionName=train Nodes=fast Default=YES\n"
        "PartitionName=all Nodes=ALL MaxTime=60 OverSubscribe=EXCLUSIVE\n"
    )
    conf = read_conf(tmp_path / "slurm.conf")
    assert conf.nodes["a02"].gpus == (("a100", 8),)
    assert conf.nodes["a02"].num_cpus == 96
    assert conf.partitions["train"].nodes == ("a01", "a02", "a03")
    found = read_site(tmp_path / "slurm.conf")
    assert [(pool.device, pool.num_nodes, pool.gpus_per_node) for pool in found.fleet.pools] == [("a100", 3, 8)]
    assert [part.max_s for part in found.partitions] == [2 * 86400, 3600]
    assert [part.exclusive for part in found.partitions] == [False, True]
    assert any("2 nodes are not in service" in note for note in found.notes)
    assert any("40 nodes without GPUs" in note for note in found.notes)


def test_what_is_not_modelled_is_named(tmp_path: Path) -> None:
    rules = site(
        tmp_path,
        "TopologyPlugin=topology/tree\nSchedulerParameters=bf_busy_nodes,bf_window=10\nPriorityFancyKey=3\nSlurmctldPort=6817\n"
        f"{NODES}PartitionName=all Nodes=ALL GraceTime=60 OverSubscribe=FORCE:2\n",
    )
    said = "\n".join(rules.notes)
    for word in ("topologyplugin", "bf_busy_nodes", "priorityfancykey", "gracetime", "OverSubscribe"):
        assert word in said
    assert "bf_window" not in said
    assert "slurmctldport" not in said


def test_a_submit_line_says_what_columns_do_not() -> None:
    found = read_submit_line("sbatch -d afterok:12:13 --array=1-90%5 --exclusive -C 'a100&ib' job.sh")
    assert found == {
        "dependency": "afterok:12:13", "array_limit": 5.0, "exclusive": 1.0, "constraint": "a100&ib",
    }  # fmt: skip


class Oracle:
    """Whenever something changed, all waiting jobs in order get the first second from which on enough nodes have room for
    them until their limit, beside the running jobs and all that were placed before; who may start now does. Nodes
    with fewest free GPUs come first."""

    def __init__(self, jobs: JobTable, num_nodes: int, size: tuple[int, int, int]) -> None:
        self.jobs, self.size = jobs, np.tile(np.array(size), (num_nodes, 1))
        self.held: dict[int, tuple[int, int, list[int]]] = {}
        self.asked = [self.read(job) for job in range(len(jobs))]

    def ask(self, job: int) -> tuple[int, np.ndarray]:
        return self.asked[job]

    def read(self, job: int) -> tuple[int, np.ndarray]:
        nodes = int(self.jobs.num_nodes[job])
        total = np.array([self.jobs.num_gpus[job], self.jobs.num_cpus[job], self.jobs.memory_bytes[job] / 2**20])
        return nodes, np.ceil(total / nodes).astype(int)

    def free(self, second: int, placed: dict[int, tuple[int, int, list[int]]]) -> np.ndarray:
        free = self.size.copy()
        for job, (begin, end, nodes) in placed.items():
            if begin <= second < end:
                free[nodes] -= self.ask(job)[1]
        return free

    def find(self, job: int, second: int, placed: dict[int, tuple[int, int, list[int]]]) -> list[int] | None:
        count, each = self.ask(job)
        good = np.ones(len(self.size), dtype=bool)
        for later in range(second, second + int(self.jobs.limit_s[job])):
            good &= (self.free(later, placed) >= each).all(axis=1)
        room = self.free(second, placed)[:, 0]
        nodes = sorted(np.flatnonzero(good).tolist(), key=lambda node: (room[node], node))
        return nodes[:count] if len(nodes) >= count else None

    def run(self) -> list[float]:
        start = [-1.0] * len(self.jobs)
        waiting: list[int] = []
        for now in range(3000):
            gone = [job for job, (begin, _, _) in self.held.items() if begin + self.jobs.duration_s[job] == now]
            for job in gone:
                del self.held[job]
            come = [job for job in range(len(self.jobs)) if self.jobs.submit_s[job] == now]
            waiting += come
            if gone or come:
                placed = dict(self.held)
                for job in list(waiting):
                    second = now
                    while (nodes := self.find(job, second, placed)) is None:
                        second += 1
                    placed[job] = (second, second + int(self.jobs.limit_s[job]), nodes)
                    if second == now:
                        self.held[job], start[job] = placed[job], float(now)
                        waiting.remove(job)
            if min(start) >= 0:
                break
        return start


@st.composite
def slurm_jobs(draw: st.DrawFn) -> JobTable:
    rows, nodes, limits, cpus, memory = [], [], [], [], []
    for _ in range(draw(st.integers(1, 12))):
        count = draw(st.sampled_from([1, 1, 1, 2, 3]))
        gpus = count * draw(st.integers(1, 4))
        lasts = draw(st.integers(2, 25))
        rows.append((float(draw(st.integers(0, 20))), float(gpus), float(lasts)))
        nodes.append(float(count))
        limits.append(float(lasts + draw(st.sampled_from([0, 0, 5, 20]))))
        cpus.append(float(count * draw(st.integers(1, 16))))
        memory.append(float(count * draw(st.integers(1, 1000)) * 2**20))
    return table(*rows, num_nodes=nodes, limit_s=limits, num_cpus=cpus, memory_bytes=memory)


EQUAL_NODES = table(
    (2.0, 3.0, 22.0), (3.0, 4.0, 25.0), (4.0, 4.0, 4.0), (4.0, 1.0, 5.0), (7.0, 4.0, 2.0), (14.0, 1.0, 14.0), (14.0, 2.0, 11.0),
    (16.0, 3.0, 22.0), (20.0, 2.0, 6.0),
    num_nodes=[1.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], limit_s=[27.0, 25.0, 4.0, 5.0, 2.0, 19.0, 11.0, 22.0, 11.0],
    num_cpus=[11.0, 16.0, 20.0, 12.0, 10.0, 7.0, 5.0, 1.0, 3.0],
    memory_bytes=[2.0**20 * megabytes for megabytes in (187, 1404, 848, 178, 293, 389, 80, 322, 194)],
)  # fmt: skip
"""A job of two nodes finds three that are equally full but for one: the lower numbers go first."""


@given(jobs=slurm_jobs())
@example(jobs=EQUAL_NODES)
@settings(max_examples=25, deadline=None)
def test_backfill_agrees_with_looking_at_every_second(jobs: JobTable, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = FIRST + QUICK + ONE.replace("n[1-2]", "n[1-3]")
    rules = site(tmp_path_factory.mktemp("site"), text)
    assert np.asarray(run(rules, jobs).start_s).tolist() == Oracle(jobs, 3, (4, 16, 1000)).run()


def test_cpus_and_memory_keep_jobs_off_a_node_and_exclusive_jobs_have_it_alone(tmp_path: Path) -> None:
    rules = site(tmp_path, FIRST + QUICK + ONE)
    jobs = limited((0.0, 1.0, 10.0), (0.0, 1.0, 10.0), (0.0, 1.0, 10.0), num_cpus=[12.0, 12.0, 12.0])
    assert run(rules, jobs).start_s.tolist() == [0.0, 0.0, 10.0]
    jobs = limited((0.0, 1.0, 10.0), (0.0, 1.0, 10.0), (0.0, 1.0, 10.0), exclusive=[1.0, 1.0, 0.0])
    alone = run(rules, jobs)
    assert alone.start_s.tolist() == [0.0, 0.0, 10.0]
    assert alone.gpu_s.tolist() == [40.0, 40.0, 10.0]


def test_a_blocked_partition_lets_another_go_on(tmp_path: Path) -> None:
    text = f"{FIRST}SchedulerType=sched/builtin\n{NODES}PartitionName=a Nodes=n1\nPartitionName=b Nodes=n2\n"
    jobs = limited((0.0, 4.0, 50.0), (1.0, 4.0, 5.0), (2.0, 1.0, 5.0), (3.0, 1.0, 5.0), partitions=["a", "a", "a", "b"])
    # Without backfill nobody of the partition a passes the job that waits for its only node.
    assert run(site(tmp_path, text), jobs).start_s.tolist() == [0.0, 50.0, 55.0, 3.0]


def test_the_window_and_the_number_of_tests_bound_backfill(tmp_path: Path) -> None:
    rows = [(0.0, 7.0, 1000.0), (1.0, 8.0, 100.0), (2.0, 8.0, 100.0), (3.0, 1.0, 900.0)]
    jobs = limited(*rows, num_nodes=[2.0, 2.0, 2.0, 1.0])
    wide = site(tmp_path, FIRST + QUICK + ONE)
    assert run(wide, jobs).start_s.tolist()[3] == 3.0
    few = site(tmp_path, FIRST + QUICK.replace("bf_window", "bf_max_job_test=2,bf_window") + ONE)
    assert run(few, jobs).start_s.tolist()[3] > 3.0
    # Too short a window sees no end of the running job, so nothing is reserved and a long job passes the wide ones.
    long = limited(*rows[:3], (3.0, 1.0, 5000.0), num_nodes=[2.0, 2.0, 2.0, 1.0])
    assert run(wide, long).start_s.tolist()[3] >= 1100.0
    short = site(tmp_path, FIRST + QUICK.replace("bf_window=100000", "bf_window=5") + ONE)
    assert run(short, long).start_s.tolist()[3] == 3.0


def test_the_interval_is_how_long_backfill_waits_after_a_change(tmp_path: Path) -> None:
    rules = site(tmp_path, FIRST + ONE.replace("n[1-2]", "n1") + "SchedulerParameters=bf_interval=45,bf_resolution=1\n")
    jobs = limited((0.0, 3.0, 1000.0), (1.0, 4.0, 100.0), (2.0, 1.0, 50.0), (3.0, 1.0, 50.0))
    # The first look is at 1 s, when somebody has to wait; the next one comes 45 s later.
    assert run(rules, jobs).start_s.tolist() == [0.0, 1000.0, 46.0, 96.0]


def test_age_fair_share_size_qos_and_partition_make_the_order(tmp_path: Path) -> None:
    text = ONE.replace("n[1-2]", "n1") + "PriorityWeight{}=10000\nPriorityCalcPeriod=1\n"
    busy, first, second = (0.0, 4.0, 600.0), (1.0, 4.0, 10.0), (2.0, 4.0, 10.0)
    qos = "Name|Priority|Preempt\nlow|1|\nhigh|10|\n"
    by_qos = site(tmp_path, text.format("QOS"), qos=qos)
    assert run(by_qos, limited(busy, first, second, qos=["low", "low", "high"])).start_s.tolist() == [0.0, 610.0, 600.0]
    by_share = site(tmp_path, text.format("FairShare"))
    jobs = limited(busy, first, second, users=["ann", "ann", "bob"], tenants=["x", "x", "x"])
    assert run(by_share, jobs).start_s.tolist() == [0.0, 610.0, 600.0]
    by_size = site(tmp_path, text.format("JobSize"))
    jobs = limited(busy, (1.0, 3.0, 10.0), (2.0, 4.0, 10.0))
    assert run(by_size, jobs).start_s.tolist() == [0.0, 610.0, 600.0]
    by_tier = site(tmp_path, f"{FIRST}{NODES}PartitionName=low Nodes=n1\nPartitionName=high Nodes=n1 PriorityTier=9\n")
    jobs = limited(busy, first, second, partitions=["low", "low", "high"])
    assert run(by_tier, jobs).start_s.tolist() == [0.0, 610.0, 600.0]


def test_fair_tree_ranks_users_by_account_first() -> None:
    """The account with more shares than usage goes first with all of its users, whoever used most inside."""
    known = [
        Association(account="physics", user=None, parent="root", shares=60),
        Association(account="bio", user=None, parent="root", shares=40),
        Association(account="physics", user="ann", parent="physics", shares=1),
        Association(account="physics", user="bob", parent="physics", shares=1),
        Association(account="bio", user="cat", parent="bio", shares=1),
    ]
    tree = ShareTree(known, [], half_life_s=100.0)
    tree.charge(("physics", "ann"), 50.0)
    tree.charge(("bio", "cat"), 50.0)
    assert tree.fair_tree() == {
        ("physics", "bob"): 1.0, ("physics", "ann"): pytest.approx(2 / 3), ("bio", "cat"): pytest.approx(1 / 3),
    }  # fmt: skip
    tree.decay(100.0)
    assert tree._usage["bio"] == 25.0


QOS = "Name|Priority|Preempt|PreemptMode|GrpTRES|MaxTRESPU|MaxJobsPU\nlow|0||{}|||\nhigh|9|low||||\n"


@pytest.mark.parametrize(
    ("mode", "ends", "preempted"),
    [
        ("requeue", [130.0, 30.0, 140.0], [1, 0, 0]),  # it starts again from nothing
        ("cancel", [20.0, 30.0, 40.0], [0, 0, 0]),
    ],
)
def test_a_qos_preempts_another(tmp_path: Path, mode: str, ends: list[float], preempted: list[int]) -> None:
    text = QUICK + ONE.replace("n[1-2]", "n1") + "PriorityWeightQOS=9\nPreemptType=preempt/qos\nPreemptMode=REQUEUE\n"
    rules = site(tmp_path, text, qos=QOS.format(mode))
    jobs = limited((0.0, 4.0, 100.0), (20.0, 4.0, 10.0), (5.0, 4.0, 10.0), qos=["low", "high", "low"])
    found = run(rules, jobs)
    by_id = dict(zip(found.job_ids, zip(found.end_s, found.preemptions, strict=True), strict=True))
    assert [by_id[str(job)] for job in range(3)] == list(zip(ends, preempted, strict=True))
    assert (0 in found.killed) == (mode == "cancel")


def test_limits_of_a_qos_hold_jobs_back(tmp_path: Path) -> None:
    rules = site(
        tmp_path, FIRST + QUICK + ONE, qos="Name|GrpTRES|MaxTRESPU|MaxJobsPU\ng|gres/gpu=3||\nu||gres/gpu=2|\nj|||1\n"
    )
    for name, users in (("g", "abc"), ("u", "aab"), ("j", "aab")):
        jobs = limited((0.0, 2.0, 10.0), (0.0, 2.0, 10.0), (0.0, 1.0, 10.0), qos=[name] * 3, users=list(users))
        assert run(rules, jobs).start_s.tolist() == [0.0, 10.0, 0.0], name


def test_an_array_runs_as_many_tasks_at_once_as_it_says(tmp_path: Path) -> None:
    rules = site(tmp_path, FIRST + QUICK + ONE)
    jobs = limited(*[(0.0, 1.0, 10.0)] * 5, job_ids=[f"7_{task}" for task in range(5)], array_limit=[2.0] * 5)
    assert run(rules, jobs).start_s.tolist() == [0.0, 0.0, 10.0, 10.0, 20.0]


def test_what_a_partition_never_runs_is_rejected_by_name(tmp_path: Path) -> None:
    text = f"{NODES}PartitionName=all Nodes=ALL MaxTime=1 MaxNodes=1\n"
    jobs = limited((0.0, 1.0, 61.0), (0.0, 8.0, 5.0), (0.0, 1.0, 5.0), (0.0, 1.0, 5.0), (0.0, 5.0, 5.0),
                   partitions=[None, None, "gone", None, None], num_nodes=[1.0, 2.0, 1.0, 1.0, 1.0],
                   memory_bytes=[0.0, 0.0, 0.0, 2.0**31, 0.0])  # fmt: skip
    said = run(site(tmp_path, text), jobs).rejected
    for job, word in enumerate(("MaxTime", "MaxNodes", "no partition 'gone'", "MB each", "5 GPUs")):
        assert word in said[job]


def test_nodes_that_fail_are_not_used_until_they_are_repaired(tmp_path: Path) -> None:
    from traincast.schedule._hazards import WeibullFailures

    rules = site(tmp_path, FIRST + QUICK + ONE)
    jobs = limited(*[(float(20 * at), 4.0, 60.0) for at in range(20)])
    found = run(rules, jobs, failures=WeibullFailures(mean_up_s=300.0, mean_repair_s=100.0, seed=1))
    assert np.asarray(found.failures).sum() > 0
    assert not np.isnan(found.end_s).any()


def test_the_command_reads_a_site_and_its_log(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(QUICK + ONE)
    head = "JobID|User|Account|Partition|QOS|Submit|Eligible|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|NNodes|State"
    row = "{}|ann|x|all|normal|2026-09-01T00:00:{:02d}|2026-09-01T00:00:{:02d}|2026-09-01T01:00:00|2026-09-01T02:00:00|3600|90|"
    rest = "cpu=8,mem=100M,node=1,billing=8,gres/gpu=4|1|COMPLETED|{}\n"
    lines = [
        row.format(1, 0, 0) + rest.format("sbatch a"),
        row.format(2, 1, 1) + rest.format("sbatch b"),
        row.format(3, 2, 2) + rest.format("sbatch -d afterany:1 c"),
    ]
    (tmp_path / "jobs.sacct").write_text(f"{head}|SubmitLine\n" + "".join(lines))
    given_options = Options(slurm_conf=[tmp_path / "slurm.conf"], sacct=tmp_path / "jobs.sacct")
    _, cases = compare_cases(str(tmp_path / "jobs.sacct"), given_options)
    assert [case.label for case in cases] == ["as it was", "slurm (limit)"]
    assert np.asarray(cases[1].schedule.start_s).tolist() == [0.0, 1.0, 3600.0]
    with pytest.raises(InvalidInput, match="describes the nodes"):
        compare_cases("x", replace(given_options, cluster=["2x4"]))
