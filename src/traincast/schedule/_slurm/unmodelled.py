"""What slurm.conf says about scheduling and the simulation does not do: named, never ignored in silence."""

from collections.abc import Iterator

from traincast.schedule._slurm.conf import SlurmConf

_MODELLED = (
    "prioritytype", "priorityweightage", "priorityweightfairshare", "priorityweightjobsize",
    "priorityweightpartition", "priorityweightqos", "prioritymaxage", "prioritydecayhalflife",
    "prioritycalcperiod", "priorityfavorsmall", "schedulertype", "schedulerparameters", "selecttype",
    "selecttypeparameters", "preempttype", "preemptmode", "schedulerport", "schedulerrootfilter",
)  # fmt: skip
_ABOUT_ORDER = ("priority", "scheduler", "select", "preempt")
"""Keys that say who runs when or where begin with these words, or are in `_RELEVANT`."""
_PARAMETERS = (
    "bf_window", "bf_interval", "bf_max_job_test", "bf_resolution", "default_queue_depth", "bf_continue",
    "bf_max_time", "bf_yield_interval", "bf_yield_sleep", "sched_interval", "sched_min_interval", "max_rpc_cnt",
    "batch_sched_delay", "sched_max_job_start",
)  # fmt: skip
_RELEVANT = (
    "topologyplugin", "overtimelimit", "jobsubmitplugins", "licenses", "enforcepartlimits", "suspendtime",
    "burstbuffertype",
)  # fmt: skip
_NOTHING = ("", "NONE", "INFINITE", "0", "TOPOLOGY/DEFAULT", "TOPOLOGY/FLAT", "NO", "ANY")
_OF_PARTITIONS = (
    "allowaccounts", "allowgroups", "allowqos", "denyaccounts", "denyqos", "gracetime", "lln", "minnodes",
    "maxcpuspernode", "exclusiveuser", "overtimelimit", "state", "tresbillingweights",
)  # fmt: skip


def name_unmodelled(conf: SlurmConf) -> list[str]:
    return sorted({*_in_words(conf), *_in_parameters(conf), *_in_partitions(conf)})


def _in_words(conf: SlurmConf) -> Iterator[str]:
    for key, value in conf.words.items():
        if key in _MODELLED or value.upper() in _NOTHING:
            continue
        if key in _RELEVANT or key.startswith(_ABOUT_ORDER):
            yield f"slurm.conf: {key}={value} is not modelled"
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
            if key in _OF_PARTITIONS and value.upper() not in (*_NOTHING, "ALL", "UP", "1"):
                yield f"partition {part.name}: {key}={value} is not modelled"
        if part.words.get("oversubscribe", "NO").upper().startswith(("YES", "FORCE")):
            yield f"partition {part.name}: GPUs and CPUs are never given to two jobs at once (OverSubscribe)"
