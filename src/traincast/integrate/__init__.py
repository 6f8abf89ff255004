"""A training loop that people already have, under watch: forecast before step 0, live comparison, measurements kept."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily
from traincast.integrate._watch import RunWatch, StepTime

__all__ = ["RunWatch", "StepTime"]

if TYPE_CHECKING:
    from traincast.integrate._here import cluster_of_cores

__getattr__ = load_lazily(__name__)
