"""What Slurm's commands say: their words and variables in, text and an exit code out, over a port of questions.

One module (or package) for each command, with `main(argv) -> int`. Where a command runs it does not know: in the
daemon, which is warm, for who asked (`api/routes/commands.py`), or in the process that was started (`cli/near.py`).
What it needs of either (variables, who asks, where text goes, who answers questions) is `surroundings.around()`.

Invariant: nothing here looks at the process that it runs in (its variables, its user, its files, its streams) but
after `only_near()`.
"""
