"""Evaluation: norms apply given statistics, and convolutions run without the passes around them that training has."""

from dataclasses import replace

from traincast.spec import Graph

MARKED = ("norm", "conv")


def mark_evaluation(graph: Graph) -> Graph:
    """An inference graph whose norms and convolutions say so."""
    if graph.mode != "inference":
        return graph
    ops = tuple(replace(op, attrs={**op.attrs, "training": False}) if op.kind in MARKED else op for op in graph.ops)
    return replace(graph, ops=ops)
