"""What a command line or a batch script can do wrong, worded and numbered as Slurm does.

One type, `OptionError`, carries the text a user sees and the exit code of the command. `text_for` renders it with
the command's name in front, as `sbatch: error: Invalid --mem specification`. Nothing here decides what is wrong.
"""

from __future__ import annotations

from enum import StrEnum

from bireme.slurm.errors import SlurmSyntaxError

EXIT_BAD_OPTION = 255
"""Slurm leaves with -1 when an option is unknown or its value is refused."""
EXIT_FAILURE = 1


class Severity(StrEnum):
    """How Slurm introduces a message."""

    ERROR = "error"
    FATAL = "fatal"
    USAGE = "usage"
    """getopt's own words, followed by the pointer to --help."""
    ANSWER = "answer"
    """Not an error: the option asked for a text (`--hint=help`), which goes to standard output."""


class OptionError(SlurmSyntaxError):
    """A refused option, script or combination. `exit_code` is the command's exit code."""

    def __init__(
        self,
        *messages: str,
        severity: Severity = Severity.ERROR,
        exit_code: int = EXIT_BAD_OPTION,
        preface: tuple[str, ...] = (),
        exit_code_settable: bool = False,
    ) -> None:
        super().__init__("\n".join(messages))
        self.messages = messages
        self.severity = severity
        self.exit_code = exit_code
        self.preface = preface
        """Lines printed before, without the command's name."""
        self.exit_code_settable = exit_code_settable
        """True where SLURM_EXIT_ERROR replaces the exit code."""

    def text_for(self, command: str) -> str:
        """The lines to print, without a final line break."""
        if self.severity is Severity.ANSWER:
            return "\n".join(self.messages)
        if self.severity is Severity.USAGE:
            lines = [f"{command}: {message}" for message in self.messages]
            return "\n".join([*self.preface, *lines, f'Try "{command} --help" for more information'])
        return "\n".join([*self.preface, *(f"{command}: {self.severity}: {message}" for message in self.messages)])


def invalid(name: str) -> OptionError:
    """Slurm's words for most refused values."""
    return OptionError(f"Invalid --{name} specification")


def invalid_number(text: str, name: str) -> OptionError:
    """Slurm's words, and its other exit code, for a value that should have been a number."""
    return OptionError(f'Invalid numeric value "{text}" for {name}.', exit_code=EXIT_FAILURE)


def fatal(message: str) -> OptionError:
    return OptionError(message, severity=Severity.FATAL, exit_code=EXIT_FAILURE)


def refused(*messages: str) -> OptionError:
    """Refused after parsing: the script itself, or what only the whole request shows."""
    return OptionError(*messages, exit_code=EXIT_FAILURE, exit_code_settable=True)
