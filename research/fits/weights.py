"""Fitted arrays to the files of weights that ship with the package."""

import json
from pathlib import Path

from traincast.cost._interaction.pricing import _ARRAYS as GRAPH_ARRAYS
from traincast.cost._interaction.pricing import NodeNetwork
from traincast.embed._predictor import _ARRAYS as PREDICTOR_ARRAYS
from traincast.embed._predictor import PREDICTOR, StepPredictor
from traincast.files import write_safetensors

PREDICTOR_NUMBERS = ("mean", "log_sigma", "num_steps", "error")


def save_graph_network(network: NodeNetwork, path: Path, **notes: str) -> None:
    kept = {"classes": json.dumps(list(network.classes)), "bound": repr(network.bound), **notes}
    write_safetensors(path, {name: getattr(network, name) for name in GRAPH_ARRAYS}, kept)


def save_predictor(predictor: StepPredictor, path: Path = PREDICTOR) -> None:
    arrays = {
        f"{name}.{part}": getattr(one, part) for name, one in predictor.types.items() for part in PREDICTOR_ARRAYS
    }
    facts = {name: {part: getattr(one, part) for part in PREDICTOR_NUMBERS} for name, one in predictor.types.items()}
    write_safetensors(
        path, arrays, {"types": json.dumps(facts), "made by": "python -m research.fits.methods predictddl"}
    )
