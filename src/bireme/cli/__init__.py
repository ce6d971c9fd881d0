"""`bireme ...` and the Slurm-named commands: arguments in, text out.

One module (or package) for each command, with `main(argv) -> int`; `main` finds it by name and imports no other.
"""
