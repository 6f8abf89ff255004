"""Decides when each task runs and how long each tensor lives."""

from traincast.simulate.memory import replay_memory
from traincast.simulate.step import simulate_step

__all__ = ["replay_memory", "simulate_step"]
