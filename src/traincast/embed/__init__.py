"""Turns a training step into a vector: what is it like, how far is it from what we know, how long will it take."""

from typing import TYPE_CHECKING

from traincast.embed._encoder import Encoder, load_encoder
from traincast.embed._known import (
    UNFAMILIAR,
    Atlas,
    KnownWorkload,
    Neighbour,
    distance,
    load_atlas,
    load_predictor,
    widen,
)
from traincast.embed._reuse import Known, Predictor, Reach, cross_validate, fit_predictor
from traincast.embed._summary import Ranks, Summary, summarize
from traincast.facade import load_lazily

__all__ = [
    "UNFAMILIAR",
    "Atlas",
    "Encoder",
    "Known",
    "KnownWorkload",
    "Neighbour",
    "Predictor",
    "Ranks",
    "Reach",
    "Summary",
    "cross_validate",
    "distance",
    "fit_predictor",
    "load_atlas",
    "load_encoder",
    "load_predictor",
    "summarize",
    "widen",
]

if TYPE_CHECKING:
    from traincast.embed._encoder import FOLDER as FOLDER
    from traincast.embed._encoder import SIZE as SIZE
    from traincast.embed._encoder import reverse as reverse
    from traincast.embed._encoder import save_encoder as save_encoder
    from traincast.embed._features import COLUMNS as COLUMNS
    from traincast.embed._features import DATA_TYPES as DATA_TYPES
    from traincast.embed._features import LOG_SCALE as LOG_SCALE
    from traincast.embed._features import Array as Array
    from traincast.embed._features import Describe as Describe
    from traincast.embed._features import Nodes as Nodes
    from traincast.embed._features import data_type as data_type
    from traincast.embed._features import describe as describe
    from traincast.embed._known import KNOWN as KNOWN
    from traincast.embed._known import PREDICTOR as PREDICTOR
    from traincast.embed._known import draw_atlas as draw_atlas
    from traincast.embed._known import save_atlas as save_atlas
    from traincast.embed._known import save_predictor as save_predictor
    from traincast.embed._on_gpus import ON_GPUS as ON_GPUS
    from traincast.embed._on_gpus import SHARE_HALF as SHARE_HALF
    from traincast.embed._on_gpus import SHARE_REACH as SHARE_REACH
    from traincast.embed._on_gpus import SHARE_SCALE as SHARE_SCALE
    from traincast.embed._on_gpus import GpuAnswer as GpuAnswer
    from traincast.embed._on_gpus import GpuReuse as GpuReuse
    from traincast.embed._on_gpus import load_gpu_reuse as load_gpu_reuse
    from traincast.embed._on_gpus import read_gpu_reuse as read_gpu_reuse
    from traincast.embed._reuse import leave_out_rates as leave_out_rates
    from traincast.embed._reuse import measure_apart as measure_apart
    from traincast.embed._reuse import meet as meet

__getattr__ = load_lazily(
    __name__,
    {
        "_encoder": (
            "FOLDER",
            "SIZE",
            "reverse",
            "save_encoder",
        ),
        "_features": (
            "Array",
            "COLUMNS",
            "DATA_TYPES",
            "Describe",
            "LOG_SCALE",
            "Nodes",
            "data_type",
            "describe",
        ),
        "_known": (
            "KNOWN",
            "PREDICTOR",
            "draw_atlas",
            "save_atlas",
            "save_predictor",
        ),
        "_on_gpus": (
            "GpuAnswer",
            "GpuReuse",
            "ON_GPUS",
            "SHARE_HALF",
            "SHARE_REACH",
            "SHARE_SCALE",
            "load_gpu_reuse",
            "read_gpu_reuse",
        ),
        "_reuse": (
            "leave_out_rates",
            "measure_apart",
            "meet",
        ),
    },
)
