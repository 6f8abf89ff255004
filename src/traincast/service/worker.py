"""A worker process of the service: tasks in, answers out, one at a time; it can be killed at any moment."""

import contextlib
import os
import queue
import resource
import sys
import threading
from typing import IO, Any

from traincast.errors import TraincastError
from traincast.service.frames import ANSWER, BLOB, ERROR, PROGRESS, TASK, pack, pack_json, read_frame

NOT_ENOUGH_MEMORY = "not enough memory for this input; use a smaller one"
TOO_DEEP = "the input is nested too deeply"


def main(arguments: list[str]) -> int:
    memory_bytes = int(arguments[0])
    # What a library prints must not end up between two messages.
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    tasks: queue.Queue[tuple[dict[str, Any], bytes]] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, tasks), daemon=True).start()
    while True:
        task, blob = tasks.get()
        out.write(_run(task, blob, out))


def _listen(stream: IO[bytes], tasks: "queue.Queue[tuple[dict[str, Any], bytes]]") -> None:
    """Read on while a task runs: when the service is gone, however it went, the worker goes too."""
    import json

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


def _run(task: dict[str, Any], blob: bytes, out: IO[bytes]) -> bytes:
    from traincast.service.answers import TASKS

    def report(done: int, total: int, words: str = "") -> None:
        out.write(pack_json(PROGRESS, {"done": done, "total": total, "words": words}))

    try:
        return pack(ANSWER, TASKS[task["task"]](task, blob, report))
    except TraincastError as error:
        return pack_json(ERROR, {"error": " ".join(str(error).split()), "bad_input": True})
    except MemoryError:
        return pack_json(ERROR, {"error": NOT_ENOUGH_MEMORY, "bad_input": True})
    except RecursionError:
        return pack_json(ERROR, {"error": TOO_DEEP, "bad_input": True})
    except Exception as error:
        import traceback

        traceback.print_exc(file=sys.stderr)
        words = f"internal error, please report it: {type(error).__name__}: {error}"
        return pack_json(ERROR, {"error": " ".join(words.split()), "bad_input": False})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
