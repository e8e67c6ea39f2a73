"""What may follow `--hosts`, and the keys that are remembered."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from app.errors import UserError
from app.hosts.hostfile import KEYS_FILE, MAX_BYTES, parse_hosts, read_keys, requested_hosts
from app.paths import config_path
from app.protocol.hosts import WORKER_PORT, Host, Link

KEYS = {"10.0.0.2": "k2", "10.0.0.3": "k3", "10.0.0.9:9000": "k9"}


def machines(count: int = 3, **rows: list[Any]) -> list[dict[str, Any]]:
    """Entries of a file; `rows` are values of a key, one for each."""
    entries: list[dict[str, Any]] = [
        {"ssh": f"mac{number}.local", "ips": [f"10.0.0.{number}"]} for number in range(1, count + 1)
    ]
    for key, values in rows.items():
        for entry, value in zip(entries, values, strict=True):
            entry[key] = value
    return entries


def written(tmp_path: Path, content: object) -> str:
    path = tmp_path / "hosts.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def refusal(text: str, keys: dict[str, str] = KEYS) -> str:
    with pytest.raises(UserError) as refused:
        parse_hosts(text, keys)
    return str(refused.value)


# --------------------------------------------------------------------------- typed workers


@pytest.mark.parametrize(
    ("text", "host"),
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
    assert (hosts.size, hosts.link, hosts.own_ips) == (4, Link.RING, ())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "--hosts names no machine: run `specchat worker` there"),
        ("10.0.0.2,", "'' is not the address of a machine: use the line"),
        ("@10.0.0.2", "The key before @10.0.0.2 is missing: run `specchat worker` there"),
        ("10.0.0.4", "The key of 10.0.0.4 is not known: run `specchat worker` there"),
        ("10.0.0.2:9000", "The key of 10.0.0.2:9000 is not known"),
        ("secret@10.0.0.4:0", "0 is not a port: use one from 1 to 65,535"),
        ("secret@10.0.0.4:65536", "65536 is not a port"),
        ("secret@fe80::1", "'fe80::1' cannot be used: MLX's ring knows no IPv6: start the worker"),
        ("secret@[fe80::1%en5]:9000", "'[fe80::1%en5]:9000' cannot be used: MLX's ring knows no"),
        ("[::1]", "'[::1]' cannot be used: MLX's ring knows no IPv6"),
        ("secret@[10.0.0.x]", "is not the address of a machine"),
        ("secret@a b", "'a b' is not the address of a machine"),
        ("10.0.0.2,new@10.0.0.2", "10.0.0.2 is named twice: name each machine once"),
        ("10.0.0.9,10.0.0.9:9000", "10.0.0.9:9000 is named twice"),
        ("hosts.json", "There is no file 'hosts.json': use KEY@ADDRESS, or the path"),
        ("/no/such", "There is no file '/no/such'"),
        ("a\0b", "is not the address of a machine"),
        ("x" * 5000, "is not known"),
    ],
)
def test_what_cannot_be_used_is_refused_with_advice_and_without_the_key(
    text: str, sentence: str
) -> None:
    refused = refusal(text)
    assert sentence in refused
    assert "secret" not in refused


# --------------------------------------------------------------------------- files


def test_a_file_of_mlx_launch_names_this_machine_first(tmp_path: Path) -> None:
    entries = machines(rdma=[[], [], []])
    hosts = parse_hosts(written(tmp_path, entries), KEYS)
    assert hosts.own_ips == ("10.0.0.1",)
    assert hosts.others == (
        Host("10.0.0.2", WORKER_PORT, "k2", ("10.0.0.2",)),
        Host("10.0.0.3", WORKER_PORT, "k3", ("10.0.0.3",)),
    )
    as_object = {"backend": "ring", "envs": ["MLX_METAL_FAST_SYNCH=1"], "hosts": entries}
    typed = parse_hosts(written(tmp_path, as_object), KEYS)
    assert typed.others == hosts.others
    assert typed.variables == (("MLX_METAL_FAST_SYNCH", "1"),)


def test_a_machine_is_reached_where_its_worker_was_before(tmp_path: Path) -> None:
    entries = [{"ssh": "here"}, {"ssh": "me@mac2.local", "ips": ["10.0.5.2"]}]
    path = written(tmp_path, entries)
    (host,) = parse_hosts(path, {"mac2.local:9000": "k"}).others
    assert host == Host("mac2.local", 9000, "k", ("10.0.5.2",))
    assert "The key of 10.0.5.2 is not known" in refusal(path)
    (host,) = parse_hosts(written(tmp_path, [{}, {"ssh": "10.0.0.2"}]), KEYS).others
    assert host == Host("10.0.0.2", WORKER_PORT, "k2")


def test_rdma_devices_and_their_ring(tmp_path: Path) -> None:
    rdma = [[None, "en2", ["en3", "en4"]], ["en2", None, "en5"], [["en3", "en4"], "en5", None]]
    content = {"backend": "jaccl", "hosts": machines(rdma=rdma)}
    hosts = parse_hosts(written(tmp_path, content), KEYS)
    assert hosts.link is Link.JACCL
    assert json.loads(hosts.rdma) == rdma
    assert hosts.variables == ()
    ring = [
        [None, "a", None, "d"],
        ["a", None, "b", None],
        [None, "b", None, "c"],
        ["d", None, "c", None],
    ]
    content = {"backend": "jaccl-ring", "hosts": machines(4, rdma=ring)}
    hosts = parse_hosts(written(tmp_path, content), KEYS | {"10.0.0.4": "k4"})
    assert (hosts.link, hosts.variables) == (Link.JACCL, (("MLX_JACCL_RING", "1"),))
    assert json.loads(hosts.rdma) == ring


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("7", "it has no list of hosts"),
        ("{}", "it has no list of hosts"),
        ([1, 2], "it has no list of hosts"),
        ([], "it needs an entry for this machine"),
        (machines(1), "it needs an entry for this machine"),
        ({"backend": "mpi", "hosts": machines()}, "the backend 'mpi' is neither ring nor jaccl"),
        ({"backend": ["ring"], "hosts": machines()}, "is neither ring nor jaccl"),
        ([{}, {}], "entry 2 has neither `ips` nor `ssh`"),
        ([{}, {"ssh": 7}], "`ssh` of entry 2 is not a name"),
        ([{}, {"ssh": "-o x"}], "`ssh` of entry 2 is not a name"),
        ([{}, {"ssh": "fe80::1"}], "`ssh` of entry 2 is not a name or an IPv4 address"),
        ([{}, {"ips": "10.0.0.2"}], "`ips` of entry 2 is not a list of IPv4 addresses"),
        ([{}, {"ips": ["fe80::1"]}], "`ips` of entry 2 is not a list of IPv4 addresses"),
        ([{"ips": ["mac1"]}, {"ssh": "10.0.0.2"}], "`ips` of entry 1 is not a list"),
        ({"hosts": machines(), "envs": "MLX_A=1"}, "`envs` is not a list"),
        ({"hosts": machines(), "envs": ["PATH=/x"]}, "'PATH=/x' in `envs` is not NAME=VALUE with"),
        ({"hosts": machines(), "envs": ["MLX_RANK"]}, "'MLX_RANK' in `envs` is not NAME=VALUE"),
        ({"hosts": machines(), "envs": ["MLX_A B=1"]}, "'MLX_A B=1' in `envs`"),
        (
            {"hosts": machines(), "envs": ["MLX_MPI_LIBNAME=/x"]},
            "'MLX_MPI_LIBNAME=/x' in `envs` is not",
        ),
        ({"backend": "jaccl", "hosts": machines()}, "each entry needs `rdma` with 3 devices"),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, content: object, what: str) -> None:
    refused = refusal(written(tmp_path, content))
    assert what in refused
    assert refused.endswith("correct the file, or write it again with `mlx.distributed_config`.")


def test_binary_files_folders_and_unreadable_ones(tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00\x01" * 9)
    assert "it is not JSON" in refusal(str(path))
    assert f"'{tmp_path}' cannot be read (it is not a regular file)" in refusal(str(tmp_path))
    path.write_bytes(b" " * (MAX_BYTES + 1))
    assert "cannot be read (it has more than 1,048,576 bytes)" in refusal(str(path))


def test_the_same_machine_twice_in_a_file(tmp_path: Path) -> None:
    entries = [*machines(2), {"ssh": "x", "ips": ["10.0.0.2"]}]
    assert "10.0.0.2 is named twice" in refusal(written(tmp_path, entries))


# --------------------------------------------------------------------------- stored keys


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


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"10.0.0.2": 7}', '{"a b": "k"}', "\xff"])
def test_damaged_keys_are_one_sentence(home: Path, damage: str) -> None:
    path = config_path() / KEYS_FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(damage.encode("latin-1"))
    with pytest.raises(UserError, match="cannot be read: delete that file, and use the line of"):
        requested_hosts("10.0.0.2")


def test_a_folder_that_cannot_be_written(home: Path) -> None:
    config_path().parent.mkdir(parents=True)
    config_path().write_text("a file")
    with pytest.raises(UserError, match=r"make that folder writable|delete that file"):
        requested_hosts("key@10.0.0.2")
