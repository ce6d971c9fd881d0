"""Fault worlds: one seed draws a cluster, its users and everything that goes wrong; the real kernel must bear it.

`draw` makes the story of a world, `play` plays it on the real kernel, planner, store and crew engine, `witness` holds
the truth and the rules of safety, `soak` plays one world after the other. docs/simulator.md says how to use them.
"""
