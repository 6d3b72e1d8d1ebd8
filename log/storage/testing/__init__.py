"""A disk for tests: loses and tears what was not fsynced, fails on demand."""

from .disk import PowerCut, SimulatedDisk

__all__ = ["PowerCut", "SimulatedDisk"]
