"""A kit with which nobody could connect is refused before anything starts, with what is wrong and what to do."""

import shutil
from datetime import UTC, datetime

import pytest

from fahmc.engines.flare.credentials import check_credentials, valid_window
from fahmc.engines.flare.processes import Participant, find_processes
from fahmc.engines.flare.session import Session
from fahmc.errors import SettingsError
from kit_forge import Authority, copy_kit


@pytest.fixture(params=["server", "north", "analyst"])
def kit(made_kits, tmp_path, request):
    return copy_kit(made_kits[request.param], tmp_path / request.param)


def test_a_kit_as_it_is_made_is_fine(kit):
    check_credentials(kit)
    days = (valid_window(kit).ends - datetime.now(UTC)).days
    assert 350 <= days <= 360


def refused(kit, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        check_credentials(kit)
    with pytest.raises(SettingsError, match=words):
        Session(kit, 1.0) if kit.role == "analyst" else Participant(kit).start()
    assert find_processes(kit) == [] and not (kit.path / "fahmc-state.json").exists()


def test_dates(kit):
    authority = Authority()
    authority.certify(kit, -30.0, -1.0)
    refused(kit, r"has expired: it holds from 20\d\d-\d\d-\d\d \d\d:\d\d UTC to .* New kits are needed, for everybody")
    authority.certify(kit, 1.0, 30.0)
    refused(kit, r"is not valid yet: it holds from .*, and it is .* UTC here\. Set this machine's clock right")
    authority.certify(kit)
    check_credentials(kit)


def test_a_key_of_somebody_else(kit, made_kits):
    own = next(kit.startup.glob("*.key"))
    shutil.copy(made_kits["south"].startup / "client.key", own)
    refused(kit, rf"{own.name} is not the key of {own.stem}\.crt beside it\. Get the kit anew")
    own.write_text("-----BEGIN PRIVATE KEY-----\nrubbish\n")
    refused(kit, "holds no private key that can be read")


def test_files_of_two_kits(kit, made_kits):
    before = (kit.startup / "rootCA.pem").read_bytes()
    Authority().certify(kit)
    (kit.startup / "rootCA.pem").write_bytes(before)
    refused(kit, r"is not of the authority in rootCA\.pem: files of two kits were mixed")
    Authority().certify(kit, owner="west")
    refused(kit, "is the certificate of 'west', but this is the kit of")


@pytest.mark.parametrize("what", ["*.crt", "*.key", "rootCA.pem", "fed_*.json"])
def test_missing_files(kit, what):
    (file,) = kit.startup.glob(what)
    file.unlink()
    refused(kit, rf"is not complete: startup/{file.name} is missing\. Get the kit anew")


def test_what_is_no_certificate(kit):
    (file,) = kit.startup.glob("*.crt")
    file.write_text("hello")
    refused(kit, rf"{file.name} holds no certificate that can be read")
    file.unlink()
    file.mkdir()
    refused(kit, rf"{file.name} cannot be read: Is a directory")
