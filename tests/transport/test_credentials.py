"""Admission of peers according to the key folder, whose brief absence changes nothing."""

import base64
import errno
import functools
import os
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from kit.allocations import peak_of
from kit.failing import failing

from tmrl_like.base.files import disk
from tmrl_like.errors import CredentialsError
from tmrl_like.transport import Identity, KeyFolder
from tmrl_like.transport.credentials import AuthorizedKeys


@pytest.fixture
def folder(tmp_path):
    folder = KeyFolder(tmp_path / "keys")
    folder.server_keys()
    return folder


@pytest.fixture
def keys(folder):
    """The keys that may connect to the server of `folder`."""
    return AuthorizedKeys(folder)


@pytest.fixture
def car(tmp_path):
    """The folder of another machine, which has no key yet."""
    return KeyFolder(tmp_path / "car")


def names_at(keys, *times):
    """Return the names of the keys that may connect once the folder was read at these times."""
    for now in times:
        keys.refresh(now=now)
    return {identity.name for identity in keys.identities.values()}


@pytest.fixture
def mount(tmp_path, monkeypatch):
    """A file system without files, which cannot be removed or replaced."""
    (tmp_path / "mount" / "lost+found").mkdir(parents=True)
    monkeypatch.setattr(Path, "rmdir", failing(errno.EBUSY))
    return KeyFolder(tmp_path / "mount")


@pytest.fixture(params=["nothing", "a mount"])
def place(request, tmp_path):
    """A folder for keys, of which nothing is there yet, or a mount."""
    if request.param == "a mount":
        return request.getfixturevalue("mount")
    return KeyFolder(tmp_path / "home" / "keys")


def test_one_set_of_keys_is_made_whoever_comes_first(place):
    reads = [place.server_keys, place.peer_keys] * 4
    with ThreadPoolExecutor(len(reads)) as threads:
        found = list(threads.map(lambda read: read(), reads))
    server, peer = found[:2]
    assert found == [server, peer] * 4
    assert server.curve_public == peer.server_curve_public
    assert AuthorizedKeys(place).find(peer.curve_public) == Identity("local", peer.roles)


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_no_secret_is_ever_readable_by_others(tmp_path, monkeypatch):
    keys = tmp_path / "keys"
    modes = []
    operations = {name: getattr(disk, name) for name in ("open", "write", "sync", "rename")}

    def watched(name, *arguments):
        done = operations[name](*arguments)
        if keys.exists():
            secret = (keys, *keys.glob("*json*"), *keys.glob(".*"))
            modes.extend(path.stat().st_mode & 0o077 for path in secret)
        return done

    for name in operations:
        monkeypatch.setattr(disk, name, functools.partial(watched, name))
    umask = os.umask(0)
    try:
        KeyFolder(keys).server_keys()
    finally:
        os.umask(umask)
    assert len(modes) > 10
    assert set(modes) == {0}


def test_a_folder_of_other_things_is_no_key_folder(mount):
    (mount.path / "notes.txt").touch()
    with pytest.raises(
        CredentialsError, match=r"cannot write keys to .*mount: Directory not empty"
    ):
        mount.peer_keys()
    assert {path.name for path in mount.path.iterdir()} == {"notes.txt", "lost+found"}


def test_a_key_that_joins_stays_although_keys_were_not_made_to_the_end(folder, mount, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", failing(errno.EIO))
        with pytest.raises(CredentialsError, match="Input/output error"):
            mount.peer_keys()
    joined = mount.join(folder.invite("car"))
    assert mount.peer_keys() == joined


def test_an_invited_key_is_seen_and_revoked_by_two_reads_that_lack_it_a_second_apart(folder, keys):
    folder.invite("car")
    assert names_at(keys, 0.0) == {"local", "car"}
    folder.revoke("car")
    assert names_at(keys, 1.0, 1.1, 1.9) == {"local", "car"}
    assert names_at(keys, 2.0) == {"local"}


def is_away(folder, patch):
    folder.path.rename(folder.path.with_name("away"))


def is_being_copied(folder, patch):
    """Make a folder that is being copied: `authorized` exists, but is empty, and `server.json` is
    missing.
    """
    is_away(folder, patch)
    (folder.path / "authorized").mkdir(parents=True)


def cannot_be_read(folder, patch):
    patch.setattr(os, "scandir", failing(errno.EIO))
    patch.setattr(Path, "read_bytes", failing(errno.EIO))


@pytest.mark.fault("disk", "the key folder is away for a moment", "nobody is revoked")
@pytest.mark.fault(
    "resources",
    "the server has no descriptor left to read keys",
    "the keys stay as they were read last",
)
@pytest.mark.fault(
    "disk", "the disk with the keys fails (EIO)", "the keys stay as they were read last"
)
@pytest.mark.parametrize("trouble", [is_away, is_being_copied, cannot_be_read])
def test_a_moment_without_the_folder_revokes_nobody(folder, keys, caplog, monkeypatch, trouble):
    with monkeypatch.context() as patch:
        trouble(folder, patch)
        for now in (1.0, 2.0, 3.0):
            keys.refresh(now=now)
            assert keys.find("x" * 40) is None
    assert names_at(keys) == {"local"}
    assert caplog.text.count("cannot read") == (trouble is not is_being_copied)


@pytest.mark.skipif(os.name != "posix", reason="links need privileges on Windows")
def test_a_link_to_nowhere_in_the_folder_keeps_no_key_and_no_revocation(folder, keys):
    """Emacs makes one while it edits a file."""
    folder.invite("car")
    keys.refresh(now=0.0)
    (folder.path / "authorized" / ".#car.json").symlink_to("somebody@host.4242")
    folder.revoke("car")
    folder.invite("drone")
    assert names_at(keys, 1.0, 2.0) == names_at(AuthorizedKeys(folder)) == {"local", "drone"}


@pytest.mark.fault("disk", "a key file is half written", "the key that was in it stays")
def test_a_file_half_written_keeps_the_key_that_was_in_it(folder, keys, caplog):
    file = folder.path / "authorized" / "local.json"
    before = file.read_text().partition(',"crc32"')[0] + "}"
    file.write_text('{"roles": ["wor')
    assert names_at(keys, 1.0, 2.0, 3.0) == {"local"}
    assert len(caplog.records) == 1
    file.write_text(before.replace('"worker",', ""))
    keys.refresh(now=4.0)
    assert list(keys.identities.values()) == [Identity("local", ("trainer",))]


def test_what_follows_from_a_damaged_file_is_said_again_when_it_is_another_thing(
    folder, keys, caplog
):
    folder.invite("car")
    file = folder.path / "authorized" / "car.json"
    whole = file.read_text()
    for now, content in enumerate(["{", whole, "{"]):
        file.write_text(content)
        keys.refresh(now=float(now))
    assert [line.rpartition("; ")[2] for line in caplog.messages] == [
        "this key is refused",
        "the key that was in it stays valid",
    ]


def test_another_key_under_the_same_name_counts_at_once_here_too(folder, keys):
    folder.revoke("local")
    joined = folder.join(folder.invite("local"))
    assert folder.peer_keys() == joined
    keys.refresh(now=0.1)
    assert keys.identities == {joined.curve_public: Identity("local", ("worker",))}


def test_a_certificate_holds_where_the_clock_was_never_set_and_for_a_century(folder):
    certificate = x509.load_pem_x509_certificate(folder.server_keys().tls_certificate.encode())
    assert certificate.not_valid_before_utc.timestamp() == 0
    assert certificate.not_valid_after_utc.year > 2100


def test_a_line_that_is_cut_off_is_refused(folder, car):
    line = folder.invite("car")
    assert len(line) < 1000
    for cut in (line[:-5], f"{line[:40]}é"):
        with pytest.raises(CredentialsError, match="the line is incomplete or damaged"):
            car.join(cut)
    assert not (car.path / "peer.json").exists()


def test_a_damaged_line_never_gives_other_keys(folder, car):
    line = folder.invite("car")
    keys = car.join(line)
    refused = 0
    for place in range(len("tmrl-like-key-2."), len(line)):
        wrong = "B" if line[place] == "A" else "A"
        try:
            # a few bits of a line carry nothing, such as those that fill up its last byte
            assert car.join(f"{line[:place]}{wrong}{line[place + 1 :]}") == keys
        except CredentialsError:
            refused += 1
    assert refused > 700


def test_a_line_that_expands_without_end_is_refused_before_it_fills_the_memory(folder, car):
    line = folder.invite("car")
    bomb = base64.urlsafe_b64encode(zlib.compress(bytes(64 << 20))).decode().rstrip("=")

    def refused():
        with pytest.raises(CredentialsError, match="the line is incomplete or damaged"):
            car.join(line.partition(".")[0] + "." + bomb)

    assert peak_of(refused)[1] < 8 << 20


def test_unknown_keys_do_not_make_the_folder_be_read_again_and_again(keys, monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 1.0)
    reads, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: reads.append(path) or scandir(path))
    for _ in range(1000):
        assert keys.find("x" * 40) is None
    assert 0 < len(reads) <= 100
