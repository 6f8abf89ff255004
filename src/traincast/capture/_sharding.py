"""Sharding annotations of a JAX program (jit, shard_map, constraints) to the plan that they mean."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from traincast.spec import Parallelism


@dataclass(slots=True)
class Annotations:
    """Axes of the mesh with their sizes, and what each of them splits."""

    sizes: dict[str, int] = field(default_factory=dict)
    batch: set[str] = field(default_factory=set)
    """Axes that split the first dim of data."""
    weights: set[str] = field(default_factory=set)
    activations: set[str] = field(default_factory=set)
    """Axes that split another dim of data or of an intermediate result."""
    is_manual: bool = False
    """Part of the program is written for one device (shard_map)."""

    def note(self, mesh: Any, spec: Any, *, is_weight: bool | None) -> None:
        """One array: its axes per dim; None for an intermediate result."""
        axes = [_axes(entry) for entry in tuple(spec or ())]
        if not any(axes):
            return
        self.sizes.update({str(name): int(size) for name, size in dict(mesh.shape).items()})
        if is_weight:
            self.weights.update(name for names in axes for name in names)
        else:
            self.batch.update(axes[0])
            self.activations.update(name for names in axes[1:] for name in names)

    def plan(self) -> Parallelism:
        """An axis that splits the batch is a data axis, and shards weights (ZeRO 3) if it splits them too; one that splits
        weights alone is a tensor axis; one that splits neither, but later dims of data, is a context axis."""
        data = [name for name in self.sizes if name in self.batch]
        tensor = [name for name in self.sizes if name in self.weights and name not in self.batch]
        context = [name for name in self.sizes if name in self.activations and name not in (*data, *tensor)]
        shards = [name for name in data if name in self.weights]
        degree = self._product(shards)
        return Parallelism(
            data=self._product(data), tensor=self._product(tensor), context=self._product(context),
            zero=3 if shards else 0, shard=degree if shards and degree != self._product(data) else None,
        )  # fmt: skip

    def _product(self, names: Sequence[str]) -> int:
        total = 1
        for name in names:
            total *= self.sizes[name]
        return total

    def sentence(self) -> str:
        """What a user types to ask for the same plan."""
        plan = self.plan()
        options = [("--dp", plan.data), ("--tp", plan.tensor), ("--cp", plan.context)]
        words = [f"{option} {degree}" for option, degree in options if degree > 1]
        words += [f"--zero {plan.zero}"] if plan.zero else []
        return f"the program spreads itself over {self.sizes}: its plan is {' '.join(words) or 'one device'}"

    def by_hand(self) -> str:
        plan = self.plan()
        return (
            f"shard_map splits the work over {plan.tensor * plan.context} devices by hand: its operations are one device's and "
            "what these devices exchange is not counted, so its plan is not taken; record it on a mesh whose other axes than the "
            "batch's have size 1, and say --tp and --cp"
        )


def find_annotations(jaxpr: Any, is_weight: Mapping[int, bool]) -> Annotations:
    """`is_weight` tells of the program's inputs, by their place, which are weights or moments."""
    found = Annotations()
    _walk(jaxpr, {id(variable): is_weight.get(place, False) for place, variable in enumerate(jaxpr.invars)}, found)
    return found


def _walk(jaxpr: Any, known: dict[int, bool], found: Annotations) -> None:
    for equation in jaxpr.eqns:
        parameters = equation.params
        if equation.primitive.name == "shard_map":
            found.is_manual = True
            specs = parameters.get("in_specs") or ()
            for variable, spec in zip(equation.invars, specs, strict=False):
                if id(variable) in known:
                    found.note(parameters["mesh"], spec, is_weight=known[id(variable)])
        for variable, sharding in zip(equation.invars, parameters.get("in_shardings") or (), strict=False):
            if hasattr(sharding, "spec"):
                found.note(sharding.mesh, sharding.spec, is_weight=known.get(id(variable)))
        sharding = parameters.get("sharding")
        if equation.primitive.name == "sharding_constraint" and hasattr(sharding, "spec"):
            found.note(sharding.mesh, sharding.spec, is_weight=None)
        for inner in _inner(parameters):
            inherited = {
                id(variable): known[id(outer)]
                for outer, variable in zip(equation.invars, inner.invars, strict=False)
                if id(outer) in known
            }
            _walk(inner, inherited, found)


def _inner(parameters: Mapping[str, Any]) -> Iterator[Any]:
    for item in parameters.values():
        for part in item if isinstance(item, (tuple, list)) else (item,):
            jaxpr = getattr(part, "jaxpr", part)
            if hasattr(jaxpr, "eqns"):
                yield jaxpr


def _axes(entry: Any) -> tuple[str, ...]:
    if entry is None or not isinstance(entry, (str, tuple, list)):
        return ()
    return (entry,) if isinstance(entry, str) else tuple(str(name) for name in entry)
