"""The benchmarks behind `make bench`: how fast Bireme is, next to what this machine and Slurm can do.

Not part of the installed package and not a test: nothing here asserts a time. Every ratio comes from one run on one
machine. `python -m bench --help` says how to run a part of it; docs/benchmarks.md says what each row means.
"""
