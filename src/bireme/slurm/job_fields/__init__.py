"""The table of a job's fields: one row for each field of `JobSpec` and `ResourceRequest`, in Slurm's words.

`row` says what a row is, the modules beside it hold the rows by the sections of `sbatch --help`, and `table` has them
all. Who reads it: the options and the specification made of them (`slurm/options`), records, the columns of squeue and
sacct, `scontrol show job` and `--json` (`slurm/records`, `formats`, `json_shapes`), `scontrol update`
(`slurm/changes`, `commands/scontrol/update`), and the Slurm engine's submissions, orders and mirror.
"""
