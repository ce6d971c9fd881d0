"""The largest numbers that say a job's place in the queue: Slurm's own, above which they mean something else there."""

LARGEST_NICE = 2**31 - 3
LARGEST_PRIORITY = 2**32 - 3
