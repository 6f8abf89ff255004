"""Turns a training step into a vector: what is it like, how far is it from what we know, how long will it take."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.embed._features import data_type
    from traincast.embed._known import KNOWN, UNFAMILIAR, Neighbour, load_atlas, widen
    from traincast.embed._predictor import describe_step, load_predictor
    from traincast.embed._summary import Summary, summarize

__getattr__ = load_lazily(__name__)
