import json

from traincast.report._trace import trace_forecast
from traincast.spec import Forecast


def test_a_trace_is_plain_json_with_complete_events_and_names(forecast: Forecast) -> None:
    trace = json.loads(json.dumps(trace_forecast(forecast), allow_nan=False))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    metadata = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    assert len(events) == len(forecast.timeline.spans)
    assert len(events) + len(metadata) == len(trace["traceEvents"])
    assert all({"name", "ts", "dur", "pid", "tid"} <= set(event) for event in events)
    assert {event["args"]["name"] for event in metadata if event["name"] == "thread_name"} == {
        "compute",
        "communication",
    }


def test_times_are_microseconds_and_every_thread_is_named(forecast: Forecast) -> None:
    trace = trace_forecast(forecast)
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in events) == forecast.timeline.duration_s * 1e6
    named = {(event["pid"], event["tid"]) for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in events} <= named


def test_the_trace_carries_the_answer(forecast: Forecast) -> None:
    assert trace_forecast(forecast)["otherData"]["step_s"] == forecast.step.seconds
