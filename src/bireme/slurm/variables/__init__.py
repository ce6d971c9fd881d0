"""The environment Slurm gives to what it starts: batch scripts, tasks of steps, salloc's command, prologs and epilogs.

Pure functions over the model. Compared with Slurm 22.05 and 26.05 variable by variable. What either of them sets is
set: those that newer releases added (SLURM_JOB_START_TIME, SLURM_TRES_PER_TASK, ...), and those that they dropped
(SLURM_NODE_ALIASES, the PACK names of heterogeneous jobs).
"""
