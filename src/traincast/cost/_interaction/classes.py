"""Classes of operators to how much longer than priced they take in whole steps on GPUs, where that proved true.

The document `operator_classes` holds the factors and `research.fits.interaction_gpu` fits them. They speak for inference on
images: in training and on other data no correction helped families or publishers that were left out.
"""

import functools
from collections.abc import Mapping, Sequence

from traincast.catalog import read_constants
from traincast.cost._interaction.nodes import CONSTANTS, classes_of
from traincast.noun import noun
from traincast.spec import Device, Estimate, Graph, Task


@noun
class ClassFactors:
    """How much longer than priced the operators of each class take; a class that was never measured is as it is priced."""

    factors: Mapping[str, float]

    def apply(self, tasks: Sequence[Task], estimates: Sequence[Estimate]) -> tuple[Estimate, ...]:
        """Estimates with the device's time of each class scaled; what the host spends stays."""
        found = [1.0 if name is None else self.factors.get(name, 1.0) for name in classes_of(tasks)]
        return tuple(
            [
                estimate if factor == 1.0 else scale_estimate(estimate, factor)
                for factor, estimate in zip(found, estimates, strict=True)
            ]
        )


def infers_images(graph: Graph) -> bool:
    kinds = {op.kind for op in graph.ops}
    return graph.mode == "inference" and "conv" in kinds and "embedding" not in kinds


def scale_estimate(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(
        seconds=estimate.seconds * factor, low_s=estimate.low_s * factor, high_s=estimate.high_s * factor,
        host_s=estimate.host_s, limit=estimate.limit, ground=estimate.ground, slowdown=estimate.slowdown,
    )  # fmt: skip


def is_gpu(device: Device) -> bool:
    """Whether its multiprocessors have the lanes of a GPU. Processors have fewer, systolic machines have none."""
    return (device.lanes_per_sm or 0) >= CONSTANTS.least_lanes


@functools.cache
def load_class_factors() -> ClassFactors:
    return read_constants(ClassFactors, "operator_classes")
