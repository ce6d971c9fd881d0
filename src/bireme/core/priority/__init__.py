"""Who goes first: fair share, and the factors of a job's priority."""
