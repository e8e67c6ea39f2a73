"""How long a download waits for a server, and when it tries again."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_RATE_LIMIT = re.compile(r"\br=0\s*;\s*t=(\d{1,9})\b")


class RetryableError(Exception):
    """A request failed in a way that may pass. `reason` is a clause for people, without a full
    stop; `after` is how many seconds the server asked to wait, if it did."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = after


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Seconds, but for `least` (bytes) and `tries` (attempts in a row that brought nothing)."""

    connect_timeout: float = 15.0
    stall_timeout: float = 20.0
    """A connection that brings fewer than `least` bytes in this time is given up."""
    min_bytes: int = 2048
    max_attempts: int = 6
    backoff: float = 1.0
    max_wait: float = 120.0
    """The longest wait between two tries, also when the server asks for more."""

    def delay(self, failures: int, after: float | None) -> float:
        """Seconds before the next try: doubling from `backoff`, never less than the server asked
        for, and scattered so that many clients do not return at once."""
        # Not a secret: it only has to differ from client to client.
        scattered = self.backoff * 2.0 ** (failures - 1) * random.uniform(0.75, 1.25)
        return max(min(scattered, self.max_wait), after or 0.0)

    async def with_stall_timeout(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The chunks, as long as they come fast enough. Retry when they do not."""
        clock = asyncio.get_running_loop().time
        deadline, got = clock() + self.stall_timeout, 0
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise RetryableError("the connection stalled") from None
            got += len(chunk)
            if got >= self.min_bytes:
                deadline, got = clock() + self.stall_timeout, 0
            yield chunk


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from Retry-After (a number or a date) or a used-up RateLimit; None without."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    if value:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):  # of a zone or a year that no calendar has
            return None
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max(0.0, (date - datetime.now(UTC)).total_seconds())
    limit = _RATE_LIMIT.search(headers.get("ratelimit", ""))
    return float(limit[1]) if limit else None
