"""Turns a timeline, or the samples of a real run, into utilisation, traffic, bursts and idle times."""

from traincast.resources.profile import IDLE_POWER, profile_resources, profile_samples

__all__ = ["IDLE_POWER", "profile_resources", "profile_samples"]
