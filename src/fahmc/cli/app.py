"""The commands of ``fahmc``: this file parses and calls; what is done is in `demo`, `runs`, `reproduce` and `bench`.

Exit codes: 0 success; 1 unexpected error; 2 wrong usage, settings or model; 3 data; 4 a run's folder or file of
draws cannot be used, read or written; 5 a chain diverged (the draws before it are saved); 130 interrupted (the draws so
far are saved). See `fahmc.cli.exits`.

Everything heavy is imported inside the commands, so that ``--help`` does not wait for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fahmc.cli.exits import EPILOG, exit_codes

if TYPE_CHECKING:
    from fahmc.cli.output import Output

app = typer.Typer(
    help="Bayesian federated learning: draw from one posterior while the rows stay with their owners.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, and no tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def main() -> None:
    """Run the command line."""
    app(prog_name="fahmc")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"fahmc {installed_version('fahmc')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(epilog=EPILOG)
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for draws, figures and report.")] = Path(
        "fahmc-demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same draws.")] = 0,
    rounds: Annotated[
        int,
        typer.Option(help="Rounds of the federated run; fewer are quicker, and too few to draw conclusions from."),
    ] = 16_000,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Sample a real trial at four clinics that ships with fahmc, next to the same trial with its rows pooled."""
    with _command("demo", as_json, quiet) as said:
        from fahmc.cli.demo import run_demo

        run_demo(output, seed, rounds, said)


@app.command(epilog=EPILOG)
def sample(
    config: Annotated[Path, typer.Argument(help="TOML file with [model], [data], [sampler] and [run].")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the results, instead of the file's run.output.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Sample what a configuration file asks for. The run is durable: after a kill, `fahmc resume` goes on."""
    with _command("sample", as_json, quiet) as said:
        from fahmc.cli.runs import run_config

        run_config(config, output, said)


@app.command(epilog=EPILOG)
def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `fahmc sample` wrote to.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run that was killed or interrupted; the draws are those of an undisturbed run."""
    with _command("resume", as_json, quiet) as said:
        from fahmc.cli.runs import resume_run

        resume_run(folder, said)


@app.command(epilog=EPILOG)
def report(
    target: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with draws.nc, or a file of draws.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for the report; by default DIR, or FILE-report for a file."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make the report and its figures again from saved draws."""
    with _command("report", as_json, quiet) as said:
        from fahmc.cli.runs import remake_report

        remake_report(target, output, said)


@app.command(epilog=EPILOG)
def bench(
    workloads: Annotated[list[str] | None, typer.Argument(help="W1, W1t, W2 to W7; by default all.")] = None,
    output: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for results.json, table.md and ratios.png.")
    ] = Path("fahmc-bench"),
    repeats: Annotated[int | None, typer.Option(min=1, help="How often every contender has its turn; 5.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.001, help="About how long a turn lasts; 1.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small and short: only shows that it works.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Time fahmc against PyTorch, BlackJAX, NumPyro and bare matrix products, doing the same work turn by turn."""
    with _command("bench", as_json, quiet) as said:
        from fahmc.cli.bench import run_bench

        defaults = (2, 0.02) if quick else (5, 1.0)
        run_bench(
            workloads or [],
            output,
            is_quick=quick,
            repeats=repeats or defaults[0],
            seconds=seconds or defaults[1],
            output=said,
        )


@app.command(epilog=EPILOG)
def reproduce(
    figures: Annotated[list[str], typer.Argument(help="1a 1b 1c 1d 2 3 4 5 6 7, or all; list names them.")],
    scale: Annotated[
        str, typer.Option(help="smoke: under a minute a figure; laptop: under an hour; paper: the full setting.")
    ] = "laptop",
    hidden: Annotated[
        str | None, typer.Option(help="Units of the hidden layers of figure 5's network; 512,512.")
    ] = None,
    output: Annotated[Path, typer.Option("--out", "-o", help="Folder; each figure gets one of its own in it.")] = Path(
        "fahmc-figures"
    ),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make the paper's figures: table, picture, and for each claim whether it shows. Goes on where it was stopped."""
    with _command("reproduce", as_json, quiet) as said:
        from fahmc.cli.reproduce import run_reproduce

        run_reproduce(figures, output, scale, hidden, said)


@contextmanager
def _command(name: str, as_json: bool, is_quiet: bool) -> Iterator[Output]:
    """Set up what every command shares: where it prints, and how errors become exit codes."""
    with exit_codes(name, as_json=as_json), warnings.catch_warnings():
        if is_quiet:
            warnings.simplefilter("ignore")
        from fahmc.cli.output import Output, configure_logging

        output = Output(as_json, is_quiet)
        configure_logging(output)
        yield output


if __name__ == "__main__":
    main()
