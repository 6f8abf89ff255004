"""Turns a training step into a vector: what is it like, how far is it from what we know, how long will it take."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.embed._encoder import FOLDER as FOLDER
    from traincast.embed._encoder import SIZE as SIZE
    from traincast.embed._encoder import Encoder as Encoder
    from traincast.embed._encoder import load_encoder as load_encoder
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
    from traincast.embed._known import UNFAMILIAR as UNFAMILIAR
    from traincast.embed._known import Atlas as Atlas
    from traincast.embed._known import KnownWorkload as KnownWorkload
    from traincast.embed._known import Neighbour as Neighbour
    from traincast.embed._known import distance as distance
    from traincast.embed._known import draw_atlas as draw_atlas
    from traincast.embed._known import load_atlas as load_atlas
    from traincast.embed._known import load_predictor as load_predictor
    from traincast.embed._known import save_atlas as save_atlas
    from traincast.embed._known import save_predictor as save_predictor
    from traincast.embed._known import widen as widen
    from traincast.embed._on_gpus import ON_GPUS as ON_GPUS
    from traincast.embed._on_gpus import SHARE_HALF as SHARE_HALF
    from traincast.embed._on_gpus import SHARE_REACH as SHARE_REACH
    from traincast.embed._on_gpus import SHARE_SCALE as SHARE_SCALE
    from traincast.embed._on_gpus import GpuAnswer as GpuAnswer
    from traincast.embed._on_gpus import GpuReuse as GpuReuse
    from traincast.embed._on_gpus import load_gpu_reuse as load_gpu_reuse
    from traincast.embed._on_gpus import read_gpu_reuse as read_gpu_reuse
    from traincast.embed._reuse import Known as Known
    from traincast.embed._reuse import Predictor as Predictor
    from traincast.embed._reuse import Reach as Reach
    from traincast.embed._reuse import cross_validate as cross_validate
    from traincast.embed._reuse import fit_predictor as fit_predictor
    from traincast.embed._reuse import leave_out_rates as leave_out_rates
    from traincast.embed._reuse import measure_apart as measure_apart
    from traincast.embed._reuse import meet as meet
    from traincast.embed._summary import Ranks as Ranks
    from traincast.embed._summary import Summary as Summary
    from traincast.embed._summary import summarize as summarize

__getattr__ = load_lazily(
    __name__,
    {
        "_encoder": (
            "Encoder",
            "FOLDER",
            "SIZE",
            "load_encoder",
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
            "Atlas",
            "KNOWN",
            "KnownWorkload",
            "Neighbour",
            "PREDICTOR",
            "UNFAMILIAR",
            "distance",
            "draw_atlas",
            "load_atlas",
            "load_predictor",
            "save_atlas",
            "save_predictor",
            "widen",
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
            "Known",
            "Predictor",
            "Reach",
            "cross_validate",
            "fit_predictor",
            "leave_out_rates",
            "measure_apart",
            "meet",
        ),
        "_summary": (
            "Ranks",
            "Summary",
            "summarize",
        ),
    },
)
