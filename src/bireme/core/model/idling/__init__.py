"""Idle GPUs as values: the policy, what a job was told, and the events."""
