"""Gathers what nodes, GPUs and tasks do: a process of its own on every machine, that goes on without the daemon."""
