"""What can go wrong, told apart by what a caller or an operator would do about it."""

import math

from traincast.errors import InvalidInput, TraincastError

KINDS = {
    "full": "the disk that holds the state is full; free some space",
    "read-only": "the state cannot be written, it is read-only; make it writable",
    "locked": "another program holds the state; it is tried again",
    "corrupt": "the state's file is damaged; what could be read of it is saved beside it, start the service again",
    "replaced": "the state's file was removed or replaced; what it held is saved beside it, start the service again",
    "unreachable": "the state cannot be reached; it is tried again",
}
"""Each kind of storage fault and its sentence for a caller; the operator's log has the details."""
RETRY_AFTER_S = 5


class StorageFault(TraincastError):
    """The state cannot be read or written now; the same request may succeed later."""

    def __init__(self, kind: str, details: str = "") -> None:
        super().__init__(KINDS[kind])
        self.kind = kind
        self.details = details


class Unstorable(TraincastError):
    """Data that no store holds: a fault of what was asked, not of the storage."""


class Malformed(InvalidInput):
    """A body that is no JSON."""


class NotFound(TraincastError):
    """Something that this service does not hold."""


class Busy(TraincastError):
    """More is waiting, or in memory, than may be."""

    status = 429

    def __init__(self, words: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(words)
        self.retry_after_s = max(1, math.ceil(retry_after_s))


class WorkerDied(InvalidInput):
    """A worker process ended by itself: out of memory, or a crash in native code."""


class Interrupted(TraincastError):
    """A worker process was ended by a signal from outside, which says nothing about its task."""


class InternalError(Exception):
    """A fault of ours inside a worker."""


class NotRecorded(Exception):
    """A model whose step must be recorded before it can be forecast."""

    def __init__(self, *, model: str, options: str) -> None:
        super().__init__(model)
        self.model, self.options = model, options
