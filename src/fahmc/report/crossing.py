"""What crossed the wire, and who could see what: the messages of a run, in words and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fahmc.report.page import Section, Table
from fahmc.report.quantities import in_bytes, in_time, in_words

if TYPE_CHECKING:
    from fahmc.draws import Draws

_COSTS = {
    "rounds": ("rounds, warmup included", in_words),
    "seconds": ("time", in_time),
    "row_gradients": ("gradients of single rows", in_words),
    "bytes_to_clients": ("sent from the server to clients", in_bytes),
    "bytes_to_server": ("sent from clients to the server", in_bytes),
}


def crossing_section(runs: Mapping[str, Draws]) -> Section:
    """Return the section; messages are those of the first run."""
    draws = next(iter(runs.values()))
    messages = _messages(draws.account.get("messages", []))
    tables = {"quantity": _costs(runs)} | ({"phase, and its rounds": messages} if messages else {})
    return Section("What crossed, and who could see it", _who_saw(draws), tables)


def _who_saw(draws: Draws) -> list[str]:
    if "sites" in draws.settings:
        return [
            "No row left its site. The sites first told the columns of their tables and, for those of the study, row "
            "counts, the names of levels, means and sums of squares (where there was a secure sum, these two of all "
            "sites together); then they replied to broadcasts, in fields as below.",
            *_who_read_replies(draws.account.get("messages", [])),
            "The analyst has how many rows each site has, the names of levels, what was combined of the replies, and "
            "the draws. Others saw encrypted messages.",
        ]
    if len(draws.client_names) == 1:
        return ["All rows were in one place: nothing would cross a network."]
    return [
        "All clients' rows were in one process, so nothing crossed a network. Between separate owners no row would "
        "leave its place, and these messages would cross; whoever runs the server could read every owner's replies."
    ]


def _who_read_replies(phases: list[dict[str, Any]]) -> list[str]:
    """Say who could read the replies of single sites; a secure sum may have hidden those of some phases."""
    masked = [phase["phase"] for phase in phases if phase.get("is_masked")]
    told = []
    if masked:
        which = "All replies" if len(masked) == len(phases) else f"The replies in {', '.join(masked)}"
        told.append(
            f"{which} went through a secure sum: each site hid its own under masks that cancel in the sum over all "
            "sites, made of keys that the server does not have. The server, and whoever runs it, could read these "
            "sums, and of single sites nothing, unless it worked together with all sites but one or made the kits. "
            "That is not differential privacy: sums and draws tell of the rows of all sites together."
        )
    if len(masked) < len(phases):
        which = f"The replies in {', '.join(p['phase'] for p in phases if not p.get('is_masked'))}" if masked else ""
        told.append(
            f"{which or 'The replies of every site'} could be read one by one by the server, and so by whoever runs "
            "it: no secure sum hides them. From many replies of a small site much can be learned of its rows."
        )
    return told


def _messages(phases: list[dict[str, Any]]) -> Table:
    return {
        f"{phase['phase']}, {in_words(phase['rounds'])}": {
            ("", "to each client"): _fields(phase["to_clients"]),
            ("", "from each client"): _fields(phase["to_server"]),
        }
        for phase in phases
    }


def _fields(fields: Mapping[str, list[int]]) -> str:
    named = (f"{name} [{' × '.join(map(str, shape))}]" if shape else name for name, shape in fields.items())
    return ", ".join(named) or "–"


def _costs(runs: Mapping[str, Draws]) -> Table:
    """Return what each run cost, in units for people; a kind of cost that is not known here is printed as it is."""
    rows = {}
    for kind in dict.fromkeys(kind for draws in runs.values() for kind in draws.cost):
        name, unit = _COSTS.get(kind, (kind.replace("_", " "), in_words))
        rows[name] = {("", k): unit(draws.cost[kind]) if kind in draws.cost else "n/a" for k, draws in runs.items()}
    rates = {("", label): draws.stats.get("acceptance_rate") for label, draws in runs.items()}
    if any(rate is not None for rate in rates.values()):
        words = {key: "no accept/reject step" if rate is None else f"{rate.mean():.3f}" for key, rate in rates.items()}
        rows["mean acceptance rate"] = words
    return rows
