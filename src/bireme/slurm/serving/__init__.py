"""The language of services, pure: what `#BIREME` lines and the flags of `bireme serve` say, around sbatch's options.

A script with `#BIREME` lines is a batch script still: to Slurm, and to `sbatch`, these lines are comments.
"""
