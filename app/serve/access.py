"""Who may use the server: the token, and which Host and Origin a request may have."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from pathlib import Path
from urllib.parse import urlsplit

from app.errors import UserError
from app.util.regular_files import make_secret, read_secret

NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
"""What this machine is called by itself."""
ASKS_FIRST = "access-control-request-method"
"""A header of the request by which a browser asks whether a page may send another."""


def read_token(path: Path) -> tuple[str, bool]:
    """The token in a file, and whether it was made now. Raises UserError."""
    try:
        if token := read_secret(path):
            return token, False
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The token in '{path}' cannot be read", "delete that file") from error
    try:
        return make_secret(path), True
    except OSError as error:
        raise UserError(
            f"The token cannot be written to '{path}' ({error.strerror})",
            "make that folder writable, or choose --no-token",
        ) from error


def is_local(host: str) -> bool:
    """Whether an address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """Checks requests. `host` is the address that the server listens on, `token` None without one.

    The token decides: with it, a request may have any Host and Origin. What needs none is also
    within reach of web pages that the user visits, under names that lead here (DNS rebinding), so
    there both are checked."""

    def __init__(self, host: str, token: str | None) -> None:
        self._token, self._is_local = token, is_local(host)
        own = socket.gethostname().lower()
        more = frozenset() if self._is_local else {own, f"{own}.local"}
        self._names = NAMES | {host.lower()} | more

    def for_pages(self, headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
        """Headers that let a page of another origin read the answer, where the token decides; its
        browser sends no token that the page does not know (CORS)."""
        if self._token is None or "origin" not in headers:
            return []
        found = [(b"access-control-allow-origin", b"*")]
        if ASKS_FIRST in headers:
            wanted = headers.get("access-control-request-headers", "").encode("latin-1")
            found += [
                (b"access-control-allow-methods", b"GET, POST"),
                (b"access-control-allow-headers", wanted),
                (b"access-control-allow-private-network", b"true"),
            ]
        return found

    def refusal(self, headers: dict[str, str], needs_token: bool = True) -> tuple[int, str] | None:
        """The status and the sentence with which a request is refused; None if it is not. The names
        of `headers` are in lower case."""
        if self._token is not None:
            if any(_equal(given, self._token) for given in _tokens(headers)):
                return None
            if needs_token:
                return (
                    401,
                    "The token is missing or wrong: `specchat serve` says which file has it.",
                )
        host = _name(f"//{headers.get('host', '')}")
        if not self._may_be_called(host):
            use = "127.0.0.1" if self._is_local else "its address"
            return 403, f"The host name {host[:100]!r} is not this machine's: use {use}."
        origin = headers.get("origin")
        if origin is not None and origin.rpartition("//")[2] != headers.get("host"):
            return 403, "Requests from web pages are refused."
        return None

    def _may_be_called(self, host: str) -> bool:
        if host in self._names:
            return True
        return not self._is_local and (self._token is not None or _is_address(host))


def _tokens(headers: dict[str, str]) -> list[str]:
    """What a request gives as its token: as Anthropic's clients do, as OpenAI's, or without the
    scheme's name."""
    given = headers.get("authorization", "").strip()
    scheme, _, credentials = given.partition(" ")
    return [
        headers.get("x-api-key", "").strip(),
        credentials.strip() if scheme.lower() == "bearer" else given,
    ]


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
