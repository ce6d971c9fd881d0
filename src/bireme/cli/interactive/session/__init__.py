"""What srun and sattach do while tasks run: output, input, signals, the tally of tasks, the terminal.

`session` is the loop; the others are what it is made of. Nothing here reads options or creates steps.
"""
