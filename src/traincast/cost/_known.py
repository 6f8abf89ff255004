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


def _price_operators(stack: Stack) -> CostModel:
    return Pricing(stack=stack, interaction=None)


def _price_by_neighbours(stack: Stack) -> CostModel:
    from traincast.cost._interaction.pricing import GraphPricing, load_graph_network

    return GraphPricing(stack=stack, interaction=None, network=load_graph_network())


COST_MODELS: Registry[Callable[[Stack], CostModel]] = Registry(
    kind="cost model",
    plural="cost models",
    entries={"roofline": _price_by_roofline, "operators": _price_operators, "graph-network": _price_by_neighbours},
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
