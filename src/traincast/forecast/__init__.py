"""The map of the product: a job, a cluster and a plan become a forecast."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.forecast._ask import Origin, answer, forecast, plain_engine
    from traincast.forecast._corrections import shares_of
    from traincast.forecast._engine import Engine, Shown
    from traincast.forecast._jobs import build_job, load_graph, load_source, pose, pose_job, pose_with
    from traincast.forecast._memory import DeviceMemory, outside_bytes, trace_memory, watch_device
    from traincast.forecast._methods import adapt_twelve
    from traincast.forecast._parts import explain_parts

__all__ = ["Engine", "forecast", "outside_bytes"]

__getattr__ = load_lazily(__name__)
