"""Exit codes, and how errors become one sentence on standard error: see `EPILOG`, which ends every ``--help``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from fahmc import errors

# An error that is none of these is a fault of fahmc: 1, with its traceback.
_CODES: dict[type[BaseException], int] = {
    errors.SettingsError: 2,
    errors.ModelError: 2,
    errors.DataError: 3,
    errors.CheckpointError: 4,
    errors.DivergenceError: 5,
    errors.FederationError: 6,
    BrokenPipeError: 1,  # whoever reads our output left; no file is to blame
    OSError: 4,  # such as a full disk
    KeyboardInterrupt: 130,
}

NOT_GOOD = 7
"""With ``--strict``: the command did its work, but what came out is not good."""

EPILOG = (
    "Exit codes: 0 success; 1 unexpected error; 2 wrong usage, settings or model; 3 data; 4 a run's folder or file of "
    "draws cannot be used, read or written; 5 a chain diverged (the draws before it are saved); 6 a site or the server "
    "of a federation is missing or refuses (the draws so far are saved); 7 with --strict: the verdict is not good, or "
    "the runs compared differ (everything is written all the same); 130 interrupted (the draws so far are saved)."
)


@contextmanager
def exit_codes(command: str, *, as_json: bool) -> Iterator[None]:
    """Turn errors that fahmc raises on purpose, and those of files, into a sentence and an exit code.

    Faults show their traceback. With ``as_json``, standard output gets an object that says the same, of faults too.
    """

    def print_object(status: str, code: int, error: BaseException, message: str) -> None:
        if as_json:
            from fahmc.cli.output import Output

            kind = type(error).__name__
            Output(command, as_json, is_quiet=False).result(status, code, kind=kind, message=message)

    try:
        yield
    except (errors.FahmcError, KeyboardInterrupt, OSError) as error:
        code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), 1)
        label, message = "error", str(error)
        if isinstance(error, KeyboardInterrupt):
            label, message = "interrupted", message or "nothing was saved"
        elif isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            message = f"a file or folder cannot be read or written: {error}. Check its permissions and the free space."
        for line in message.splitlines():
            print(f"fahmc: {label}: {line}", file=sys.stderr)
        if not isinstance(error, BrokenPipeError):
            print_object(label, code, error, message)
        raise typer.Exit(code) from error
    except typer.Exit:
        raise
    except Exception as error:
        print_object("error", 1, error, str(error))
        raise  # Python prints the traceback and exits with 1
