"""Decides when each task runs and how long each tensor lives."""

from traincast.simulate.memory import Overheads, replay_memory
from traincast.simulate.step import simulate_step

__all__ = ["Overheads", "replay_memory", "simulate_step"]
