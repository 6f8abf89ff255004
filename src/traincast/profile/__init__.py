"""Touches real clocks: experiments in, measured blocks out. Importing it needs no torch; measuring with it does."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.profile._architectures import build_architecture as build_architecture
    from traincast.profile._architectures import corpus_names as corpus_names
    from traincast.profile._architectures import large_image_names as large_image_names
    from traincast.profile._campaign import Keeper as Keeper
    from traincast.profile._campaign import Show as Show
    from traincast.profile._campaign import visit_all as visit_all
    from traincast.profile._drift import Steadied as Steadied
    from traincast.profile._drift import find_drift as find_drift
    from traincast.profile._drift import observe as observe
    from traincast.profile._drift import steady_levels as steady_levels
    from traincast.profile._drift import steady_seconds as steady_seconds
    from traincast.profile._machine import Steadiness as Steadiness
    from traincast.profile._machine import describe as describe
    from traincast.profile._machine import drift as drift
    from traincast.profile._machine import fix_malloc as fix_malloc
    from traincast.profile._machine import make_canary as make_canary
    from traincast.profile._machine import steady as steady
    from traincast.profile._machine import total_memory_bytes as total_memory_bytes
    from traincast.profile._meters import DeviceSampler as DeviceSampler
    from traincast.profile._meters import Meter as Meter
    from traincast.profile._meters import NvmlMeter as NvmlMeter
    from traincast.profile._meters import Reading as Reading
    from traincast.profile._meters import RocmMeter as RocmMeter
    from traincast.profile._meters import find_meter as find_meter
    from traincast.profile._operators import MAKERS as MAKERS
    from traincast.profile._operators import distinct_operators as distinct_operators
    from traincast.profile._operators import experiment_of as experiment_of
    from traincast.profile._operators import grid as grid
    from traincast.profile._operators import is_runnable as is_runnable
    from traincast.profile._operators import op_of as op_of
    from traincast.profile._operators import operator_subjects as operator_subjects
    from traincast.profile._protocol import Progress as Progress
    from traincast.profile._protocol import Protocol as Protocol
    from traincast.profile._protocol import Subject as Subject
    from traincast.profile._protocol import Visit as Visit
    from traincast.profile._protocol import measure as measure
    from traincast.profile._protocol import measure_block as measure_block
    from traincast.profile._remote import measure_over_nodes as measure_over_nodes
    from traincast.profile._remote import subject_of as subject_of
    from traincast.profile._settings import SETTINGS as SETTINGS
    from traincast.profile._settings import TOO_LARGE as TOO_LARGE
    from traincast.profile._settings import Setting as Setting
    from traincast.profile._settings import find_settings as find_settings
    from traincast.profile._steps import prepare_step as prepare_step
    from traincast.profile._steps import step_experiment as step_experiment
    from traincast.profile._steps import step_subjects as step_subjects
    from traincast.profile._team import Team as Team
    from traincast.profile._team import TeamFailed as TeamFailed
    from traincast.profile._team import local_team as local_team
    from traincast.profile._team import team_in as team_in
    from traincast.profile._testbed import EmulatedCluster as EmulatedCluster
    from traincast.profile._testbed import EmulatedNode as EmulatedNode
    from traincast.profile._testbed import down as down
    from traincast.profile._testbed import emulated as emulated
    from traincast.profile._testbed import load as load
    from traincast.profile._testbed import parse_rate as parse_rate
    from traincast.profile._testbed import require_root as require_root
    from traincast.profile._testbed import run_torchrun as run_torchrun
    from traincast.profile._testbed import start_in_node as start_in_node
    from traincast.profile._testbed import stop_all as stop_all
    from traincast.profile._testbed import up as up
    from traincast.profile._worker import prepare_parallel_step as prepare_parallel_step

__getattr__ = load_lazily(
    __name__,
    {
        "_architectures": (
            "build_architecture",
            "corpus_names",
            "large_image_names",
        ),
        "_campaign": (
            "Keeper",
            "Show",
            "visit_all",
        ),
        "_drift": (
            "Steadied",
            "find_drift",
            "observe",
            "steady_levels",
            "steady_seconds",
        ),
        "_machine": (
            "Steadiness",
            "describe",
            "drift",
            "fix_malloc",
            "make_canary",
            "steady",
            "total_memory_bytes",
        ),
        "_meters": (
            "DeviceSampler",
            "Meter",
            "NvmlMeter",
            "Reading",
            "RocmMeter",
            "find_meter",
        ),
        "_operators": (
            "MAKERS",
            "distinct_operators",
            "experiment_of",
            "grid",
            "is_runnable",
            "op_of",
            "operator_subjects",
        ),
        "_protocol": (
            "Progress",
            "Protocol",
            "Subject",
            "Visit",
            "measure",
            "measure_block",
        ),
        "_remote": (
            "measure_over_nodes",
            "subject_of",
        ),
        "_settings": (
            "SETTINGS",
            "Setting",
            "TOO_LARGE",
            "find_settings",
        ),
        "_steps": (
            "prepare_step",
            "step_experiment",
            "step_subjects",
        ),
        "_team": (
            "Team",
            "TeamFailed",
            "local_team",
            "team_in",
        ),
        "_testbed": (
            "down",
            "up",
            "EmulatedCluster",
            "EmulatedNode",
            "emulated",
            "load",
            "parse_rate",
            "require_root",
            "run_torchrun",
            "start_in_node",
            "stop_all",
        ),
        "_worker": ("prepare_parallel_step",),
    },
)
