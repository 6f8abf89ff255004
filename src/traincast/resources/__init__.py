"""Turns a timeline, or the samples of a real run, into utilisation, traffic, bursts and idle times."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.resources._on_gpus import (
        LEAST_NEARNESS,
        ON_GPUS,
        OWN_RUNS,
        BusyShare,
        apply_busy,
        apply_wire,
        busy_share,
        describe_busy,
        grounds_of,
        load_gpu_activity,
    )
    from traincast.resources._profile import group_of, profile_resources, summarize_readings
    from traincast.resources._twelve import Rank, TwelveNetwork, load_twelve, measure_outputs, save_twelve

__getattr__ = load_lazily(__name__)
