"""Decides when each task runs and how long each tensor lives."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily
from traincast.simulate._memory import UPDATE, Overheads, replay_memory, replay_stages
from traincast.simulate._step import list_busy, simulate_step

__all__ = ["UPDATE", "Overheads", "list_busy", "replay_memory", "replay_stages", "simulate_step"]

if TYPE_CHECKING:
    from traincast.simulate._memory import Pass, keeps_gradients, replay_forward, replay_tasks
    from traincast.simulate._reserve import Surroundings, device_bytes, reserved_bytes, searches_algorithms
    from traincast.simulate._step import add_waiting

__getattr__ = load_lazily(__name__)
