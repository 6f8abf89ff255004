"""Decides when each task runs and how long each tensor lives."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily
from traincast.simulate._memory import UPDATE, Overheads, replay_memory, replay_stages
from traincast.simulate._step import simulate_step

__all__ = ["UPDATE", "Overheads", "replay_memory", "replay_stages", "simulate_step"]

if TYPE_CHECKING:
    from traincast.simulate._memory import Pass as Pass
    from traincast.simulate._memory import add_up as add_up
    from traincast.simulate._memory import keeps_gradients as keeps_gradients
    from traincast.simulate._memory import replay_forward as replay_forward
    from traincast.simulate._memory import replay_pass as replay_pass
    from traincast.simulate._memory import replay_tasks as replay_tasks
    from traincast.simulate._reserve import LEAN as LEAN
    from traincast.simulate._reserve import Surroundings as Surroundings
    from traincast.simulate._reserve import device_bytes as device_bytes
    from traincast.simulate._reserve import reserved_bytes as reserved_bytes
    from traincast.simulate._reserve import searches_algorithms as searches_algorithms
    from traincast.simulate._waiting import add_waiting as add_waiting
    from traincast.simulate._waiting import expect_largest as expect_largest

__getattr__ = load_lazily(
    __name__,
    {
        "_memory": (
            "Pass",
            "add_up",
            "keeps_gradients",
            "replay_forward",
            "replay_pass",
            "replay_tasks",
        ),
        "_reserve": (
            "LEAN",
            "Surroundings",
            "device_bytes",
            "reserved_bytes",
            "searches_algorithms",
        ),
        "_waiting": ("add_waiting", "expect_largest"),
    },
)
