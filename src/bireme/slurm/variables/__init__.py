"""The environment Slurm gives to what it starts: batch scripts, tasks of steps, salloc's command, prologs and epilogs.

Pure functions over the model. Compared with Slurm 22.05 variable by variable; a few that newer versions set are added
(SLURM_JOB_START_TIME, SLURM_JOB_END_TIME), and the old PACK names of heterogeneous jobs are left out.
"""
