"""The main program: runs a command and turns what a user can mend into one line and exit code 2."""

import gc
import io
import os
import sys
from collections.abc import Sequence

from traincast.errors import TraincastError

INTERRUPTED = 130
"""The exit code of a shell for a program that was stopped by Ctrl-C."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is 0 for an answer, 2 for bad input, 130 when interrupted."""
    if argv is None:
        # A process of its own, whose nouns live to its end: looking for cycles at Python's pace takes a tenth of an answer.
        gc.set_threshold(200_000, 20, 50)
    from traincast.cli import run

    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character must show a question mark, not stop the answer.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = run(arguments)
        sys.stdout.flush()
        # typer turns Ctrl-C into this code and says nothing.
        return _say("interrupted", code=INTERRUPTED) if code == INTERRUPTED else code
    except KeyboardInterrupt:
        return _say("interrupted", code=INTERRUPTED)
    except BrokenPipeError:
        # The reader went away (`| head`): point stdout at nothing, so that the interpreter's last flush stays quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except TraincastError as error:
        return _say(str(error))
    except MemoryError:
        return _say("not enough memory for this input; use a smaller one")
    except RecursionError:
        return _say("the input is nested too deeply")
    except OSError as error:
        return _say(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except Exception as error:
        # typer keeps the classes of its usage errors private; all of them can format themselves.
        describe = getattr(error, "format_message", None)
        if describe is not None:
            return _say(f"{describe()} (try: {_program(arguments)} --help)")
        if os.environ.get("TRAINCAST_DEBUG"):
            raise
        return _say(
            f"internal error, please report it: {type(error).__name__}: {error} (TRAINCAST_DEBUG=1 shows where)", code=1
        )


def _program(arguments: list[str]) -> str:
    from traincast.cli import COMMANDS

    return " ".join(["traincast", *(word for word in arguments[:1] if word in COMMANDS)])


def _say(message: str, *, code: int = 2) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"traincast: {' '.join(message.split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
