"""`bireme ...` and the Slurm-named commands: arguments in, text out. One module a command, each with `main(argv) -> int`."""
