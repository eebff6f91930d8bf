"""Exit codes, and how errors become one sentence on standard error.

======  ==============================================================================================
code    meaning
======  ==============================================================================================
0       success
1       an unexpected error: a fault of fahmc; its traceback is shown
2       wrong usage or settings, or a model that does not fit (`SettingsError`, `ModelError`)
3       the data cannot be used (`DataError`)
4       a run's folder or file cannot be used, read or written (`CheckpointError`, `OSError`: a full disk)
5       a chain diverged (`DivergenceError`); the draws before it are saved
6       a site or the server of a federation is missing or refuses (`FederationError`); the draws so far are saved
130     interrupted by Ctrl-C; the draws so far are saved
======  ==============================================================================================
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from fahmc import errors

SUCCESS, UNEXPECTED, SETTINGS, DATA, CHECKPOINT, DIVERGENCE, FEDERATION, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130

_CODES: dict[type[BaseException], int] = {
    errors.SettingsError: SETTINGS,
    errors.ModelError: SETTINGS,
    errors.DataError: DATA,
    errors.CheckpointError: CHECKPOINT,
    errors.DivergenceError: DIVERGENCE,
    errors.FederationError: FEDERATION,
    BrokenPipeError: UNEXPECTED,  # whoever reads our output left; no file is to blame
    OSError: CHECKPOINT,
    KeyboardInterrupt: INTERRUPTED,
}

EPILOG = (
    "Exit codes: 0 success; 1 unexpected error; 2 wrong usage, settings or model; 3 data; 4 a run's folder or file of "
    "draws cannot be used, read or written; 5 a chain diverged (the draws before it are saved); 6 a site or the server "
    "of a federation is missing or refuses (the draws so far are saved); 130 interrupted (the draws so far are saved)."
)


@contextmanager
def exit_codes(command: str, *, as_json: bool) -> Iterator[None]:
    """Turn errors that fahmc raises on purpose, and those of files, into a sentence and an exit code.

    Faults show their traceback. With ``as_json``, standard output gets an object that says the same, of faults too.
    """
    try:
        yield
    except (errors.FahmcError, KeyboardInterrupt, OSError) as error:
        code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), UNEXPECTED)
        label, message = "error", str(error)
        if isinstance(error, KeyboardInterrupt):
            label, message = "interrupted", message or "nothing was saved"
        elif isinstance(error, OSError) and code == CHECKPOINT:
            message = f"a file or folder cannot be read or written: {error}. Check its permissions and the free space."
        for line in message.splitlines():
            print(f"fahmc: {label}: {line}", file=sys.stderr)
        if as_json and not isinstance(error, BrokenPipeError):
            _print_object(command, label, code, error, message)
        raise typer.Exit(code) from error
    except typer.Exit:
        raise
    except Exception as error:
        if as_json:
            _print_object(command, "error", UNEXPECTED, error, str(error))
        raise  # Python prints the traceback and exits with 1


def _print_object(command: str, status: str, code: int, error: BaseException, message: str) -> None:
    from fahmc.cli.output import print_json

    kind = type(error).__name__
    print_json({"command": command, "status": status, "exit_code": code, "kind": kind, "message": message})
