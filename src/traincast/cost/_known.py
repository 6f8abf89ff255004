"""Cost models by name: those that ship with the package, and those that other packages add."""

from collections.abc import Callable

from traincast.cost import CostModel
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.errors import InvalidInput
from traincast.registry import Registry
from traincast.spec import Stack


def _price_by_roofline(stack: Stack) -> CostModel:
    return Pricing(ops=Roofline(), stack=stack, interaction=None)


COST_MODELS: Registry[Callable[[Stack], CostModel]] = Registry(
    kind="cost model", entries={"roofline": _price_by_roofline}, plural="cost models"
)
"""An entry makes the cost model for the software that runs a job. Entry points stand in the group `traincast.cost_models`."""


def name_costs(name: str, stack: Stack) -> CostModel:
    """The cost model of a name, for the software that runs a job."""
    made = COST_MODELS.find(name)(stack)
    if not callable(getattr(made, "estimate", None)):
        raise InvalidInput(
            f"the cost model {name!r} gave a {type(made).__name__}, which has no method estimate(stage, cluster)"
        )
    return made
