"""Detectors: pure functions that say of events and figures what is wrong with a GPU, a node or a job."""
