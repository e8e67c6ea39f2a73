"""`specchat worker`: where it listens, what it prints, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.cli.main import run
from app.extras.hosts import worker_command
from app.extras.hosts.wire import WireError, connect
from app.paths import config_path
from tests.tables import table

ADDRESSES = [("192.168.1.7", "en0"), ("10.0.0.5", "en5")]


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The program, and the line to type on the first machine."""
    command = [sys.executable, "-m", "app", "worker", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def test_it_listens_only_where_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker_command, "own_addresses", lambda: ADDRESSES)
    commands = "`specchat worker 192.168.1.7` (en0) or `specchat worker 10.0.0.5` (en5)."
    assert run(["worker"]) == 2
    refused = capsys.readouterr().err
    assert refused.startswith("specchat: The address to listen on is missing")
    assert refused.endswith(f": {commands}\n")
    for everywhere in ("0.0.0.0", "[::]", ""):
        assert run(["worker", everywhere]) == 2
        assert "listens on one address only: " in capsys.readouterr().err
    monkeypatch.setattr(worker_command, "own_addresses", list)
    assert run(["worker"]) == 2
    assert "connect this machine to a network first" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["::1", "[fe80::1%en5]"])
def test_ipv6_is_refused(home: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["worker", address, "--port", "0"]) == 2
    assert "MLX's ring does not support IPv6: name an IPv4 address" in capsys.readouterr().err


NO_NAMES = ["é." + "x" * 80, "\udcff", "a..b", "a\0b"]


@table("name", NO_NAMES)
def test_a_name_that_no_machine_has(
    name: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["worker", name]) == 2
    refused = capsys.readouterr().err
    assert refused.startswith("specchat: The worker cannot listen at ")
    assert refused.count("\n") == 1


def test_a_port_that_is_taken(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert run(["worker", "127.0.0.1", "--port", port]) == 2
    assert f"The worker cannot listen at 127.0.0.1, port {port}" in capsys.readouterr().err


def test_a_key_that_cannot_be_read(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_path() / worker_command.KEY_FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\xff\x00")
    assert run(["worker", "127.0.0.1", "--port", "0"]) == 2
    assert "cannot be read: delete that file." in capsys.readouterr().err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_prints_what_to_type_and_ends_at_once(
    home: Path, number: signal.Signals, status: int
) -> None:
    with running("127.0.0.1", "--port", "0") as (process, line):
        start, _, hosts = line.rstrip().removesuffix(" specchat").partition("SPECCHAT_HOSTS=")
        assert start == "On the first machine, type: "
        key, _, where = hosts.partition("@")
        address, _, port = where.partition(":")
        path = config_path() / worker_command.KEY_FILE
        assert path.read_text().strip() == key
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(WireError, match="its key is another one"):
            connect(address, int(port), "other")
        connect(address, int(port), key).close()
        assert process.stderr is not None
        assert process.stderr.readline().rstrip() == worker_command.REMARK
        said = process.stderr.readline()
        assert said[8:] == " 127.0.0.1 was refused: it has another key.\n"
        os.kill(process.pid, number)
        assert process.wait(10) == status
        assert "Traceback" not in process.stderr.read()
    with running("127.0.0.1", "--port", "0") as (_, line):
        assert f"={key}@" in line, "the key stays"
