"""Touches real clocks: experiments in, measured blocks out. Importing it needs no torch; measuring with it does."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.profile._architectures import architecture_names, build_architecture
    from traincast.profile._drift import Steadied, observe, steady_seconds
    from traincast.profile._machine import Steadiness, describe, drift, make_canary, steady
    from traincast.profile._meters import DeviceSampler, find_meter
    from traincast.profile._operators import (
        MAKERS,
        distinct_operators,
        experiment_of,
        grid,
        is_runnable,
        op_of,
        subject_of,
    )
    from traincast.profile._protocol import Progress, Protocol, Subject, Visit, measure
    from traincast.profile._steps import step_experiment

__getattr__ = load_lazily(__name__)
