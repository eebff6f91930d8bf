"""A kit's certificate and key: whose they are, how long they hold, and whether they belong together.

Each check refuses with a sentence. All of them come before a participant starts: FLARE would try for ever, in silence.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fahmc.engines.flare.kits import Kit, require_flare
from fahmc.errors import SettingsError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_ANEW = "Get the kit anew from whoever made it."
_POLICY = ("resources.json", "authorization.json", "comm_config.json", "log_config.json")


class Window(NamedTuple):
    """From when until when a certificate holds."""

    begins: datetime
    ends: datetime

    def __str__(self) -> str:
        return f"{in_minutes(self.begins)} to {in_minutes(self.ends)}"


def in_minutes(moment: datetime) -> str:
    """Write a moment as people read it in a message."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def certificate_file(kit: Kit) -> Path:
    """Return where the owner's certificate lies."""
    return kit.startup / ("server.crt" if kit.role == "server" else "client.crt")


def key_file(kit: Kit) -> Path:
    """Return where the owner's private key lies."""
    return certificate_file(kit).with_suffix(".key")


def authority_file(kit: Kit) -> Path:
    """Return where the certificate of the study's authority lies."""
    return kit.startup / "rootCA.pem"


def check_credentials(kit: Kit) -> None:
    """Refuse a kit with which nobody could connect."""
    for check in (check_files, check_certificate, check_key, check_dates):
        check(kit)


def check_files(kit: Kit) -> None:
    """Refuse a kit that is not complete."""
    own = {"server": "fed_server.json", "site": "fed_client.json", "analyst": "fed_admin.json"}[kit.role]
    files = [certificate_file(kit), key_file(kit), authority_file(kit), kit.startup / own]
    files += [] if kit.role == "analyst" else [kit.local / name for name in _POLICY]
    for file in files:
        try:
            file.open("rb").close()
        except FileNotFoundError:
            raise SettingsError(
                f"{kit.path} is not complete: {file.relative_to(kit.path)} is missing. {_ANEW}"
            ) from None
        except OSError as error:
            raise SettingsError(f"{file} cannot be read: {error.strerror}. Check its permissions.") from error


def check_certificate(kit: Kit) -> None:
    """Refuse a certificate that is not the owner's, or not of the authority that the kit trusts."""
    from cryptography.exceptions import InvalidSignature

    own, authority = _read_certificate(certificate_file(kit)), _read_certificate(authority_file(kit))
    owner = kit.address[0] if kit.role == "server" else kit.name
    if (named := common_name(own)) != owner:
        raise SettingsError(
            f"{certificate_file(kit)} is the certificate of {named!r}, but this is the kit of {owner!r}. {_ANEW}"
        )
    try:
        own.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise SettingsError(
            f"{certificate_file(kit)} is not of the authority in {authority_file(kit).name}: files of two kits were "
            f"mixed. {_ANEW}"
        ) from None


def check_key(kit: Kit) -> None:
    """Refuse a private key that is not the certificate's."""
    require_flare()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    file = key_file(kit)
    try:
        key = load_pem_private_key(_read(file), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SettingsError(f"{file} holds no private key that can be read. {_ANEW}") from None
    if key.public_key() != _read_certificate(certificate_file(kit)).public_key():
        raise SettingsError(f"{file} is not the key of {certificate_file(kit).name} beside it. {_ANEW}")


def check_dates(kit: Kit) -> None:
    """Refuse a certificate that does not hold yet, or no more."""
    window, now = valid_window(kit), datetime.now(UTC)
    if not window.begins <= now <= window.ends:
        state, advice = (
            ("has expired", "New kits are needed, for everybody: `fahmc federation init`.")
            if now > window.ends
            else ("is not valid yet", "Set this machine's clock right.")
        )
        raise SettingsError(
            f"The certificate of {kit.path} {state}: it holds from {window}, and it is {in_minutes(now)} here. {advice}"
        )


def valid_window(kit: Kit) -> Window:
    """Return when both the owner's certificate and that of the study's authority hold."""
    both = [_read_certificate(file) for file in (certificate_file(kit), authority_file(kit))]
    return Window(max(one.not_valid_before_utc for one in both), min(one.not_valid_after_utc for one in both))


def common_name(certificate: Certificate, *, of_issuer: bool = False) -> str:
    """Return whose certificate it is, or who issued it: the authority has the study's name."""
    from cryptography.x509.oid import NameOID

    name = certificate.issuer if of_issuer else certificate.subject
    return next((str(part.value) for part in name.get_attributes_for_oid(NameOID.COMMON_NAME)), "")


def _read_certificate(file: Path) -> Certificate:
    require_flare()
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(_read(file))
    except ValueError:
        raise SettingsError(f"{file} holds no certificate that can be read. {_ANEW}") from None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}. {_ANEW}") from error
