"""Evaluation: norms apply given statistics; convolutions and pooling run without what training adds to them."""

from dataclasses import replace

from traincast.spec import Graph

MARKED = ("norm", "conv", "pool")


def mark_evaluation(graph: Graph) -> Graph:
    """An inference graph whose norms, convolutions and pooling say so."""
    if graph.mode != "inference":
        return graph
    ops = tuple(replace(op, attrs={**op.attrs, "training": False}) if op.kind in MARKED else op for op in graph.ops)
    return replace(graph, ops=ops)
