"""Checks of the machine that nodes are on: `bireme health`."""
