"""Timeouts and retries of downloads."""

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
    """A request failed in a way that may be temporary. `reason` is a clause to show;
    `retry_after` are the seconds that the server asked to wait, if it did."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = after


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """All times in seconds. `max_attempts` counts attempts in a row without progress."""

    connect_timeout: float = 15.0
    stall_timeout: float = 20.0
    """A connection with fewer than `min_bytes` in this time is closed."""
    min_bytes: int = 2048
    max_attempts: int = 6
    backoff: float = 1.0
    max_wait: float = 120.0
    """The longest wait between two attempts, even if the server asks for more."""

    def delay(self, failures: int, after: float | None) -> float:
        """Seconds before the next attempt: exponential backoff with jitter, and at least what the
        server asked for."""
        jittered = self.backoff * 2.0 ** (failures - 1) * random.uniform(0.75, 1.25)
        return max(min(jittered, self.max_wait), after or 0.0)

    async def with_stall_timeout(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Pass the chunks on. RetryableError when they come too slowly."""
        clock = asyncio.get_running_loop().time
        deadline, received = clock() + self.stall_timeout, 0
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise RetryableError("the connection stalled") from None
            received += len(chunk)
            if received >= self.min_bytes:
                deadline, received = clock() + self.stall_timeout, 0
            yield chunk


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from Retry-After (a number or a date) or an exhausted RateLimit; None without."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    if value:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):  # an impossible zone or year
            return None
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max(0.0, (date - datetime.now(UTC)).total_seconds())
    limit = _RATE_LIMIT.search(headers.get("ratelimit", ""))
    return float(limit[1]) if limit else None
