"""Slurm's format languages and the text of records: `-o "%.18i"`, `-O jobid:.10`, `--format=JobID%20`, `scontrol show`.

Pure: records (the dicts of the API) in, text out. The clock and the time zone come in with a `Context`.
"""
