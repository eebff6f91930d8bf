"""Sites agree on keys that the server does not know; whatever it, or somebody else, puts in their place is named."""

import base64
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fahmc.engines.flare.agreement import Agreement, Identity, Party, introduce, read_identity
from fahmc.engines.flare.kits import make_kits
from fahmc.engines.flare.refusals import Refusal, Refused
from fahmc.errors import FederationError
from kit_forge import Authority

SITES = ("north", "south", "east")
AUTHORITY = Authority()
KNOWN = AUTHORITY.identities(SITES)


def parties(known: Mapping[str, Identity] = KNOWN, **settings: Any) -> dict[str, Party]:
    return {name: Party(identity, settings.get(name, "required")) for name, identity in known.items()}


def hellos(told: Mapping[str, Party]) -> dict[str, Any]:
    return {name: dict(party.hello) for name, party in told.items()}


def agreed(told: Mapping[str, Party]) -> dict[str, Agreement]:
    text = json.dumps(hellos(told))
    return {name: party.agree(text) for name, party in told.items()}


def test_two_sites_have_one_key_and_it_is_another_for_every_pair_context_and_job():
    jobs = parties(), parties()
    public = {json.loads(party.hello["statement"])["key"] for told in jobs for party in told.values()}
    assert len(public) == 2 * len(SITES), "a key is for one job"
    first, again = map(agreed, jobs)
    seen: dict[bytes, int] = {}
    for agreements in (first, again):
        for context in ("an order", "another"):
            for agreement in agreements.values():
                pairs = agreement.shares(context).pairs
                assert len(pairs) == len(SITES) - 1
                for pair in pairs:
                    seen[pair.key] = seen.get(pair.key, 0) + (1 if pair.is_adding else -1)
                    assert abs(seen[pair.key]) <= 1, "one adds, the other subtracts"
    assert len(seen) == 3 * 2 * 2 and set(seen.values()) == {0}


def test_a_key_of_two_depends_on_what_all_others_said():
    """Who is told unlike things about a third has masks that do not cancel."""
    told = parties()
    first = told["north"].agree(json.dumps(hellos(told))).shares("an order").pairs
    told["east"] = Party(KNOWN["east"], "required")
    second = told["north"].agree(json.dumps(hellos(told))).shares("an order").pairs
    assert [pair.is_adding for pair in first] == [pair.is_adding for pair in second] == [True, True]
    assert first[0].key != second[0].key, "of north and south"


def with_other_key(hello: dict[str, Any]) -> dict[str, Any]:
    """Put a key whose secret the server has into what a site says."""
    statement = json.loads(hello["statement"])
    statement["key"] = X25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    return hello | {"statement": json.dumps(statement, separators=(",", ":"))}


def said_by(name: str, known: Identity) -> dict[str, Any]:
    """What somebody else says in a site's name."""
    return Party(known._replace(name=name), "required").hello


STRANGERS = Authority().identities(SITES)
ANALYST = AUTHORITY.identities(SITES, {"south": "analyst@example.org"})["south"]
OLD = AUTHORITY.identities(("north", "south", "west"))["south"]
TRICKS = {
    "a key of the server's own": (lambda told: {"south": with_other_key(told["south"])}, Refusal.SWAPPED_KEY, "south"),
    "one's own key exchanged": (lambda told: {"north": with_other_key(told["north"])}, Refusal.SWAPPED_KEY, "north"),
    "two sites' hellos swapped": (
        lambda told: {"south": told["east"], "east": told["south"]},
        Refusal.OTHER_CERTIFICATE,
        "south",
    ),
    "a foreign authority": (
        lambda told: {"south": said_by("south", STRANGERS["south"])},
        Refusal.FOREIGN_CERTIFICATE,
        "south",
    ),
    "the analyst's certificate": (
        lambda told: {"south": said_by("south", ANALYST)},
        Refusal.OTHER_CERTIFICATE,
        "south",
    ),
    "another site's certificate": (
        lambda told: {"south": said_by("south", KNOWN["east"])},
        Refusal.OTHER_CERTIFICATE,
        "south",
    ),
    "a statement in another's name": (
        lambda told: {"south": told["south"] | {"statement": told["east"]["statement"]}},
        Refusal.SWAPPED_KEY,
        "south",
    ),
    "no signature": (
        lambda told: {"south": told["south"] | {"signature": base64.b64encode(bytes(70)).decode()}},
        Refusal.SWAPPED_KEY,
        "south",
    ),
    "a kit of another study": (
        lambda told: {"south": said_by("south", KNOWN["south"]._replace(study="other"))},
        Refusal.SWAPPED_KEY,
        "south",
    ),
    "a kit with other sites": (lambda told: {"south": said_by("south", OLD)}, Refusal.ROSTER, "south"),
    "a site too few": (lambda told: {"east": None}, Refusal.ROSTER, "east"),
    "a site too many": (lambda told: {"west": told["east"]}, Refusal.ROSTER, "west"),
    "one who will not": (
        lambda told: {"east": Party(KNOWN["east"], "off").hello},
        Refusal.SUM_REFUSED,
        "east",
    ),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_who_is_not_who_he_should_be_is_named(trick):
    change, refusal, named = TRICKS[trick]
    told = parties()
    texts = hellos(told)
    changed = {name: hello for name, hello in (texts | change(texts)).items() if hello is not None}
    with pytest.raises(Refused) as refused:
        told["north"].agree(json.dumps(changed))
    assert refused.value.refusal == refusal and named in refused.value.words


def test_a_certificate_that_does_not_hold_now_is_refused():
    key = KNOWN["south"].key
    expired = AUTHORITY._sign("south", key, timedelta(days=-9), timedelta(days=-1))
    told = parties(KNOWN | {"south": KNOWN["south"]._replace(certificate=expired)})
    with pytest.raises(Refused, match="shown for 'south' is somebody else's, or does not hold now"):
        told["north"].agree(json.dumps(hellos(told)))


@pytest.mark.parametrize(
    ("settings", "joint"),
    [
        ({}, "required"),
        ({"north": "allowed", "south": "allowed"}, "required"),
        (dict.fromkeys(SITES, "allowed"), "allowed"),
        ({"north": "allowed", "south": "off", "east": "allowed"}, "off"),
        (dict.fromkeys(SITES, "off"), "off"),
    ],
)
def test_one_that_requires_it_has_it_and_one_that_will_not_is_not_made_to(settings, joint):
    agreements = agreed(parties(**settings))
    assert {agreement.secure_sum for agreement in agreements.values()} == {joint}
    assert all(bool(agreement.secrets) == (joint != "off") for agreement in agreements.values())


def test_two_sites_have_no_secure_sum():
    known = AUTHORITY.identities(SITES[:2])
    with pytest.raises(Refused, match=r"hides nothing among fewer than three sites"):
        agreed(parties(known))
    agreements = agreed(parties(known, north="allowed", south="allowed"))
    assert {agreement.secure_sum for agreement in agreements.values()} == {"off"}


def test_kits_that_were_made_together_agree(tmp_path):
    kits = make_kits(tmp_path / "kits", study="trial", server="localhost:8002", sites=SITES, analyst="ana@example.org")
    known = {name: read_identity(kits[name].path) for name in SITES}
    keys = [agreement.shares("an order").pairs[0].key for agreement in agreed(parties(known)).values()]
    assert keys[0] == keys[1] != keys[2]
    (kits["north"].path / "startup" / "client.key").write_text("no key")
    with pytest.raises(Refused, match="this site's kit cannot be read"):
        read_identity(kits["north"].path)


def test_the_server_passes_on_what_is_said_and_believes_no_single_site():
    told = parties()

    def ask(method: str, during: str, **arguments: Any) -> dict[str, Any]:
        if method == "greet":
            return {name: {"hello": party.hello} for name, party in told.items()} | said
        return {name: {"secure_sum": party.agree(**arguments).secure_sum} for name, party in told.items()} | settled

    said: dict[str, Any] = {}
    settled: dict[str, Any] = {}
    assert introduce(ask) == "required"
    settled = {"south": {"secure_sum": "off"}}
    with pytest.raises(FederationError, match="The sites do not agree on the secure sum: they say off, required"):
        introduce(ask)
    for hello in (None, "", {"statement": b"\xff"}, {"statement": 1}):
        said = {"south": {"hello": hello}}
        with pytest.raises(FederationError, match="Site 'south' said hello in a way that cannot be read"):
            introduce(ask)
