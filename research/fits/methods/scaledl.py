"""Measured steps to the graph network above the layers, with the conditions of a run among its inputs."""

from dataclasses import replace

import numpy as np

from research.fits.interaction_gpu.data import Data
from research.fits.interaction_gpu.members import Table, fit_network
from research.fits.methods.__main__ import FOLDS, describe_errors, fold_rows, tell
from research.fits.weights import save_graph_network
from traincast.cost._interaction.pricing import GRAPH, NodeNetwork


def with_conditions(data: Data) -> Data:
    """A program for each row, whose operators also see what they run on."""
    programs = []
    for row in data.rows:
        program, told = data.programs[row.program], row.of("conditions")
        around = np.concatenate([program.around, np.tile(told, (len(program.around), 1))], axis=1)
        programs.append(replace(program, around=around))
    return Data(
        programs=tuple(programs), rows=tuple(replace(row, program=place) for place, row in enumerate(data.rows))
    )


def train(data: Data, *, write: bool) -> None:
    fold = fold_rows(data)
    conditions = np.array([row.condition for row in data.rows])
    plain, told = Table.of(data, cases_weight=1.0), Table.of(with_conditions(data), cases_weight=1.0)
    found = {name: np.zeros(len(data.rows)) for name in ("layers", "graph", "graph with conditions")}
    for one in range(FOLDS):
        asked = fold == one
        for name, table in (("graph", plain), ("graph with conditions", told)):
            network = fit_network(table, ~asked)
            found[name][asked] = table.log_step(network.apply(table))[asked]
    found["layers"] = plain.log_step(np.zeros(len(plain.node_class)))
    errors = {name: np.abs(np.expm1(logs - plain.log_measured)) for name, logs in found.items()}
    for name in ("all", *sorted(set(conditions.tolist()))):
        there = np.ones(len(fold), dtype=bool) if name == "all" else conditions == name
        cells = "; ".join(f"{method} {describe_errors(each[there])}" for method, each in errors.items())
        tell(f"{name} n {int(there.sum())}: {cells}")
    if write:
        network = fit_network(told, np.ones(len(fold), dtype=bool))
        arrays = {
            name: getattr(network, name)
            for name in ("centre", "scale", "enter", "enter_class", "middle", "middle_bias", "leave")
        }
        classes = {name: place for place, name in enumerate(told.classes)}
        note = describe_errors(errors["graph with conditions"])
        save_graph_network(
            NodeNetwork(classes=classes, bound=network.bound, **arrays), GRAPH, left_out=note,
            made_by="python -m research.fits.methods scaledl",
        )  # fmt: skip
