"""The Slurm engine: Bireme attached to a Slurm cluster that exists. Slurm places; Bireme submits, mirrors, explains."""
