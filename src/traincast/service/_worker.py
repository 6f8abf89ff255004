"""A worker process of the service: tasks in, answers out, one at a time; it can be killed at any moment.

Each message is a kind, a length, and bytes of JSON or of a file. Nothing is unpickled.
"""

import contextlib
import json
import logging
import math
import os
import queue
import resource
import secrets
import signal
import struct
import sys
import threading
import time
from typing import IO, Any

from traincast.errors import TraincastError
from traincast.service._faults import Malformed, NotFound, NotRecorded

HEADER = struct.Struct(">cQ")
TASK, ANSWER, ERROR, PROGRESS = b"T", b"A", b"E", b"P"
"""A task is two messages: what is asked, as JSON, and the bytes it is about, which may be none."""
NOT_ENOUGH_MEMORY = "not enough memory for this input; use a smaller one"
TOO_DEEP = "the input is nested too deeply"


def pack(kind: bytes, payload: bytes) -> bytes:
    return HEADER.pack(kind, len(payload)) + payload


def pack_json(kind: bytes, value: Any) -> bytes:
    # As ASCII: half a character, which no encoding holds, must not end a worker.
    return pack(kind, json.dumps(value, separators=(",", ":"), allow_nan=False).encode())


def _read(stream: IO[bytes]) -> bytes:
    _, length = HEADER.unpack(stream.read(HEADER.size))
    return stream.read(length)


def main(arguments: list[str]) -> int:
    # Signals to the whole group are for the service, which ends its workers itself; they end with it in any case.
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    # What a library prints must not end up between two messages.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for kind, most in ((resource.RLIMIT_DATA, int(arguments[0])), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))
    with contextlib.suppress(OSError, AttributeError):
        os.nice(int(arguments[1]))
        # The system never lets a worker that wakes up go before the process that answers everybody.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    tasks: queue.Queue[tuple[dict[str, Any], bytes]] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, tasks), daemon=True).start()
    while True:
        task, blob = tasks.get()
        _limit_cpu(task.get("cpu_s"))
        out.write(run_task(task, blob, out))
        out.flush()


def _limit_cpu(seconds: float | None) -> None:
    """Let the system end this process once the next task has used so much CPU time, in whatever code it is."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    until = resource.RLIM_INFINITY if seconds is None else math.ceil(time.process_time() + seconds)
    if most != resource.RLIM_INFINITY:
        until = most if until == resource.RLIM_INFINITY else min(until, most)
    resource.setrlimit(resource.RLIMIT_CPU, (until, most))


def _listen(stream: IO[bytes], tasks: "queue.Queue[tuple[dict[str, Any], bytes]]") -> None:
    """Read on while a task runs: when the service is gone, however it went, the worker goes too."""
    try:
        while True:
            tasks.put((json.loads(_read(stream)), _read(stream)))
    except (struct.error, ValueError):
        # A message that is cut short is the last one.
        os._exit(0)


def run_task(task: dict[str, Any], blob: bytes, out: IO[bytes]) -> bytes:
    """The answer or the refusal of one task as a frame; progress is written to `out` as it comes."""
    from traincast.service._answers import TASKS

    def report(done: int, total: int, words: str = "") -> None:
        out.write(pack_json(PROGRESS, {"done": done, "total": total, "words": words}))
        out.flush()

    try:
        return pack(ANSWER, TASKS[task["task"]](task, blob, report))
    except NotRecorded as need:
        return pack_json(
            ERROR, {"kind": "record", "error": "", "needs": {"model": need.model, "options": need.options}}
        )
    except TraincastError as error:
        kind = "syntax" if isinstance(error, Malformed) else "missing" if isinstance(error, NotFound) else "input"
        return pack_json(ERROR, {"kind": kind, "error": " ".join(str(error).split())})
    except (MemoryError, RecursionError) as error:
        words = NOT_ENOUGH_MEMORY if isinstance(error, MemoryError) else TOO_DEEP
        return pack_json(ERROR, {"kind": "input", "error": words})
    except Exception:
        # The operator reads what happened in the log; the caller gets a number to ask for it.
        number = secrets.token_hex(4)
        logging.getLogger("traincast.service").exception("internal error %s in task %s", number, task.get("task"))
        words = f"internal error; please report it with the lines of the service's log that name {number}"
        return pack_json(ERROR, {"kind": "fault", "error": words})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
