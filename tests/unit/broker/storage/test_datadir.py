"""The data directory belongs to one process and to one user."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from twinbus.broker.storage.data_directory import DataDirectory, read_private, write_private
from twinbus.errors import ConfigurationError, StoreLocked


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_directory_is_refused_twice_in_one_process_and_free_after_close(tmp_path: Path) -> None:
    with DataDirectory(tmp_path), pytest.raises(StoreLocked):
        DataDirectory(tmp_path)
    with DataDirectory(tmp_path):
        pass


def test_everything_is_for_its_owner_only(tmp_path: Path) -> None:
    # Given a directory that others can read
    data = tmp_path / "data"
    data.mkdir(mode=0o755)

    # When it becomes a data directory
    with DataDirectory(data) as directory:
        store_path = directory.namespace_store_path("Shop-1")

    # Then others are shut out, from the directory and from what is in it
    assert mode_of(data) == 0o700
    assert mode_of(store_path.parent) == 0o700
    assert mode_of(data / "lock") == 0o600


def test_a_namespace_keeps_its_place_whatever_the_case_of_its_name(tmp_path: Path) -> None:
    with DataDirectory(tmp_path) as directory:
        assert directory.namespace_store_path("Shop") == directory.namespace_store_path("shop")
        assert directory.namespace_store_path("con").parent.name == "namespace-con"


@pytest.mark.parametrize(
    "name", ["", "a", "..", "a/b", "../x", "a\x00b", "-ab", "ab-", "ärger", "a" * 51, "ab\n", "1ab"]
)
def test_a_name_that_no_namespace_has_never_becomes_a_file(tmp_path: Path, name: str) -> None:
    with DataDirectory(tmp_path) as directory:
        with pytest.raises(ConfigurationError):
            directory.namespace_store_path(name)
        assert [file.name for file in tmp_path.iterdir()] == ["lock"]


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"")

    with pytest.raises(ConfigurationError, match="not a directory"):
        DataDirectory(tmp_path / "data")


def test_a_directory_that_cannot_be_made_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(ConfigurationError, match=r"/file/data'") as caught:
        DataDirectory(tmp_path / "file" / "data")
    assert caught.value.hint


def test_secrets_are_private_from_their_first_byte(tmp_path: Path) -> None:
    # Given a permissive umask
    previous = os.umask(0)
    try:
        write_private(tmp_path / "keys", b"first")
        write_private(tmp_path / "keys", b"second")
    finally:
        os.umask(previous)

    # Then the file is private, whole, and alone
    assert read_private(tmp_path / "keys") == b"second"
    assert mode_of(tmp_path / "keys") == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["keys"]


def test_secrets_that_others_can_read_are_refused(tmp_path: Path) -> None:
    write_private(tmp_path / "keys", b"secret")
    (tmp_path / "keys").chmod(0o640)

    with pytest.raises(ConfigurationError, match=r"mode 640") as caught:
        read_private(tmp_path / "keys")
    assert "secret'" not in str(caught.value)


def test_missing_secrets_are_nothing_and_links_are_not_followed(tmp_path: Path) -> None:
    assert read_private(tmp_path / "keys") is None
    (tmp_path / "keys").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        read_private(tmp_path / "keys")


def test_a_failed_write_keeps_the_old_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given secrets, and a disk that fails
    write_private(tmp_path / "keys", b"old")

    def fail(handle: int) -> None:
        raise OSError("disk")

    monkeypatch.setattr(os, "fsync", fail)

    # When they are to be replaced, then the old ones stay and no draft is left
    with pytest.raises(OSError):
        write_private(tmp_path / "keys", b"new")
    assert read_private(tmp_path / "keys") == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["keys"]
