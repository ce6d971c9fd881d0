"""Everybody else's pods: those with `schedulerName: bireme` join the queue, and are bound by it."""
