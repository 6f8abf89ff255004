"""A command that is killed at a chosen moment, whatever the machine is doing."""

import signal
import subprocess
import sys

CHILD = """
import importlib, os, signal, sys
holder, name, moment, left = importlib.import_module(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
*owners, name = name.split(".")
for owner in owners:
    holder = getattr(holder, owner)
call = getattr(holder, name)
def counted(*given, **options):
    global left
    left -= 1
    if moment == "before" and left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    answer = call(*given, **options)
    if moment == "after" and left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer
setattr(holder, name, counted)
from traincast.__main__ import main
sys.exit(main(sys.argv[5:]))
"""


def run_until(moment: str, call: str, arguments: list[str], *, number: int = 1) -> None:
    """Run a command that SIGKILL ends before or after its n-th call of `module:name`."""
    command = [sys.executable, "-c", CHILD, *call.split(":"), moment, str(number), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, f"the call never came: {ended.stderr[-500:]}"
