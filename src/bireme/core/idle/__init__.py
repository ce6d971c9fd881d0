"""Idle GPUs as a kind: which job is idle by which rule, what its owner is told, and what is done about it."""
