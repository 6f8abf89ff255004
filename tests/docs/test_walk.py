"""One forecast with a given plan stays a short walk: few calls, few changes of room, few modules."""

import json
import subprocess
import sys

MOST_CALLS, MOST_CHANGES, MOST_MODULES = 15_000, 60, 100
"""Of named functions; of calls from one room into another; of the package's own modules."""

WALK = """
import json, sys
from traincast import forecast
from traincast.spec import Question, WorkloadOptions

ASIDE = {"spec", "noun", "memo", "facade", "units", "errors", "files", "__init__"}
rooms, calls, changes = {}, 0, 0

def room_of(code):
    path = code.co_filename
    if path not in rooms:
        _, found, inside = path.rpartition("/traincast/")
        rooms[path] = inside.split("/")[0].removesuffix(".py") if found and "site-packages" not in path else ""
    return rooms[path]

def count(frame, event, _):
    global calls, changes
    code = frame.f_code
    room = room_of(code)
    if event != "call" or not room or code.co_name.startswith("<"):
        return
    calls += 1
    caller = frame.f_back
    while caller is not None and room_of(caller.f_code) in {"", *ASIDE}:
        caller = caller.f_back
    if caller is not None and caller.f_code.co_name == "<module>":
        return  # a constant that is read when its module is loaded
    changes += room not in ASIDE and caller is not None and room_of(caller.f_code) != room

question = Question(
    source="llama-3-8b",
    workload=WorkloadOptions(precision="bf16", batch=1, seq=8192),
    cluster={"device": "h100", "nodes": 1, "devices_per_node": 8},
    parallelism={"data": 8, "zero": 2, "micro_batches": 8, "recompute": "full"},
    job={"steps": 1000},
)
sys.setprofile(count)
answer = forecast(question)
sys.setprofile(None)
modules = [name for name in sys.modules if name.split(".")[0] == "traincast"]
print(json.dumps({"calls": calls, "changes": changes, "modules": len(modules), "spans": len(answer.timeline.spans)}))
"""


def test_one_forecast_with_a_given_plan_is_a_short_walk() -> None:
    """Nouns, the memo, facades and units aside: they belong to no step of the way."""
    ran = subprocess.run([sys.executable, "-c", WALK], capture_output=True, text=True, check=True)
    walk = json.loads(ran.stdout)
    assert walk["spans"] == 0, "nothing is drawn unless it is shown"
    assert walk["calls"] <= MOST_CALLS
    assert walk["changes"] <= MOST_CHANGES
    assert walk["modules"] <= MOST_MODULES
