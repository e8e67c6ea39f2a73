"""Who may use the server: the token, and which Host and Origin a request may have."""

from __future__ import annotations

import hmac
import ipaddress
from pathlib import Path
from urllib.parse import urlsplit

from app.errors import UserError
from app.util.private_file import make_secret, read_secret

NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
"""What this machine is called by itself."""


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
    """Checks requests. `host` is the address that the server listens on, `token` None without
    one."""

    def __init__(self, host: str, token: str | None) -> None:
        self._token = token
        self._names = NAMES | {host} if is_local(host) else None
        """Names that a request may use; None if any: the user opened the server to others."""

    def refusal(self, headers: dict[str, str], needs_token: bool = True) -> tuple[int, str] | None:
        """The status and the sentence with which a request is refused; None if it is not. The names
        of `headers` are in lower case."""
        host = _name(f"//{headers.get('host', '')}")
        if self._names is not None and host not in self._names:
            return 403, f"The host name {host[:100]!r} is not this machine's: use 127.0.0.1."
        origin = headers.get("origin")
        if origin is not None and origin.rpartition("//")[2] != headers.get("host"):
            return 403, "Requests from web pages are refused."
        if self._token is None or not needs_token:
            return None
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(given.strip().encode(), self._token.encode()):
            return None
        return 401, "The token is missing or wrong: `specchat serve` says which file has it."


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
