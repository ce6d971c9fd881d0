"""What is measured of nodes, GPUs and tasks, pure: metrics, their curves, whose GPU it was, what was made of it."""
