"""What is on the disk after a sync, and on which systems that takes more than fsync."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from app.util.atomic_files import sync, sync_path

FULL = 51


@pytest.mark.parametrize("supported", [True, False], ids=["supported", "not by this file system"])
def test_on_a_mac_a_sync_reaches_the_disk_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supported: bool
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL, raising=False)
    error = None if supported else OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    full = mock.Mock(side_effect=error)
    monkeypatch.setattr(fcntl, "fcntl", full)
    plain = mock.Mock()
    monkeypatch.setattr(os, "fsync", plain)
    with (tmp_path / "file").open("wb") as file:
        sync(file.fileno())
        full.assert_called_once_with(file.fileno(), FULL)
    sync_path(tmp_path)
    assert full.call_count == 2
    assert plain.call_count == (0 if supported else 2)


def test_a_disk_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=error))
    with pytest.raises(OSError, match=r"Input/output"):
        sync_path(tmp_path)


def test_nothing_else_in_the_app_syncs_by_itself() -> None:
    """Three places may: the log of the stress test, and files that one sync covers."""
    root = Path(__file__).resolve().parents[2]
    command = ["git", "-c", "safe.directory=*", "grep", "-l", "os.fsync", "--", "app"]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    assert set(found.split()) == {
        "app/cli/stress.py",
        "app/engine/cache/snapshot.py",
        "app/store/attachments.py",
        "app/util/atomic_files.py",
    }
