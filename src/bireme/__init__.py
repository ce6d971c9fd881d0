"""Bireme: one crew for a team's GPUs.

`import bireme` stays light on purpose: the command line starts hundreds of times a minute inside jobs.
"""

__version__ = "0.1.0"
