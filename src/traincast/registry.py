"""Names to plug-ins: one dictionary per family, open to other packages through entry points."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Generic, TypeVar

from traincast.errors import InvalidInput, UnknownName
from traincast.noun import noun

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

T = TypeVar("T")

GROUPS = {
    "stack": "traincast.stacks",
    "cost model": "traincast.cost_models",
    "policy": "traincast.policies",
    "emitter": "traincast.emitters",
    "operator rule": "traincast.rules",
    "config format": "traincast.configs",
}
"""Every family of plug-ins with the entry-point group that another package names to add to it."""


@noun
class Registry(Generic[T], Mapping[str, T]):
    """The plug-ins of one family by name. The package's own come first; those of other packages are loaded when they are
    looked up, and may not take a name that is there already."""

    kind: str
    """What one entry is, in the singular, as error messages say it."""
    entries: Mapping[str, T]
    """Those that ship with the package."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spellings to names."""
    plural: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in GROUPS:
            raise UnknownName("kind of plug-in", self.kind, GROUPS, plural="kinds of plug-ins")

    def find(self, name: str) -> T:
        """The entry of this name or alias; an unknown name says what is known and what is near."""
        spelling = self.aliases.get(name, name)
        if spelling in self.entries:
            return self.entries[spelling]
        for point in _entry_points(self.kind).select(name=spelling):
            return self._load(point.name, point.value, point.load)
        raise UnknownName(self.kind, name, self, plural=self.plural, also=self.aliases)

    def _load(self, name: str, target: str, load: object) -> T:
        try:
            loaded: T = load()  # type: ignore[operator]
        except Exception as error:
            # The plug-in is somebody else's code: whatever it raises, the user learns which package to mend.
            raise InvalidInput(f"the {self.kind} {name!r} of {target!r} cannot be loaded: {error}") from error
        return loaded

    def __getitem__(self, name: str) -> T:
        try:
            return self.find(name)
        except UnknownName as error:
            raise KeyError(name) from error

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (self.aliases.get(name, name) in set(self))

    def __iter__(self) -> Iterator[str]:
        yield from self.entries
        for point in _entry_points(self.kind):
            if point.name not in self.entries:
                yield point.name

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _entry_points(kind: str) -> "EntryPoints":
    # Loaded when a name is not one of our own: reading what is installed takes longer than a forecast.
    from importlib.metadata import entry_points

    return entry_points(group=GROUPS[kind])
