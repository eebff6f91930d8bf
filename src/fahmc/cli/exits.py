"""Exit codes, and how errors become one sentence on standard error: see `EPILOG`, which ends every ``--help``."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

import typer

from fahmc import errors

DIVERGED = 5
"""A chain left the finite numbers; or it did not, but every round of it diverged."""

# An error that is none of these is a fault of fahmc: 1, with its traceback.
_CODES: dict[type[BaseException], int] = {
    errors.SettingsError: 2,
    errors.ModelError: 2,
    errors.DataError: 3,
    errors.CheckpointError: 4,
    errors.OutputError: 4,
    errors.DivergenceError: DIVERGED,
    errors.FederationError: 6,
    BrokenPipeError: 1,  # whoever reads our output left; no file is to blame
    OSError: 4,  # such as a full disk
    KeyboardInterrupt: 130,
}

NOT_GOOD = 7
"""With ``--strict``, or of `bench models`: the command did its work, but what came out is not good."""

EPILOG = (
    "Exit codes: 0 success; 1 unexpected error; 2 wrong usage, settings or model; 3 data; 4 a run's folder, a file of "
    "draws or standard output cannot be used, read or written; 5 a chain diverged (the draws before it are saved); 6 a "
    "site or the server of a federation is missing or refuses (the draws so far are saved), or its doctor found a "
    "problem; 7 with --strict: the verdict is not good, the runs compared differ, or the model does not fit "
    "(everything is written all the same), or `bench models` found a good verdict wrong; 130 interrupted (the draws so "
    "far are saved)."
)


@contextmanager
def exit_codes(command: str, *, as_json: bool) -> Iterator[None]:
    """Turn errors that fahmc raises on purpose, and those of files, into a sentence and an exit code.

    Faults show their traceback. With ``as_json``, standard output gets an object that says the same, of faults too.
    """

    def print_object(status: str, code: int, error: BaseException, message: str) -> None:
        if isinstance(error, errors.OutputError):
            _discard(sys.stdout)
        elif as_json and not isinstance(error, BrokenPipeError):
            from fahmc.cli.output import Output

            kind = type(error).__name__
            try:
                Output(command, as_json, is_quiet=False).result(status, code, kind=kind, message=message)
            except errors.OutputError as trouble:
                say("error", str(trouble))
                _discard(sys.stdout)

    try:
        yield
    except (errors.FahmcError, KeyboardInterrupt, OSError) as error:
        code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), 1)
        label, message = "error", str(error)
        if isinstance(error, KeyboardInterrupt):
            label, message = "interrupted", message or "nothing was saved"
        elif isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            message = f"a file or folder cannot be read or written: {error}. Check its permissions and the free space."
        say(label, message)
        print_object(label, code, error, message)
        raise typer.Exit(code) from error
    except typer.Exit:
        raise
    except Exception as error:
        print_object("error", 1, error, str(error))
        raise  # Python prints the traceback and exits with 1


def say(label: str, message: str) -> None:
    """Print sentences on standard error; where it cannot be written, the exit code alone has to tell."""
    with suppress(OSError):
        for line in message.splitlines():
            print(f"fahmc: {label}: {line}", file=sys.stderr, flush=True)


@contextmanager
def standard_streams() -> Iterator[None]:
    """Hold the standard streams while the command line runs: what was printed has been written when it ends.

    Printed text waits in a buffer, and Python learns of a full disk (``> /dev/full``) only when it flushes that at the
    very end, too late for a sentence. A stream that is closed from the start (``>&-``) would lose what is printed, and
    worse: the next file that is opened would get its number, and with it whatever libraries print.
    Letters that standard output has no code for, as under ``LC_ALL=en_US.ISO-8859-1``, are written as escapes: better
    than nothing at all.
    """
    _fill_gaps()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    except KeyboardInterrupt as error:  # before a command has begun
        say("interrupted", "nothing was begun")
        raise SystemExit(_CODES[KeyboardInterrupt]) from error
    except OSError as error:  # of --help and --version, which are printed before a command has begun
        _end_without_output(error)
    finally:
        try:
            sys.stdout.flush()
        except OSError as error:
            _end_without_output(error)
        finally:
            _discard(sys.stderr)


def _fill_gaps() -> None:
    """Open what is closed: standard output such that writing to it is an error, standard error such that it is not."""
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # gets the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)


def _end_without_output(error: OSError) -> None:
    """Leave with a sentence, and without Python's own complaint about what is still in the buffer."""
    _discard(sys.stdout)
    if isinstance(error, BrokenPipeError):
        raise SystemExit(1)
    say("error", str(errors.OutputError(error)))
    raise SystemExit(_CODES[errors.OutputError])


def _discard(stream: TextIO) -> None:
    """Flush a stream, if need be to nowhere."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()
