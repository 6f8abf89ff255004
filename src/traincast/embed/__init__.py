"""Turns a training step into a vector: what is it like, how far is it from what we know, how long will it take."""

from traincast.embed.encoder import Encoder, load_encoder
from traincast.embed.known import (
    UNFAMILIAR,
    Atlas,
    KnownWorkload,
    Neighbour,
    distance,
    load_atlas,
    load_predictor,
    widen,
)
from traincast.embed.reuse import Known, Predictor, Reach, cross_validate, fit_predictor
from traincast.embed.summary import Ranks, Summary, summarize

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
