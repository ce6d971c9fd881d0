"""Findings as values: what is wrong with a part of the pool or with a job, and the events."""
