"""What slurm.conf says about scheduling and the simulation does not do: named, never ignored in silence."""

from collections.abc import Iterator

from traincast.schedule._slurm.conf import SlurmConf

_MODELLED = (
    "prioritytype", "priorityweightage", "priorityweightfairshare", "priorityweightjobsize",
    "priorityweightpartition", "priorityweightqos", "priorityweighttres", "prioritymaxage", "prioritydecayhalflife",
    "prioritycalcperiod", "priorityfavorsmall", "schedulertype", "schedulerparameters", "selecttype",
    "selecttypeparameters", "preempttype", "preemptmode", "schedulerport", "schedulerrootfilter",
)  # fmt: skip
_ABOUT_ORDER = ("priority", "scheduler", "select", "preempt")
"""Keys that say who runs when or where begin with these words, or are in `_RELEVANT`."""
_PARAMETERS = (
    "bf_window", "bf_interval", "bf_max_job_test", "bf_resolution", "bf_max_job_user", "bf_max_job_part",
    "bf_max_job_start", "default_queue_depth", "bf_continue", "bf_max_time", "bf_yield_interval", "bf_yield_sleep",
    "sched_interval", "sched_min_interval", "max_rpc_cnt", "batch_sched_delay", "sched_max_job_start",
)  # fmt: skip
_RELEVANT = {
    "topologyplugin": "nodes are chosen by weight and room, not by switches",
    "preemptexempttime": "jobs may be preempted from their first second",
    "overtimelimit": "jobs run as long as the log says",
    "jobsubmitplugins": "jobs arrive as the log has them",
    "licenses": "licences are not counted",
    "priorityusageresetperiod": "usage decays and is never set to zero",
    "priorityweightassoc": "associations have shares and no priority",
    "prioritysitefactorplugin": "there is no site factor",
    "enforcepartlimits": "a job over a limit of its partition is rejected",
    "suspendtime": "nodes are never powered down",
    "burstbuffertype": "burst buffers are not staged",
    "schedulertimeslice": "time slicing (GANG) of one partition's jobs is not modelled",
}
_NOTHING = ("", "NONE", "INFINITE", "0", "TOPOLOGY/DEFAULT", "TOPOLOGY/FLAT", "NO", "ANY")
_PART_RELEVANT = {
    "allowaccounts": "who may use a partition is not checked",
    "allowgroups": "who may use a partition is not checked",
    "allowqos": "who may use a partition is not checked",
    "denyaccounts": "who may use a partition is not checked",
    "denyqos": "who may use a partition is not checked",
    "gracetime": "preempted jobs stop at once",
    "lln": "nodes are chosen by weight and the room that is left",
    "minnodes": "small jobs are taken by every partition",
    "maxcpuspernode": "CPUs of a node are not kept for other partitions",
    "exclusiveuser": "nodes are shared by users",
    "overtimelimit": "jobs run as long as the log says",
    "state": "partitions that are down are treated as up",
}


def name_unmodelled(conf: SlurmConf) -> list[str]:
    return sorted({*_in_words(conf), *_in_parameters(conf), *_in_partitions(conf)})


def _in_words(conf: SlurmConf) -> Iterator[str]:
    for key, value in conf.words.items():
        if key in _MODELLED or value.upper() in _NOTHING:
            continue
        if key in _RELEVANT:
            yield f"slurm.conf: {key}={value} is not modelled; {_RELEVANT[key]}"
        elif key.startswith(_ABOUT_ORDER):
            yield f"slurm.conf: {key} is not known here and was not read"
    if "SUSPEND" in conf.words.get("preemptmode", "").upper():
        yield "slurm.conf: PreemptMode=SUSPEND is not modelled; preempted jobs go back to the queue and start again"
    kind = conf.words.get("selecttype", "select/cons_tres").lower()
    if kind not in ("select/cons_tres", "select/cons_res", "select/linear"):
        yield f"slurm.conf: SelectType={kind} is treated as select/cons_tres"


def _in_parameters(conf: SlurmConf) -> Iterator[str]:
    for part in conf.words.get("schedulerparameters", "").replace(" ", "").split(","):
        name = part.partition("=")[0].lower()
        if name and name not in _PARAMETERS:
            yield f"slurm.conf: {part} of SchedulerParameters is not modelled"


def _in_partitions(conf: SlurmConf) -> Iterator[str]:
    for part in conf.partitions.values():
        for key, value in part.words.items():
            if key in _PART_RELEVANT and value.upper() not in (*_NOTHING, "ALL", "UP", "1"):
                yield f"partition {part.name}: {key}={value} is not modelled; {_PART_RELEVANT[key]}"
        if part.words.get("oversubscribe", "NO").upper().startswith(("YES", "FORCE")):
            yield f"partition {part.name}: GPUs and CPUs are never given to two jobs at once (OverSubscribe)"
