"""The options of sbatch, srun and salloc: the tables, how a command line is read, and what it asks for.

Pure: text in, typed values out. The commands in `cli/` read files, clocks and the environment and pass them in.
The way through the package: `catalogue` (what exists) -> `getopt` (how it is written) -> `layers` (which one
wins) -> `values` (what it means) -> `job` and `step` (what is asked of the cluster).
"""
