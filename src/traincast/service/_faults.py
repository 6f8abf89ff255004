"""What can go wrong with a store, told apart by what a person would do about it."""

from traincast.errors import TraincastError

KINDS = {
    "full": "the disk that holds the state is full; free some space",
    "read-only": "the state cannot be written, it is read-only; make it writable",
    "locked": "another program holds the state; it is tried again",
    "corrupt": "the state is damaged; what can be read of it is saved",
    "vanished": "the state's file is gone; it is written again",
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
