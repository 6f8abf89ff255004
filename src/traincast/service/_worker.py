"""A worker process of the service: tasks in, answers out, one at a time; it can be killed at any moment."""

import contextlib
import json
import logging
import math
import os
import queue
import resource
import secrets
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any, Protocol

from traincast.errors import TraincastError
from traincast.service._faults import StorageFault
from traincast.service._frames import ANSWER, BLOB, ERROR, PROGRESS, TASK, pack, pack_json, read_frame

NOT_ENOUGH_MEMORY = "not enough memory for this input; use a smaller one"
TOO_DEEP = "the input is nested too deeply"


class Hears(Protocol):
    """Takes frames of progress."""

    def write(self, frame: bytes, /) -> object: ...


def main(arguments: list[str]) -> int:
    memory_bytes = int(arguments[0])
    # What a library prints must not end up between two messages.
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        os.nice(int(arguments[1]))
    tasks: queue.Queue[tuple[dict[str, Any], bytes]] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, tasks), daemon=True).start()
    while True:
        task, blob = tasks.get()
        limit_cpu(task.get("cpu_s"))
        out.write(run_task(task, blob, out))


def limit_cpu(seconds: float | None) -> None:
    """Let the system end this process once the next task has used so much CPU time, in whatever code it is."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    until = resource.RLIM_INFINITY if seconds is None else math.ceil(time.process_time() + seconds)
    if most != resource.RLIM_INFINITY:
        until = most if until == resource.RLIM_INFINITY else min(until, most)
    resource.setrlimit(resource.RLIMIT_CPU, (until, most))


def _listen(stream: IO[bytes], tasks: "queue.Queue[tuple[dict[str, Any], bytes]]") -> None:
    """Read on while a task runs: when the service is gone, however it went, the worker goes too."""
    while (frame := read_frame(stream)) is not None:
        kind, payload = frame
        if kind != TASK:
            break
        task = json.loads(payload)
        blob = b""
        if task.get("has_blob"):
            second = read_frame(stream)
            if second is None or second[0] != BLOB:
                break
            blob = second[1]
        tasks.put((task, blob))
    os._exit(0)


def _find(name: str) -> Callable[..., bytes]:
    """The function of a task, with no more imported than it needs."""
    if name == "open":
        from traincast.service._opening import open_body

        return open_body
    from traincast.service._answers import TASKS

    return TASKS[name]


def run_task(task: dict[str, Any], blob: bytes, out: Hears) -> bytes:
    """The answer or the refusal of one task as a frame; progress is written to `out` as it comes."""

    def report(done: int, total: int, words: str = "") -> None:
        out.write(pack_json(PROGRESS, {"done": done, "total": total, "words": words}))

    try:
        if task.get("is_stored"):
            task, blob = {"options": "", **task, **json.loads(blob)}, b""
        return pack(ANSWER, _find(task["task"])(task, blob, report))
    except StorageFault as fault:
        return pack_json(ERROR, {"error": fault.details, "kind": "storage", "storage": fault.kind})
    except TraincastError as error:
        return pack_json(ERROR, {"error": " ".join(str(error).split()), "kind": "input"})
    except MemoryError:
        return pack_json(ERROR, {"error": NOT_ENOUGH_MEMORY, "kind": "input"})
    except RecursionError:
        return pack_json(ERROR, {"error": TOO_DEEP, "kind": "input"})
    except Exception:
        # The operator reads what happened in the log; the caller gets a number to ask for it.
        number = secrets.token_hex(4)
        logging.getLogger("traincast.service").exception("internal error %s in task %s", number, task.get("task"))
        words = f"internal error; please report it with the lines of the service's log that name {number}"
        return pack_json(ERROR, {"error": words, "kind": "fault"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
