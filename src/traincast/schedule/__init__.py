"""Lets jobs compete for devices: traces in, schedules, metrics and comparisons out."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.schedule._compare import (
        AS_IT_WAS,
        Case,
        default_knowledge,
        know,
        measure_distance,
        nearest_replay,
        run_cases,
    )
    from traincast.schedule._estimators import Estimator, FromHistory, Limits, Noisy
    from traincast.schedule._generate import Mix, generate_jobs
    from traincast.schedule._hazards import TYPICAL, FailureModel, Overheads, WeibullFailures
    from traincast.schedule._jobs import Floats, JobTable
    from traincast.schedule._known import check_options, traits_of
    from traincast.schedule._manifests import read_queues
    from traincast.schedule._metrics import (
        GROUPINGS,
        Metrics,
        measure_groups,
        measure_schedule,
        queue_curve,
        use_curve,
    )
    from traincast.schedule._network import UniformTraffic
    from traincast.schedule._occupations import Occupations
    from traincast.schedule._oracle import ForecastSource
    from traincast.schedule._placement import PLACERS, Placer
    from traincast.schedule._policies import POLICIES, ByScore, Policy
    from traincast.schedule._protocols import RoundPolicy
    from traincast.schedule._questions import Start, find_nodes, match_types, parse_goal, plan_nodes, predict_start
    from traincast.schedule._simulator import simulate_cluster
    from traincast.schedule._slurm.site import read_sinfo, read_site
    from traincast.schedule._speeds import PerfModel, TypeSpeeds, forecast_jobs, parse_type_speeds
    from traincast.schedule._study import (
        Setting,
        check_policies,
        job_columns,
        parse_fleet,
        parse_quotas,
        run_policy,
    )
    from traincast.schedule._traces import FORMATS, Trace, read_trace, write_columns

__getattr__ = load_lazily(__name__)
