"""What may follow `--hosts`, and the keys that are remembered."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from app.errors import UserError
from app.extras.hosts.hostfile import KEYS_FILE, parse_hosts, read_keys, requested_hosts
from app.paths import config_path
from app.protocol.hosts import WORKER_PORT, Host
from tests.tables import table

KEYS = {"10.0.0.2": "k2", "10.0.0.3": "k3", "10.0.0.9:9000": "k9"}


def refusal(text: str, keys: dict[str, str] = KEYS) -> str:
    with pytest.raises(UserError) as refused:
        parse_hosts(text, keys)
    return str(refused.value)


@table(
    "text, host",
    [
        ("key@10.0.0.7", Host("10.0.0.7", WORKER_PORT, "key")),
        ("key@studio.local:9000", Host("studio.local", 9000, "key")),
        ("k@ey@10.0.0.7", Host("10.0.0.7", WORKER_PORT, "k@ey")),
        ("10.0.0.2", Host("10.0.0.2", WORKER_PORT, "k2")),
        ("10.0.0.9:9000", Host("10.0.0.9", 9000, "k9")),
        ("10.0.0.9", Host("10.0.0.9", 9000, "k9")),
        ("new@10.0.0.2", Host("10.0.0.2", WORKER_PORT, "new")),
    ],
)
def test_a_worker_is_named_by_address_and_key(text: str, host: Host) -> None:
    assert parse_hosts(text, KEYS).others == (host,)


def test_workers_have_their_ranks_in_the_order_in_which_they_are_typed() -> None:
    hosts = parse_hosts("10.0.0.3, a@10.0.0.7,10.0.0.2", KEYS)
    assert [host.address for host in hosts.others] == ["10.0.0.3", "10.0.0.7", "10.0.0.2"]
    assert hosts.size == 4


@table(
    "text, sentence",
    [
        ("", "--hosts names no machine: run `specchat worker` there"),
        ("10.0.0.2,", "'' is not a valid address: use KEY@ADDRESS"),
        ("@10.0.0.2", "The key before @10.0.0.2 is missing: run `specchat worker` there"),
        ("10.0.0.4", "The key of 10.0.0.4 is not known: run `specchat worker` there"),
        ("10.0.0.2:9000", "The key of 10.0.0.2:9000 is not known"),
        ("secret@10.0.0.4:0", "0 is not a valid port: use one from 1 to 65,535"),
        ("secret@10.0.0.4:65536", "65536 is not a valid port"),
        (
            "secret@fe80::1",
            "'fe80::1' cannot be used: MLX's ring does not support IPv6: start the worker",
        ),
        ("secret@[fe80::1%en5]:9000", "'[fe80::1%en5]:9000' cannot be used: MLX's ring does not"),
        ("[::1]", "'[::1]' cannot be used: MLX's ring does not support IPv6"),
        ("secret@[10.0.0.x]", "is not a valid address"),
        ("secret@a b", "'a b' is not a valid address"),
        ("10.0.0.2,new@10.0.0.2", "10.0.0.2 is named twice: name each machine once"),
        ("10.0.0.9,10.0.0.9:9000", "10.0.0.9:9000 is named twice"),
        ("/no/such", "'/no/such' is not a valid address"),
        ("a\0b", "is not a valid address"),
        ("x" * 5000, "is not known"),
    ],
)
def test_what_cannot_be_used_is_refused_with_advice_and_without_the_key(
    text: str, sentence: str
) -> None:
    refused = refusal(text)
    assert sentence in refused
    assert "secret" not in refused


def test_a_key_is_typed_once(home: Path) -> None:
    path = config_path() / KEYS_FILE
    requested_hosts("key@10.0.0.7:9000,other@10.0.0.8")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_keys(path) == {"10.0.0.7:9000": "key", "10.0.0.8": "other"}
    before = path.stat().st_mtime_ns
    assert [host.key for host in requested_hosts("10.0.0.7,10.0.0.8").others] == ["key", "other"]
    assert path.stat().st_mtime_ns == before
    requested_hosts("newer@10.0.0.7:9000")
    assert read_keys(path) == {"10.0.0.7:9000": "newer", "10.0.0.8": "other"}


@table("damage", ["", "[]", "{", '{"10.0.0.2": 7}', '{"a b": "k"}', "\xff"])
def test_damaged_keys_are_one_sentence(home: Path, damage: str) -> None:
    path = config_path() / KEYS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(damage.encode("latin-1"))
    with pytest.raises(UserError, match="cannot be read: delete that file, and enter each"):
        requested_hosts("10.0.0.2")


def test_a_folder_that_cannot_be_written(home: Path) -> None:
    config_path().parent.mkdir(parents=True)
    config_path().write_text("a file")
    with pytest.raises(UserError, match=r"make that folder writable|delete that file"):
        requested_hosts("key@10.0.0.2")
