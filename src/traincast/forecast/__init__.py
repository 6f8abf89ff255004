"""The map of the product: a job, a cluster and a plan become a forecast."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.forecast._arbitrate import CORE as CORE
    from traincast.forecast._arbitrate import LAYERS as LAYERS
    from traincast.forecast._arbitrate import ask_gpu_reuse as ask_gpu_reuse
    from traincast.forecast._arbitrate import ask_reuse as ask_reuse
    from traincast.forecast._arbitrate import describe_run as describe_run
    from traincast.forecast._ask import Origin as Origin
    from traincast.forecast._ask import answer as answer
    from traincast.forecast._ask import ask as ask
    from traincast.forecast._certainty import DATA_FACTOR as DATA_FACTOR
    from traincast.forecast._certainty import DOCUMENT as DOCUMENT
    from traincast.forecast._certainty import FEATURES as FEATURES
    from traincast.forecast._certainty import HOST_CPU_FACTOR as HOST_CPU_FACTOR
    from traincast.forecast._certainty import HOST_LEAST_S as HOST_LEAST_S
    from traincast.forecast._certainty import HOST_MOST_S as HOST_MOST_S
    from traincast.forecast._certainty import KNOWN_STACK as KNOWN_STACK
    from traincast.forecast._certainty import LATE_RING_STEP_S as LATE_RING_STEP_S
    from traincast.forecast._certainty import LEVELS as LEVELS
    from traincast.forecast._certainty import MEMORY as MEMORY
    from traincast.forecast._certainty import MOST_OPERATORS as MOST_OPERATORS
    from traincast.forecast._certainty import NEW_STACK as NEW_STACK
    from traincast.forecast._certainty import SMALL_SAMPLE as SMALL_SAMPLE
    from traincast.forecast._certainty import STEP as STEP
    from traincast.forecast._certainty import WIDEST as WIDEST
    from traincast.forecast._certainty import Cell as Cell
    from traincast.forecast._certainty import Certainty as Certainty
    from traincast.forecast._certainty import Experience as Experience
    from traincast.forecast._certainty import Quantiles as Quantiles
    from traincast.forecast._certainty import Sensitivity as Sensitivity
    from traincast.forecast._certainty import Setting as Setting
    from traincast.forecast._certainty import Sides as Sides
    from traincast.forecast._certainty import activation_share as activation_share
    from traincast.forecast._certainty import beside_share as beside_share
    from traincast.forecast._certainty import call_seconds as call_seconds
    from traincast.forecast._certainty import clip_interval as clip_interval
    from traincast.forecast._certainty import count_near as count_near
    from traincast.forecast._certainty import describe_setting as describe_setting
    from traincast.forecast._certainty import input_seconds as input_seconds
    from traincast.forecast._certainty import join_all as join_all
    from traincast.forecast._certainty import list_novelty as list_novelty
    from traincast.forecast._certainty import memory_errors as memory_errors
    from traincast.forecast._certainty import memory_sensitivity as memory_sensitivity
    from traincast.forecast._certainty import mix_quantiles as mix_quantiles
    from traincast.forecast._certainty import octave_of as octave_of
    from traincast.forecast._certainty import sort_of as sort_of
    from traincast.forecast._certainty import step_sensitivity as step_sensitivity
    from traincast.forecast._corrections import CALIBRATION_NOTE as CALIBRATION_NOTE
    from traincast.forecast._corrections import IGNORE as IGNORE
    from traincast.forecast._corrections import Novelty as Novelty
    from traincast.forecast._corrections import compute_ratio as compute_ratio
    from traincast.forecast._corrections import is_beyond as is_beyond
    from traincast.forecast._corrections import largest_of as largest_of
    from traincast.forecast._corrections import novelty_of as novelty_of
    from traincast.forecast._corrections import shares_of as shares_of
    from traincast.forecast._defaults import HALVES as HALVES
    from traincast.forecast._defaults import reads_text as reads_text
    from traincast.forecast._defaults import usual_global_batch as usual_global_batch
    from traincast.forecast._defaults import with_defaults as with_defaults
    from traincast.forecast._device_memory import DeviceMemory as DeviceMemory
    from traincast.forecast._device_memory import find_fullest as find_fullest
    from traincast.forecast._device_memory import outside_bytes as outside_bytes
    from traincast.forecast._device_memory import overheads_of as overheads_of
    from traincast.forecast._device_memory import profile_stages as profile_stages
    from traincast.forecast._device_memory import trace_memory as trace_memory
    from traincast.forecast._device_memory import watch_device as watch_device
    from traincast.forecast._engine import Engine as Engine
    from traincast.forecast._gaussian_process import NOISE as NOISE
    from traincast.forecast._gaussian_process import Array as Array
    from traincast.forecast._gaussian_process import condition as condition
    from traincast.forecast._gaussian_process import correct as correct
    from traincast.forecast._habits import UNKNOWN as UNKNOWN
    from traincast.forecast._habits import plan_habits as plan_habits
    from traincast.forecast._interval import tally_program as tally_program
    from traincast.forecast._labels import label_run as label_run
    from traincast.forecast._narrow import GIVEN_DEVICE as GIVEN_DEVICE
    from traincast.forecast._narrow import GIVEN_JOB as GIVEN_JOB
    from traincast.forecast._narrow import GIVEN_OPERATORS as GIVEN_OPERATORS
    from traincast.forecast._narrow import GIVEN_STACK as GIVEN_STACK
    from traincast.forecast._narrow import with_operators as with_operators
    from traincast.forecast._parts import explain_parts as explain_parts
    from traincast.forecast._plain import forecast as forecast
    from traincast.forecast._plain import plain_engine as plain_engine
    from traincast.forecast._pose import spell_out as spell_out
    from traincast.forecast._resolve import Resolved as Resolved
    from traincast.forecast._resolve import build_cluster as build_cluster
    from traincast.forecast._resolve import build_job as build_job
    from traincast.forecast._resolve import choose_stack as choose_stack
    from traincast.forecast._resolve import complete_plan as complete_plan
    from traincast.forecast._resolve import complete_question as complete_question
    from traincast.forecast._resolve import describe_settings as describe_settings
    from traincast.forecast._resolve import fill_in as fill_in
    from traincast.forecast._resolve import find_length as find_length
    from traincast.forecast._resolve import load_source as load_source
    from traincast.forecast._resolve import pose_job as pose_job
    from traincast.forecast._resolve import pose_with as pose_with
    from traincast.forecast._resolve import read_calibration as read_calibration
    from traincast.forecast._resolve import resolve as resolve
    from traincast.forecast._target import train_to_target as train_to_target
    from traincast.forecast._tune import COMMUNICATING as COMMUNICATING
    from traincast.forecast._tune import MAX_STEPS as MAX_STEPS
    from traincast.forecast._tune import KnownStep as KnownStep
    from traincast.forecast._tune import know_step as know_step
    from traincast.forecast._tune import slow_down as slow_down
    from traincast.forecast._tune import tune as tune
    from traincast.forecast._words import ask_in_words as ask_in_words
    from traincast.forecast._words import is_hardware as is_hardware
    from traincast.forecast._words import read_hardware as read_hardware
    from traincast.forecast._words import write_command as write_command

__all__ = ["Engine", "forecast", "outside_bytes"]

__getattr__ = load_lazily(
    __name__,
    {
        "_arbitrate": (
            "CORE",
            "LAYERS",
            "ask_gpu_reuse",
            "ask_reuse",
            "describe_run",
        ),
        "_ask": (
            "Origin",
            "answer",
            "ask",
        ),
        "_certainty": (
            "Cell",
            "Certainty",
            "DATA_FACTOR",
            "DOCUMENT",
            "Experience",
            "FEATURES",
            "HOST_CPU_FACTOR",
            "HOST_LEAST_S",
            "HOST_MOST_S",
            "LATE_RING_STEP_S",
            "KNOWN_STACK",
            "LEVELS",
            "MEMORY",
            "MOST_OPERATORS",
            "NEW_STACK",
            "SMALL_SAMPLE",
            "Sensitivity",
            "Sides",
            "WIDEST",
            "call_seconds",
            "clip_interval",
            "count_near",
            "input_seconds",
            "memory_sensitivity",
            "step_sensitivity",
            "Quantiles",
            "STEP",
            "Setting",
            "activation_share",
            "beside_share",
            "describe_setting",
            "join_all",
            "list_novelty",
            "memory_errors",
            "mix_quantiles",
            "octave_of",
            "sort_of",
        ),
        "_corrections": (
            "CALIBRATION_NOTE",
            "IGNORE",
            "Novelty",
            "compute_ratio",
            "is_beyond",
            "largest_of",
            "novelty_of",
            "shares_of",
        ),
        "_defaults": (
            "HALVES",
            "reads_text",
            "usual_global_batch",
            "with_defaults",
        ),
        "_device_memory": (
            "DeviceMemory",
            "find_fullest",
            "outside_bytes",
            "overheads_of",
            "profile_stages",
            "trace_memory",
            "watch_device",
        ),
        "_engine": ("Engine",),
        "_gaussian_process": (
            "Array",
            "NOISE",
            "condition",
            "correct",
        ),
        "_habits": (
            "UNKNOWN",
            "plan_habits",
        ),
        "_interval": ("tally_program",),
        "_labels": ("label_run",),
        "_narrow": (
            "GIVEN_DEVICE",
            "GIVEN_JOB",
            "GIVEN_OPERATORS",
            "GIVEN_STACK",
            "with_operators",
        ),
        "_parts": ("explain_parts",),
        "_plain": (
            "forecast",
            "plain_engine",
        ),
        "_pose": ("spell_out",),
        "_resolve": (
            "Resolved",
            "build_cluster",
            "build_job",
            "choose_stack",
            "complete_plan",
            "complete_question",
            "describe_settings",
            "fill_in",
            "find_length",
            "load_source",
            "pose_job",
            "pose_with",
            "read_calibration",
            "resolve",
        ),
        "_target": ("train_to_target",),
        "_tune": (
            "COMMUNICATING",
            "KnownStep",
            "MAX_STEPS",
            "know_step",
            "slow_down",
            "tune",
        ),
        "_words": (
            "ask_in_words",
            "is_hardware",
            "read_hardware",
            "write_command",
        ),
    },
)
