"""A training loop that people already have, under watch: forecast before step 0, live comparison, measurements kept."""

from traincast.integrate.watch import CAUSES, Comparison, Finding, RunWatch, StepTime

__all__ = ["CAUSES", "Comparison", "Finding", "RunWatch", "StepTime"]
