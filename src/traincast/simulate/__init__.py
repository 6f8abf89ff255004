"""Decides when each task runs and how long each tensor lives."""

from traincast.simulate.memory import Overheads, replay_memory, replay_stages
from traincast.simulate.step import simulate_step

__all__ = ["Overheads", "replay_memory", "replay_stages", "simulate_step"]
