"""Workloads: what was submitted when, by whom and how long it ran; from traces, a history or a generator."""
