"""The line from a kit to its server, tried without FLARE: name, port, and TLS with the kit's own certificate.

FLARE tries again and again and does not say why it fails. What a handshake fails by is told here in a sentence.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Literal

from fahmc.engines.flare.credentials import authority_file, certificate_file, common_name, key_file
from fahmc.engines.flare.kits import Kit
from fahmc.errors import FederationError, SettingsError

Reason = Literal["name", "refused", "timeout", "network", "stranger", "authority", "dates", "host", "unwelcome"]
_REACHED: tuple[Reason, ...] = ("stranger", "authority", "dates", "host", "unwelcome")
# OpenSSL's codes of a certificate that does not verify: not yet valid and expired; of a chain that does not end at our
# authority; of another host.
_DATES, _AUTHORITY, _HOST = (9, 10), (7, 18, 19, 20, 21), (62, 64)


class LineFault(FederationError):
    """Why the server cannot be spoken to, and what to do."""

    def __init__(self, reason: Reason, words: str, advice: str):
        super().__init__(f"{words}. {advice}")
        self.reason, self.words, self.advice = reason, words, advice

    @property
    def is_refusal(self) -> bool:
        """Whether somebody was there, and was the wrong one or did not want us."""
        return self.reason in _REACHED


def find_fault(kit: Kit, seconds: float, host: str | None = None) -> LineFault | None:
    """Connect once as the kit's owner; return what was wrong, if anything was."""
    try:
        resolve(kit, host)
        shake_hands(kit, connect(kit, seconds, host), seconds)
    except LineFault as fault:
        return fault
    return None


def resolve(kit: Kit, host: str | None = None) -> list[str]:
    """Return the addresses of the server's name."""
    name, port = kit.address
    try:
        found = socket.getaddrinfo(host or name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise LineFault(
            "name",
            f"the server's name {name!r} cannot be resolved ({getattr(error, 'strerror', None) or error})",
            "Check the network and the name with whoever made the kits; /etc/hosts may give it.",
        ) from error
    return sorted({str(entry[4][0]) for entry in found})


def connect(kit: Kit, seconds: float, host: str | None = None) -> socket.socket:
    """Open a TCP connection to the server."""
    name, port = kit.address
    try:
        return socket.create_connection((host or name, port), timeout=seconds)
    except ConnectionRefusedError as error:
        raise LineFault(
            "refused",
            f"nobody listens at {kit.server} (connection refused)",
            "Is the server started? Has it another port, or does a firewall refuse it?",
        ) from error
    except TimeoutError as error:
        raise LineFault(
            "timeout",
            f"{kit.server} does not answer within {seconds:g} s",
            f"Is the server's machine on, and may this one connect out to port {port}? A firewall may drop it.",
        ) from error
    except OSError as error:
        raise LineFault(
            "network", f"{kit.server} cannot be reached ({error.strerror or error})", "Check the network."
        ) from error


def shake_hands(kit: Kit, plain: socket.socket, seconds: float) -> None:
    """Do the handshake of TLS with the kit's certificate over a new connection, and wait for the server's greeting."""
    context = ssl.create_default_context(cafile=str(authority_file(kit)))
    context.load_cert_chain(certificate_file(kit), key_file(kit))
    context.set_alpn_protocols(["h2"])
    with plain:
        plain.settimeout(seconds)
        is_trusted = False
        try:
            with context.wrap_socket(plain, server_hostname=kit.address[0]) as secure:
                is_trusted = True
                # A server that takes our certificate greets at once; in TLS 1.3 it refuses only after the handshake.
                if not secure.recv(1):
                    raise _unwelcome(kit, "it closed the connection without a word")
        except ssl.SSLCertVerificationError as error:
            raise _other_server(kit, error, seconds) from error
        except TimeoutError as error:
            raise LineFault(
                "timeout",
                f"{kit.server} took the connection but said nothing within {seconds:g} s",
                "The server may be busy or stopped, or another program listens there.",
            ) from error
        except OSError as error:
            how = _in_words(error)
            if is_trusted or "alert" in how:
                raise _unwelcome(kit, how) from error
            if isinstance(error, ConnectionError | ssl.SSLEOFError):
                words, advice = (
                    "broke off the connection",
                    "The server may be stopping; or another program has its port.",
                )
                raise LineFault("network", f"{kit.server} {words} ({how})", advice) from error
            words, advice = f"what listens at {kit.server} does not speak TLS", "Another program has the server's port."
            raise LineFault("stranger", f"{words} ({how})", advice) from error


def _in_words(error: OSError) -> str:
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    return (error.reason or str(error)).lower().replace("_", " ").removeprefix("sslv3 ").removeprefix("tlsv1 ")


def _unwelcome(kit: Kit, how: str) -> LineFault:
    return LineFault(
        "unwelcome",
        f"the server at {kit.server} does not take this kit's certificate ({how})",
        "Its clock may be wrong, or its kit is not of this study; `fahmc federation doctor` at the server tells.",
    )


def _other_server(kit: Kit, error: ssl.SSLCertVerificationError, seconds: float) -> LineFault:
    """Say what is wrong with a server whose certificate does not verify."""
    if error.verify_code in _DATES:
        state = "has expired" if error.verify_code == _DATES[1] else "is not valid yet"
        return LineFault(
            "dates",
            f"the certificate of the server at {kit.server} {state}",
            "Check this machine's clock; if it is right, new kits are needed, for everybody.",
        )
    if error.verify_code in _HOST:
        return LineFault(
            "host",
            f"the server at {kit.server} has a certificate for another host name",
            "Another server of the study's authority listens there; check the name with whoever made the kits.",
        )
    if error.verify_code in _AUTHORITY:
        study = _study_of_server(kit, seconds)
        if study == kit.study:
            words = (
                f"the server at {kit.server} has a certificate of another authority, though of a study {study!r} too"
            )
            return LineFault("authority", words, "The kits were made anew: all have to use those made together.")
        words = f"the server at {kit.server} is of another authority{f', of study {study!r}' if study else ''}"
        return LineFault("authority", f"{words}; this kit is of study {kit.study!r}", "Another server has its port.")
    return LineFault(
        "authority",
        f"the certificate of the server at {kit.server} cannot be trusted ({error.verify_message})",
        "Check with whoever made the kits.",
    )


def _study_of_server(kit: Kit, seconds: float) -> str:
    """Return the study in a server's certificate, without trusting it."""
    from cryptography import x509

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # Whoever listens there may say anything, or nothing: this is for a sentence only.
    with suppress(OSError, ValueError, FederationError, SettingsError):
        with connect(kit, seconds) as plain, context.wrap_socket(plain) as secure:
            certificate = x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"")
            return common_name(certificate, of_issuer=True)[:80]
    return ""
