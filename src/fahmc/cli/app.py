"""The commands of ``fahmc``: this file parses and calls; what is done is in `demo`, `runs`, `federation` and so on.

Exit codes: 0 success; 1 unexpected error; 2 wrong usage, settings or model; 3 data; 4 a run's folder or file of
draws cannot be used, read or written; 5 a chain diverged (the draws before it are saved); 6 a site or the server of a
federation is missing or refuses (the draws so far are saved); 130 interrupted (the draws so far are saved). See
`fahmc.cli.exits`.

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
        int | None,
        typer.Option(
            help="Rounds of the federated run, 16,000, or 10,000 with --federated; fewer are quicker, and too few to "
            "draw conclusions from.",
            show_default=False,
        ),
    ] = None,
    federated: Annotated[
        bool,
        typer.Option(
            "--federated",
            help="Run the clinics as four site processes and a server process on this machine, over mutual TLS.",
        ),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Sample a real trial at four clinics that ships with fahmc, next to the same trial with its rows pooled."""
    with _command("demo", as_json, quiet) as said:
        from fahmc.cli.demo import run_demo

        run_demo(output, seed, rounds, federated, said)


@app.command(epilog=EPILOG)
def sample(
    config: Annotated[Path, typer.Argument(help="TOML file with [model], [data], [sampler] and [run].")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the results, instead of the file's run.output.")
    ] = None,
    federation: Annotated[
        Path | None,
        typer.Option(metavar="KIT", help="The analyst's kit: sample where the rows lie, at the sites of a federation."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Sample what a configuration file asks for. The run is durable: after a kill, `fahmc resume` goes on."""
    with _command("sample", as_json, quiet) as said:
        from fahmc.cli.runs import run_config

        run_config(config, output, federation, said)


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
    workloads: Annotated[
        list[str] | None,
        typer.Argument(help="W1, W1t, W2 to W7; by default all of these. Or federation: rounds between processes."),
    ] = None,
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
        from fahmc.cli.bench import run_bench, run_federation_bench

        if "federation" in (workloads or []):
            run_federation_bench(workloads or [], output, is_quick=quick, output=said)
            return
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


federation_app = typer.Typer(
    help="A real federation: make the kits, start the server and the sites, see who is there.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(federation_app, name="federation")

KitFolder = Annotated[Path, typer.Argument(metavar="KIT", help="Folder of a start-up kit.")]


@federation_app.command(epilog=EPILOG)
def init(
    config: Annotated[Path, typer.Argument(help="TOML file of the study, with a section [federation].")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the kits, one folder each.")] = Path(
        "kits"
    ),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make the start-up kits of a study: one for the server, one for the analyst, one for every site."""
    with _command("federation init", as_json, quiet) as said:
        from fahmc.cli.federation import make_study_kits

        make_study_kits(config, output, said)


@federation_app.command(epilog=EPILOG)
def start(
    kit: KitFolder,
    data: Annotated[Path | None, typer.Option(help="The site's table, instead of the file in its rules.")] = None,
    rules: Annotated[
        Path | None, typer.Option(help="The site's rules, instead of site.toml in the kit: what may be computed here.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run the server or a site until Ctrl-C or `fahmc federation stop`."""
    with _command("federation start", as_json, quiet) as said:
        from fahmc.cli.federation import run_participant

        run_participant(kit, data, rules, said)


@federation_app.command(epilog=EPILOG)
def status(
    kit: KitFolder,
    wait: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait for all sites to be connected, with the analyst's kit.")
    ] = 0.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Say who is connected and what runs (the analyst's kit), or whether a server or site runs here (its own kit)."""
    with _command("federation status", as_json, quiet) as said:
        from fahmc.cli.federation import show_status

        show_status(kit, wait, said)


@federation_app.command(epilog=EPILOG)
def stop(kit: KitFolder, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Stop a server or site that runs on this machine."""
    with _command("federation stop", as_json, quiet) as said:
        from fahmc.cli.federation import stop_participant

        stop_participant(kit, said)


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
