"""What the state needs of a database: statements in transactions, and faults told apart."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Statements(Protocol):
    """Runs statements inside one transaction; marks are written as `?`."""

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    def write(self, statement: str, values: Sequence[Any] = ()) -> int:
        """How many rows it changed."""
        ...


class Database(Protocol):
    """One connection, used by one thread at a time. Every method may raise StorageFault, and none any other fault of storage."""

    name: str
    lock_rows: str
    """What a SELECT adds to hold the rows that it found until the transaction ends."""
    is_shared: bool
    """Whether other processes may take jobs from it, so that a job needs a lease."""
    num_rescued: int
    """Rows that were saved from a damaged or replaced file since the start."""

    def transaction(self, *, changes: bool = True) -> AbstractContextManager[Statements]:
        """Everything inside is kept, or nothing is. What changes nothing also works where nothing can be written."""
        ...

    def clock_s(self, statements: Statements) -> float:
        """The time that all users of this database agree on."""
        ...

    def check(self) -> None:
        """Write and read; raise a StorageFault where that is not possible."""
        ...

    def close(self) -> None: ...
