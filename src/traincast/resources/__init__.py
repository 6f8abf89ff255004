"""Turns a timeline, or the samples of a real run, into utilisation, traffic, bursts and idle times."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily
from traincast.resources._profile import IDLE_POWER, profile_resources, profile_samples

__all__ = ["IDLE_POWER", "profile_resources", "profile_samples"]

if TYPE_CHECKING:
    from traincast.resources._adapt import adapt as adapt
    from traincast.resources._adapt import choose_runs as choose_runs
    from traincast.resources._correction import BOUNDS as BOUNDS
    from traincast.resources._correction import FLOOR as FLOOR
    from traincast.resources._correction import NUM_NODE_FEATURES as NUM_NODE_FEATURES
    from traincast.resources._correction import NUM_ROUNDS as NUM_ROUNDS
    from traincast.resources._correction import TWELVE as TWELVE
    from traincast.resources._correction import WEIGHTS as WEIGHTS
    from traincast.resources._correction import Array as Array
    from traincast.resources._correction import Corrected as Corrected
    from traincast.resources._correction import GraphCorrection as GraphCorrection
    from traincast.resources._correction import Nodes as Nodes
    from traincast.resources._correction import Places as Places
    from traincast.resources._correction import describe_place as describe_place
    from traincast.resources._correction import in_step as in_step
    from traincast.resources._correction import load_graph_correction as load_graph_correction
    from traincast.resources._correction import node_shares as node_shares
    from traincast.resources._correction import read_nodes as read_nodes
    from traincast.resources._correction import save_graph_correction as save_graph_correction
    from traincast.resources._learned import KIND_GROUPS as KIND_GROUPS
    from traincast.resources._learned import OUTPUTS as OUTPUTS
    from traincast.resources._learned import TIMED as TIMED
    from traincast.resources._learned import WINDOW_S as WINDOW_S
    from traincast.resources._learned import Expected as Expected
    from traincast.resources._learned import Place as Place
    from traincast.resources._learned import Rates as Rates
    from traincast.resources._learned import Run as Run
    from traincast.resources._learned import count_work as count_work
    from traincast.resources._learned import expect as expect
    from traincast.resources._learned import fit_rates as fit_rates
    from traincast.resources._learned import learn as learn
    from traincast.resources._on_gpus import BUSY_INPUTS as BUSY_INPUTS
    from traincast.resources._on_gpus import GPU_RUNS as GPU_RUNS
    from traincast.resources._on_gpus import LEAST_NEARNESS as LEAST_NEARNESS
    from traincast.resources._on_gpus import ON_GPUS as ON_GPUS
    from traincast.resources._on_gpus import OWN_RUNS as OWN_RUNS
    from traincast.resources._on_gpus import TESTBED as TESTBED
    from traincast.resources._on_gpus import TIMELINE as TIMELINE
    from traincast.resources._on_gpus import WIRE_INPUTS as WIRE_INPUTS
    from traincast.resources._on_gpus import Busy as Busy
    from traincast.resources._on_gpus import GpuActivity as GpuActivity
    from traincast.resources._on_gpus import Perceptron as Perceptron
    from traincast.resources._on_gpus import apply_busy as apply_busy
    from traincast.resources._on_gpus import apply_wire as apply_wire
    from traincast.resources._on_gpus import busy_share as busy_share
    from traincast.resources._on_gpus import describe_busy as describe_busy
    from traincast.resources._on_gpus import grounds_of as grounds_of
    from traincast.resources._on_gpus import load_gpu_activity as load_gpu_activity
    from traincast.resources._on_gpus import save_gpu_activity as save_gpu_activity
    from traincast.resources._profile import FLOORS as FLOORS
    from traincast.resources._profile import WINDOWS_PER_STEP as WINDOWS_PER_STEP
    from traincast.resources._profile import summarize_readings as summarize_readings
    from traincast.resources._profile import trace_levels as trace_levels
    from traincast.resources._signal import Signal as Signal
    from traincast.resources._signal import burst_level as burst_level
    from traincast.resources._signal import find_bursts as find_bursts
    from traincast.resources._signal import from_counter as from_counter
    from traincast.resources._signal import from_gauge as from_gauge
    from traincast.resources._signal import from_pieces as from_pieces
    from traincast.resources._signal import repeat as repeat
    from traincast.resources._signal import sample as sample
    from traincast.resources._signal import summarize as summarize

__getattr__ = load_lazily(
    __name__,
    {
        "_adapt": (
            "adapt",
            "choose_runs",
        ),
        "_correction": (
            "Array",
            "BOUNDS",
            "Corrected",
            "FLOOR",
            "GraphCorrection",
            "NUM_NODE_FEATURES",
            "NUM_ROUNDS",
            "Nodes",
            "Places",
            "TWELVE",
            "WEIGHTS",
            "describe_place",
            "in_step",
            "load_graph_correction",
            "node_shares",
            "read_nodes",
            "save_graph_correction",
        ),
        "_learned": (
            "Expected",
            "KIND_GROUPS",
            "OUTPUTS",
            "Place",
            "Rates",
            "Run",
            "TIMED",
            "WINDOW_S",
            "count_work",
            "expect",
            "fit_rates",
            "learn",
        ),
        "_on_gpus": (
            "BUSY_INPUTS",
            "Busy",
            "GPU_RUNS",
            "LEAST_NEARNESS",
            "GpuActivity",
            "ON_GPUS",
            "OWN_RUNS",
            "Perceptron",
            "TESTBED",
            "TIMELINE",
            "WIRE_INPUTS",
            "apply_busy",
            "apply_wire",
            "busy_share",
            "describe_busy",
            "grounds_of",
            "load_gpu_activity",
            "save_gpu_activity",
        ),
        "_profile": (
            "FLOORS",
            "WINDOWS_PER_STEP",
            "summarize_readings",
            "trace_levels",
        ),
        "_signal": (
            "Signal",
            "burst_level",
            "find_bursts",
            "from_counter",
            "from_gauge",
            "from_pieces",
            "repeat",
            "sample",
            "summarize",
        ),
    },
)
