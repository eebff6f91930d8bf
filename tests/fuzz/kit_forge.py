"""Kits with any certificates, and servers that speak TLS with them: what a federation meets in the wild."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fahmc.engines.flare.agreement import Identity
from fahmc.engines.flare.credentials import authority_file, certificate_file, key_file
from fahmc.engines.flare.kits import Kit


class Authority:
    """Signs certificates for the kits of a study, for any time."""

    def __init__(self, study: str = "trial"):
        self.study = study
        self._key, self._name = ec.generate_private_key(ec.SECP256R1()), _name(study)
        self.certificate = self._sign(study, self._key, timedelta(days=-1000), timedelta(days=1000), is_authority=True)

    def certify(self, kit: Kit, begins: float = -1.0, ends: float = 300.0, owner: str | None = None) -> None:
        """Put a new certificate and key into a kit, that holds from and until so many days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        owner = owner or (kit.address[0] if kit.role == "server" else kit.name)
        certificate = self._sign(owner, key, timedelta(days=begins), timedelta(days=ends))
        for file, signed in ((certificate_file(kit), certificate), (authority_file(kit), self.certificate)):
            file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        kinds = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key_file(kit).write_bytes(key.private_bytes(serialization.Encoding.PEM, *kinds))

    def identities(self, sites: Sequence[str], owners: Mapping[str, str] | None = None) -> dict[str, Identity]:
        """Return who sites are, as if read from their kits; ``owners`` has other names for their certificates."""
        made = {}
        for site in sites:
            key = ec.generate_private_key(ec.SECP256R1())
            owner = (owners or {}).get(site, site)
            certificate = self._sign(owner, key, timedelta(days=-1), timedelta(days=300))
            made[site] = Identity(site, self.study, tuple(sites), certificate, key, self.certificate)
        return made

    def _sign(
        self,
        owner: str,
        key: ec.EllipticCurvePrivateKey,
        begins: timedelta,
        ends: timedelta,
        is_authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        draft = x509.CertificateBuilder(issuer_name=self._name, subject_name=_name(owner), public_key=key.public_key())
        draft = draft.serial_number(x509.random_serial_number()).not_valid_before(now + begins)
        draft = draft.not_valid_after(now + ends).add_extension(
            x509.BasicConstraints(is_authority, None), critical=True
        )
        draft = draft.add_extension(x509.SubjectAlternativeName([x509.DNSName(owner)]), critical=False)
        return draft.sign(self._key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def copy_kit(kit: Kit, folder: Path, server: str | None = None) -> Kit:
    """Copy a kit, perhaps with another server to connect to."""
    copy = Kit.load(shutil.copytree(kit.path, folder))
    return copy._replace(server=server or kit.server)


@contextmanager
def listening(kit: Kit | None, greeting: bytes = b"\0\0\0\4\0\0\0\0\0") -> Iterator[int]:
    """Listen on a free port, with a server kit's certificate for those of its authority, or in clear; give the port."""
    context = None
    if kit is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate_file(kit), key_file(kit))
        context.load_verify_locations(authority_file(kit))
        context.verify_mode = ssl.CERT_REQUIRED

    def serve() -> None:
        while True:
            try:
                plain, _ = door.accept()
            except OSError:
                return  # closed
            with plain, suppress(OSError):
                plain.settimeout(5.0)
                speaker = plain if context is None else context.wrap_socket(plain, server_side=True)
                with speaker:
                    speaker.sendall(greeting)
                    while speaker.recv(4096):
                        pass

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield door.getsockname()[1]
        door.shutdown(socket.SHUT_RDWR)
    thread.join()
