"""How the commands that act speak and fail: `srun: error: ...`, exit codes, quiet ends.

The commands that only look have `reports`. Every `main` of a command that acts runs inside `run_command`, which is
the one place where a refusal, a missing daemon, a closed pipe or Ctrl-C becomes lines and an exit code.
Invariant: nothing a user can cause ends in a traceback.
"""

from __future__ import annotations

from collections.abc import Callable

from bireme.commands.optline import OptionLineError
from bireme.commands.refused import ApiError, BiremeUnavailable
from bireme.commands.surroundings import around
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.options.errors import EXIT_BAD_OPTION, OptionError, Severity

EXIT_INTERRUPTED = 130


class CommandFailure(Exception):  # noqa: N818  (it is how a command ends, not a fault in it)
    """The command ends with `code` after saying `messages`, each as `NAME: error: MESSAGE` unless `bare`."""

    def __init__(self, *messages: str, code: int = 1, bare: bool = False, hint: str = "") -> None:
        super().__init__("\n".join(messages))
        self.messages = messages
        self.code = code
        self.bare = bare
        self.hint = hint


class Voice:
    """A command's remarks on standard error. `quiet` keeps only errors; `verbose` counts -v."""

    def __init__(self, command: str, *, quiet: bool = False, verbose: int = 0) -> None:
        self.command = command
        self.quiet = quiet
        self.verbose = verbose
        self.line_end = "\n"
        """CR LF while the terminal is raw (`srun --pty`)."""

    def say(self, text: str) -> None:
        if not self.quiet:
            self._write(f"{self.command}: {text}")

    def detail(self, text: str) -> None:
        """Says something that is for -v only."""
        if self.verbose > 0:
            self._write(f"{self.command}: {text}")

    def error(self, text: str) -> None:
        self._write(f"{self.command}: error: {text}")

    def raw(self, text: str) -> None:
        self._write(text)

    def _write(self, line: str) -> None:
        around().remark(line, self.line_end)


def run_command(name: str, body: Callable[[], int], *, getopt_exit: int = EXIT_BAD_OPTION) -> int:
    """Runs a command's body; whatever it raises becomes Slurm's words and exit code."""
    voice = Voice(name)
    around().command = name
    try:
        code = body()
        around().flush()
        return code
    except OptionError as error:
        return _tell_option_error(name, error)
    except OptionLineError as error:
        voice.raw(f"{name}: {error}")
        voice.raw(f'Try "{name} --help" for more information')
        return getopt_exit
    except CommandFailure as failure:
        for message in failure.messages:
            (voice.raw if failure.bare else voice.error)(message)
        if failure.hint:
            voice.raw(f"{name}: {failure.hint}")
        return error_exit_code(failure.code)
    except SlurmSyntaxError as error:
        for line in str(error).splitlines():
            voice.error(line)
        return error_exit_code(1)
    except (ApiError, BiremeUnavailable) as error:
        return _tell_failure(voice, refused_by_daemon("", error))
    except BrokenPipeError:
        around().abandon_output()
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def refused_by_daemon(what: str, error: Exception) -> CommandFailure:
    """`what` is how the command begins its sentence ("Batch job submission failed"); empty: only the cause."""
    message = getattr(error, "message", str(error))
    sentence = f"{what}: {message}" if what else message
    remark = getattr(error, "remark", "")
    return CommandFailure(*([remark] if remark else []), sentence, hint=getattr(error, "hint", ""))


def error_exit_code(code: int) -> int:
    """SLURM_EXIT_ERROR replaces the exit code of a failed command, so that scripts can tell it from a program's."""
    text = around().environment.get("SLURM_EXIT_ERROR", "")
    return int(text) & 0xFF if code == 1 and text.isascii() and text.isdigit() and len(text) < 10 else code


def _tell_failure(voice: Voice, failure: CommandFailure) -> int:
    for message in failure.messages:
        voice.error(message)
    if failure.hint:
        voice.raw(f"{voice.command}: {failure.hint}")
    return error_exit_code(failure.code)


def _tell_option_error(name: str, error: OptionError) -> int:
    if error.severity is Severity.ANSWER:
        around().write(f"{error.text_for(name)}\n")
        around().flush()
    else:
        Voice(name).raw(error.text_for(name))
    return error_exit_code(error.exit_code) if error.exit_code_settable else error.exit_code
