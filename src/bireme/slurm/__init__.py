"""Slurm's language, pure: the strings people write to Slurm and the strings Slurm prints back."""
