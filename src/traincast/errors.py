"""The one tree of errors: what came, what is allowed, how to fix it."""

import difflib
from collections.abc import Iterable


class TraincastError(Exception):
    """Anything a user can mend; the command line prints it as one line and exits with 2."""

    def __reduce__(self) -> tuple[object, ...]:
        # Errors of worker processes travel as their message: the constructors of some kinds take other arguments.
        return _revive, (type(self), self.args)


class InvalidInput(TraincastError):
    """A value, file or table that breaks its rules."""


class UnknownName(InvalidInput):
    """A name that no catalogue or registry holds."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, plural: str | None = None, also: Iterable[str] = ()
    ) -> None:
        """`also` holds other spellings that a hint may name though they are not listed."""
        names = sorted(known)
        listed = ", ".join(names[:8]) + (f", ... ({len(names)} in all)" if len(names) > 8 else "")
        hint = did_you_mean(name, [*names, *also])
        super().__init__(f"unknown {kind} {name!r}; known {plural or kind + 's'}: {listed or 'none'}{hint}")


class CaptureFailed(TraincastError):
    """A model whose training step could not be recorded."""


class IllegalPlan(InvalidInput):
    """A parallelism that the job or the cluster cannot run."""


class MissingExtra(TraincastError):
    """An optional package that this request needs is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}; install it with: pip install 'traincast[{extra}]'")


def _revive(kind: type[TraincastError], args: tuple[object, ...]) -> TraincastError:
    return kind.__new__(kind, *args)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint such as " (did you mean 'b200'?)", empty when nothing is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
