"""The commands of ``fahmc``: this file parses and calls; what is done is in `demo`, `runs`, `federation` and so on.

A command here is a signature, with the names of the function that does it; that function's module, and everything heavy
with it, is imported when the command runs, so that ``--help`` does not wait for it. Exit codes: see `fahmc.cli.exits`.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from fahmc.cli.exits import EPILOG, exit_codes, standard_streams

app = typer.Typer(
    help="Bayesian federated learning: draw from one posterior while the rows stay with their owners.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
federation_app = typer.Typer(
    help="A real federation: make the kits, start the server and the sites, see who is there and what is wrong.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(federation_app, name="federation")


def main() -> None:
    """Run the command line."""
    with standard_streams():
        app(prog_name="fahmc")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"fahmc {installed_version('fahmc')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _shared(
    as_json: Annotated[bool, Option("--json", help="Print one JSON object on standard output, and no tables.")] = False,
    is_quiet: Annotated[bool, Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Declare the options of every command."""


Strict = Annotated[
    bool,
    Option(
        "--strict", help="End with exit code 7 if the verdict is not good, the runs differ, or the model does not fit."
    ),
]


def _command(does: str, group: typer.Typer = app) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command: ``does``, "module:function" in `fahmc.cli`, is called with what is declared, and an `Output`."""

    def add(declared: Callable[..., None]) -> Callable[..., None]:
        name = declared.__name__ if group is app else f"federation {declared.__name__}"

        @functools.wraps(declared)
        def run(as_json: bool, is_quiet: bool, **arguments: Any) -> None:
            with exit_codes(name, as_json=as_json), warnings.catch_warnings():
                if is_quiet:
                    warnings.simplefilter("ignore")
                from fahmc.cli.output import open_output

                module, _, function = does.partition(":")
                output = open_output(name, as_json, is_quiet)
                getattr(import_module(f"fahmc.cli.{module}"), function)(**arguments, output=output)

        own, shared = (inspect.signature(function, eval_str=True) for function in (declared, _shared))
        parameters = [*own.parameters.values(), *shared.parameters.values()]
        vars(run)["__signature__"] = own.replace(parameters=parameters)
        return group.command(epilog=EPILOG)(run)

    return add


@_command("demo:run_demo")
def demo(
    folder: Annotated[Path, Option("--output", "-o", help="Folder for draws, figures and report.")] = Path(
        "fahmc-demo"
    ),
    seed: Annotated[int, Option(min=0, help="The same seed gives the same draws.")] = 0,
    is_federated: Annotated[
        bool,
        Option(
            "--federated",
            help="Run the clinics as four site processes and a server process on this machine, over mutual TLS.",
        ),
    ] = False,
    is_strict: Strict = False,
) -> None:
    """Sample a real trial at four clinics that ships with fahmc, without a setting, next to the same trial pooled."""


@_command("runs:run_config")
def sample(
    file: Annotated[Path, Argument(metavar="config", help="TOML file with [model], [data], [sampler] and [run].")],
    folder: Annotated[
        Path | None, Option("--output", "-o", help="Folder for the results, instead of the file's run.output.")
    ] = None,
    kit: Annotated[
        Path | None,
        Option(
            "--federation",
            metavar="KIT",
            help="The analyst's kit: sample where the rows lie, at the sites of a federation.",
        ),
    ] = None,
    is_watched: Annotated[
        bool, Option("--watch", help="Print the address of a page, for this machine only, that shows the run.")
    ] = False,
    is_opening: Annotated[bool, Option("--open", help="The same, and open it in the browser.")] = False,
    is_strict: Strict = False,
) -> None:
    """Sample what a configuration file asks for. The run is durable: after a kill, `fahmc resume` goes on."""


@_command("watch:watch_run")
def watch(
    folder: Annotated[
        Path,
        Argument(metavar="RUN", help="Folder that `fahmc sample` writes to, or the checkpoint_dir of a Python call."),
    ],
    port: Annotated[int, Option(min=0, max=65535, help="Of the loopback; by default any that is free.")] = 0,
    is_opening: Annotated[bool, Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Show a run of this machine on a page, while it goes on or when it is over; whatever happens here, it goes on."""


@_command("tune:tune_config")
def tune(
    file: Annotated[Path, Argument(metavar="config", help="TOML file with [model] and [data]; [run] may give a seed.")],
    max_rounds: Annotated[int, Option("--rounds", min=1, help="Rounds that may be asked for.")] = 200,
    max_bias: Annotated[
        float, Option(help="How far a mean may be off, in posterior standard deviations.", min=0.001, max=1.0)
    ] = 0.1,
    kit: Annotated[
        Path | None,
        Option("--federation", metavar="KIT", help="The analyst's kit: tune at the sites of a federation."),
    ] = None,
) -> None:
    """Find settings of FA-HMC for a study in a few rounds, and print [sampler] and [run] for its file."""


@_command("runs:resume_run")
def resume(
    folder: Annotated[Path, Argument(metavar="DIR", help="Folder that `fahmc sample` wrote to.")],
    is_strict: Strict = False,
) -> None:
    """Continue a run that was killed or interrupted; the draws are those of an undisturbed run."""


@_command("runs:remake_report")
def report(
    target: Annotated[Path, Argument(metavar="DIR", help="Folder with draws.nc, or a file of draws.")],
    folder: Annotated[
        Path | None, Option("--output", "-o", help="Folder for the report; by default DIR, or FILE-report for a file.")
    ] = None,
    is_strict: Strict = False,
) -> None:
    """Make the report and its figures again from saved draws."""


RunPath = Annotated[Path, Argument(metavar="RUN", help="Folder with draws.nc, or a file of draws.")]


@_command("compare:compare_runs")
def compare(first: RunPath, second: RunPath, is_strict: Strict = False) -> None:
    """Say whether two runs of one model differ by more than Monte Carlo error, and by how much."""


RunFolder = Annotated[Path, Argument(metavar="RUN", help="Folder that `fahmc sample` wrote to.")]


@_command("fit:check_run")
def check(folder: RunFolder, is_strict: Strict = False) -> None:
    """Say whether a run's model fits its rows, asking the sites if they have them; into its report, too."""


@_command("fit:cross_validate")
def loo(
    folders: Annotated[list[Path], Argument(metavar="RUN...", help="Folders that `fahmc sample` wrote to.")],
) -> None:
    """Cross-validate a run's model, leaving out one row at a time; or compare the models of several runs."""


@_command("bench:run_bench")
def bench(
    workloads: Annotated[
        list[str] | None,
        Argument(
            help="W1, W1t, W2 to W7; by default all of these. Or federation: rounds between processes. Or rounds: how "
            "many a posterior costs, and how far off it is. Or certificate: whether runs know their own error. Or "
            "models: ready-made models next to NumPyro's."
        ),
    ] = None,
    folder: Annotated[Path, Option("--out", "-o", help="Folder for results.json, table.md and ratios.png.")] = Path(
        "fahmc-bench"
    ),
    repeats: Annotated[int | None, Option(min=1, help="How often every contender has its turn; 5.")] = None,
    seconds: Annotated[float | None, Option(min=0.001, help="About how long a turn lasts; 1.")] = None,
    problems: Annotated[
        list[str] | None,
        Option("--problem", help="Of rounds or models: this one; may be given several times. All by default."),
    ] = None,
    num_seeds: Annotated[int | None, Option("--seeds", min=1, help="Of rounds: runs of each problem; 10.")] = None,
    num_data_seeds: Annotated[
        int | None, Option("--data-seeds", min=1, help="Of rounds: how often simulated rows are drawn; 1.")
    ] = None,
    with_rivals: Annotated[
        bool, Option("--rivals", help="Of rounds: have FA-HMC by hand, NUTS and others run, too.")
    ] = False,
    is_quick: Annotated[bool, Option("--quick", help="Small and short: only shows that it works.")] = False,
) -> None:
    """Time fahmc against PyTorch, BlackJAX, NumPyro and bare matrix products, doing the same work turn by turn."""


@_command("reproduce:run_reproduce")
def reproduce(
    figures: Annotated[list[str], Argument(help="1a 1b 1c 1d 2 3 4 5 6 7, or all; list names them.")],
    scale: Annotated[
        str, Option(help="smoke: under a minute a figure; laptop: under an hour; paper: the full setting.")
    ] = "laptop",
    hidden: Annotated[str | None, Option(help="Units of the hidden layers of figure 5's network; 512,512.")] = None,
    folder: Annotated[Path, Option("--out", "-o", help="Folder; each figure gets one of its own in it.")] = Path(
        "fahmc-figures"
    ),
) -> None:
    """Make the paper's figures: table, picture, and for each claim whether it shows. Goes on where it was stopped."""


KitFolder = Annotated[Path, Argument(metavar="KIT", help="Folder of a start-up kit.")]


@_command("federation:make_study_kits", federation_app)
def init(
    file: Annotated[Path, Argument(metavar="config", help="TOML file of the study, with a section [federation].")],
    folder: Annotated[Path, Option("--output", "-o", help="Folder for the kits, one folder each.")] = Path("kits"),
) -> None:
    """Make the start-up kits of a study: one for the server, one for the analyst, one for every site."""


@_command("federation:run_participant", federation_app)
def start(
    kit: KitFolder,
    data: Annotated[Path | None, Option(help="The site's table, instead of the file in its rules.")] = None,
    rules: Annotated[
        Path | None, Option(help="The site's rules, instead of site.toml in the kit: what may be computed here.")
    ] = None,
) -> None:
    """Run the server or a site until Ctrl-C or `fahmc federation stop`, and say who is connected, refused or lost."""


@_command("federation:show_status", federation_app)
def status(
    kit: KitFolder,
    wait: Annotated[
        float, Option(min=0.0, help="Seconds to wait for all sites to be connected, with the analyst's kit.")
    ] = 0.0,
) -> None:
    """Say who is connected and what runs (the analyst's kit), or how a server or site here fares (its own kit)."""


@_command("federation:stop_participant", federation_app)
def stop(kit: KitFolder) -> None:
    """Stop a server or site that runs on this machine."""


@_command("doctor:examine_kit", federation_app)
def doctor(
    kit: KitFolder,
    data: Annotated[Path | None, Option(help="The site's table, as `start` would be given it.")] = None,
    rules: Annotated[Path | None, Option(help="The site's rules, as `start` would be given them.")] = None,
    seconds: Annotated[float, Option("--timeout", min=1.0, help="Seconds for all checks together.")] = 60.0,
) -> None:
    """Check what a kit's owner needs, from certificate to data, and say what to do; exit code 6 on a problem."""


@_command("ledger:show_ledger", federation_app)
def ledger(
    kit: KitFolder,
    is_begun_anew: Annotated[
        bool, Option("--begin-anew", help="Put the ledger aside and begin another: everything counts anew.")
    ] = False,
) -> None:
    """Print what a site was asked, by whom and when, and what is left of what it allows; with the site's own kit."""


@_command("logs:show_logs", federation_app)
def logs(
    kit: KitFolder,
    num_lines: Annotated[int, Option("--lines", "-n", min=1, help="How many of the last lines.")] = 50,
    is_following: Annotated[bool, Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
) -> None:
    """Print what a server or site on this machine said, newest last: its states, warnings, and refusals in full."""


if __name__ == "__main__":
    main()
