"""Who may ask: the token, and which names and pages."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from app.errors import UserError
from app.extras.serve.http import Access, is_local, read_token
from tests.tables import table


def test_the_token_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "config" / "token"
    token, is_new = read_token(path)
    assert is_new
    assert len(token) > 30
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_token(path) == (token, False)


def test_a_token_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--no-token"):
        read_token(tmp_path / "file" / "token")


HERE, KEY = {"host": "127.0.0.1:1"}, {"authorization": "Bearer secret"}


@table(
    "headers, status",
    [
        ({**HERE, **KEY}, None),
        ({**HERE, "authorization": "bearer secret"}, None),
        ({**HERE, "authorization": "BEARER  secret "}, None),
        ({**HERE, "authorization": "secret"}, None),
        ({**HERE, "x-api-key": "secret"}, None),
        ({**HERE, "api-key": "secret"}, None),
        ({**HERE, "api-key": "wrong"}, 401),
        ({**HERE, **KEY, "x-api-key": "another"}, None),
        ({**HERE, "x-api-key": "secret", "authorization": "Bearer another"}, None),
        ({"host": "host.docker.internal:1", **KEY}, None),
        ({"host": "box.example", **KEY}, None),
        ({**HERE, **KEY, "origin": "app://obsidian.md"}, None),
        ({**HERE, **KEY, "origin": "tauri://localhost"}, None),
        ({**HERE, **KEY, "origin": "vscode-webview://1a"}, None),
        ({**HERE, **KEY, "origin": "null"}, None),
        ({**KEY}, None),
        ({**HERE}, 401),
        ({**HERE, "authorization": "Bearer wrong"}, 401),
        ({**HERE, "authorization": "Bearer sécret"}, 401),
        ({**HERE, "authorization": "Bearer"}, 401),
        ({**HERE, "authorization": "Basic secret"}, 401),
        ({**HERE, "authorization": "", "x-api-key": ""}, 401),
        ({"host": "host.docker.internal", "origin": "app://obsidian.md"}, 401),
    ],
)
def test_the_token_decides(headers: dict[str, str], status: int | None) -> None:
    refusal = Access("127.0.0.1", "secret").refusal(headers)
    assert (refusal and refusal[0]) == status


OPEN_TO_NONE = [
    {"host": "evil.example"},
    {"host": "127.0.0.1.evil.example"},
    {"host": "["},
    {},
    {**HERE, "origin": "http://evil.example"},
    {**HERE, "origin": "http://127.0.0.1:2"},
    {**HERE, "origin": "null"},
]


@table("headers", OPEN_TO_NONE)
@table("token", [None, "secret"])
def test_what_needs_no_token_is_not_for_web_pages(
    headers: dict[str, str], token: str | None
) -> None:
    refusal = Access("127.0.0.1", token).refusal(headers, needs_token=False)
    assert refusal is not None
    assert refusal[0] == 403
    assert Access("127.0.0.1", token).refusal(HERE, needs_token=False) is None


def test_without_a_token_names_and_pages_are_still_checked() -> None:
    access = Access("127.0.0.1", None)
    assert access.refusal({"host": "localhost"}) is None
    assert access.refusal({"host": "evil.example"}) is not None
    assert access.refusal({"host": "localhost", "origin": "http://evil.example"}) is not None


def test_a_server_that_is_open_to_all_is_not_open_to_every_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Box")
    access = Access("0.0.0.0", None)
    for host in ("192.168.1.5:8321", "[fe80::1]:8321", "localhost", "box", "box.local:8321"):
        assert access.refusal({"host": host}) is None
    refusal = access.refusal({"host": "evil.example", "origin": "http://evil.example"})
    assert refusal is not None
    assert "use its address" in refusal[1]
    with_token = Access("0.0.0.0", "secret")
    assert with_token.refusal({"host": "box.example", "x-api-key": "secret"}) is None


def test_only_loopback_addresses_are_local() -> None:
    assert all(map(is_local, ("127.0.0.1", "127.0.0.2", "::1", "localhost")))
    assert not any(map(is_local, ("0.0.0.0", "::", "192.168.1.5", "example.org")))
