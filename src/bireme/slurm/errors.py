"""The one error that a string in Slurm's language can cause.

Every parser in this package raises `SlurmSyntaxError` and nothing else for text it does not understand, so a
command catches one type, prints the message and exits as Slurm would. The message starts with Slurm's own
words where Slurm has some, then says what is accepted.
"""


class SlurmSyntaxError(ValueError):
    """Text that is not in Slurm's language; the message says what was wrong and what is accepted."""
