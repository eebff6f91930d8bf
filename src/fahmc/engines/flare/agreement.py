"""How the sites of a job come to keys of their own, with the server in between that may not have them.

1. Each site makes an X25519 key for this job alone, and says hello: its study and roster, that key, and whether it
   wants the secure sum, signed with the key of its certificate. The server passes the hellos on.
2. Each site checks every hello with what lies in its own kit: the authority's certificate and the names of the sites.
   A server that puts keys of its own in their place is found out, and so is one that leaves a site out.
3. Two sites have a secret by X25519. The key of a pair is HKDF of it, with a salt of all hellos and of the context, for
   a run its order: sites that were told unlike things have unlike keys, and their masks do not cancel (`masks`).

The bytes that are signed begin with 0xFF: FLARE signs texts in UTF-8 with the same key, and none begins so.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import pydantic
from pydantic import ConfigDict

from fahmc.engines.flare.credentials import authority_file, certificate_file, common_name, key_file
from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.masks import Pair, Shares
from fahmc.engines.flare.refusals import Refusal, Refused
from fahmc.errors import FahmcError, FederationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.x509 import Certificate

SecureSum = Literal["required", "allowed", "off"]
FEWEST_SITES = 3
_PREFIX = b"\xfffahmc hello\n"


class _Statement(pydantic.BaseModel):
    """What a site signs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    study: str
    sites: list[str]
    site: str
    key: str
    """An X25519 public key, in hexadecimal digits."""
    secure_sum: SecureSum


class _Hello(pydantic.BaseModel):
    """What a site says for others to check."""

    model_config = ConfigDict(extra="forbid", strict=True)

    statement: str
    signature: str
    """In base 64."""
    certificate: str
    """In PEM."""


_HELLOS = pydantic.TypeAdapter(dict[str, _Hello])


class Identity(NamedTuple):
    """Who a site is, by its kit."""

    name: str
    study: str
    sites: tuple[str, ...]
    certificate: Certificate
    key: Any
    """The private key of the certificate."""
    authority: Certificate


def read_identity(path: Path) -> Identity:
    """Read a site's kit, or refuse."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509 import load_pem_x509_certificate

    try:
        kit = Kit.load(path)
        files = certificate_file(kit), authority_file(kit)
        own, authority = (load_pem_x509_certificate(file.read_bytes()) for file in files)
        key = load_pem_private_key(key_file(kit).read_bytes(), password=None)
    except (FahmcError, OSError, TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise Refused(Refusal.KIT) from error
    return Identity(kit.name, kit.study, kit.sites, own, key, authority)


class Party:
    """A site that is about to agree on keys with others, in one job."""

    def __init__(self, identity: Identity, secure_sum: SecureSum):
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding

        self._own = identity
        self._secure_sum: SecureSum = secure_sum
        self._key: X25519PrivateKey = X25519PrivateKey.generate()
        statement = _Statement(
            study=identity.study,
            sites=list(identity.sites),
            site=identity.name,
            key=self._key.public_key().public_bytes_raw().hex(),
            secure_sum=secure_sum,
        ).model_dump_json()
        self.hello = {
            "statement": statement,
            "signature": base64.b64encode(_sign(identity.key, _PREFIX + statement.encode())).decode(),
            "certificate": identity.certificate.public_bytes(Encoding.PEM).decode(),
        }
        """The same for all of the job."""

    def agree(self, hellos: str) -> Agreement:
        """Check the hellos of all sites, as JSON by name, and make the secrets; refuses by name."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        try:
            told = _HELLOS.validate_json(hellos)
        except pydantic.ValidationError as error:
            raise Refused(Refusal.REQUEST) from error
        own = self._own
        if set(told) != set(own.sites):
            raise Refused(Refusal.ROSTER, *sorted(set(told) ^ set(own.sites)))
        if told[own.name].model_dump() != self.hello:
            raise Refused(Refusal.SWAPPED_KEY, own.name)
        statements = {name: _checked(own, name, told[name]) for name in own.sites}
        settings: dict[str, SecureSum] = {name: statement.secure_sum for name, statement in statements.items()}
        secure_sum = _joint(settings, self._secure_sum)
        place, secrets = own.sites.index(own.name), {}
        for other, name in enumerate(own.sites):
            if other != place and secure_sum != "off":
                try:
                    public = X25519PublicKey.from_public_bytes(bytes.fromhex(statements[name].key))
                    secrets[name] = place < other, self._key.exchange(public)
                except ValueError as error:
                    raise Refused(Refusal.SWAPPED_KEY, name) from error
        transcript = json.dumps([told[name].model_dump() for name in own.sites])
        return Agreement(secure_sum, own.sites, transcript, secrets)


class Agreement(NamedTuple):
    """What the sites of a job agreed on."""

    secure_sum: SecureSum
    """Of all sites: ``"required"`` if one requires it, ``"off"`` if one will not, else ``"allowed"``."""
    sites: tuple[str, ...]
    transcript: str
    secrets: Mapping[str, tuple[bool, bytes]]
    """By the other site: whether this one adds, and what the two share."""

    def shares(self, context: str) -> Shares:
        """Return the site's side of secure sums in a context, which is what all sites must have been told alike."""
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        salt = hashlib.sha256(json.dumps([self.transcript, context]).encode()).digest()
        pairs = (
            Pair(is_adding, HKDF(SHA256(), 32, salt, b"fahmc pair").derive(secret))
            for is_adding, secret in self.secrets.values()
        )
        return Shares(len(self.sites), tuple(pairs))


def _joint(settings: Mapping[str, SecureSum], own: SecureSum) -> SecureSum:
    """Settle on what all can live with, or refuse in the name of a site that cannot."""
    against = [name for name, setting in settings.items() if setting == "off"]
    if own == "required" and against:
        raise Refused(Refusal.SUM_REFUSED, *against)
    if len(settings) < FEWEST_SITES:
        if own == "required":
            raise Refused(Refusal.TWO_SITES)
        return "off"
    if against:
        return "off"
    return "required" if "required" in settings.values() else "allowed"


def _checked(own: Identity, name: str, hello: _Hello) -> _Statement:
    """Return what a site has really said."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.x509 import load_pem_x509_certificate

    try:
        certificate = load_pem_x509_certificate(hello.certificate.encode())
        certificate.verify_directly_issued_by(own.authority)
        is_valid = certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc
    except (ValueError, TypeError, InvalidSignature) as error:
        raise Refused(Refusal.FOREIGN_CERTIFICATE, name) from error
    if not is_valid or common_name(certificate) != name:
        raise Refused(Refusal.OTHER_CERTIFICATE, name)
    try:
        signature = base64.b64decode(hello.signature, validate=True)
        _verify(certificate.public_key(), signature, _PREFIX + hello.statement.encode())
        statement = _Statement.model_validate_json(hello.statement)
    except (InvalidSignature, binascii.Error, UnicodeEncodeError, pydantic.ValidationError) as error:
        raise Refused(Refusal.SWAPPED_KEY, name) from error
    if (statement.study, statement.site) != (own.study, name):
        raise Refused(Refusal.SWAPPED_KEY, name)
    if tuple(statement.sites) != own.sites:
        raise Refused(Refusal.ROSTER, name)
    return statement


def _sign(key: Any, content: bytes) -> bytes:
    return key.sign(content, *_scheme(key))


def _verify(key: Any, signature: bytes, content: bytes) -> None:
    key.verify(signature, content, *_scheme(key))


def _scheme(key: Any) -> Sequence[Any]:
    """Return how a key signs: those of FLARE's certificates are RSA keys, and others may come."""
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.hashes import SHA256

    if isinstance(key, rsa.RSAPrivateKey | rsa.RSAPublicKey):
        return padding.PSS(padding.MGF1(SHA256()), padding.PSS.DIGEST_LENGTH), SHA256()
    if isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        return (ec.ECDSA(SHA256()),)
    return ()


def introduce(ask: Callable[..., dict[str, Any]]) -> SecureSum:
    """Do the server's part: pass on what the sites say to each other, and hear what they agreed on."""
    hellos = {site: answer.get("hello") for site, answer in ask("greet", "to say hello").items()}
    try:
        text = _HELLOS.dump_json(_HELLOS.validate_python(hellos)).decode()
    except pydantic.ValidationError as error:
        site = error.errors()[0]["loc"][0]
        raise FederationError(f"Site {site!r} said hello in a way that cannot be read; is its fahmc as new?") from error
    answers = ask("agree", "to agree on a secure sum", hellos=text)
    settled = {str(answer.get("secure_sum")) for answer in answers.values()}
    if len(settled) > 1 or not settled <= set(get_args(SecureSum)):
        raise FederationError(f"The sites do not agree on the secure sum: they say {', '.join(sorted(settled))}.")
    return settled.pop()  # type: ignore
