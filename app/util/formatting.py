"""Formats numbers, sizes and durations."""

from __future__ import annotations

GIB = 1024**3


def count(number: int) -> str:
    return f"{number:,}"


def short_count(number: int) -> str:
    """Two or three digits and a unit: 950, 8.7K, 118K, 596M, 8.2B."""
    if number < 1_000:
        return str(number)
    for unit, letter in ((1_000, "K"), (1_000_000, "M")):
        if number < 9.95 * unit:
            return f"{number / unit:.1f}{letter}"
        if number < 999.5 * unit:
            return f"{number / unit:.0f}{letter}"
    return f"{number / 1_000_000_000:.1f}B"


def progress(done: int, total: int) -> str:
    """`done` of `total` with the unit written once: 14.2/23.6K."""
    if total < 1_000:
        return f"{done}/{total}"
    return f"{done / 1_000:.1f}/{total / 1_000:.1f}K"


def size(number: int) -> str:
    """Bytes in decimal units, as file managers show them."""
    if number < 1_000:
        return f"{number} B"
    if number < 999_500:
        return f"{number / 1_000:.0f} KB"
    if number < 999_950_000:
        return f"{number / 1_000_000:.1f} MB"
    return f"{number / 1_000_000_000:.1f} GB"


def seconds(duration: float) -> str:
    if duration < 0.05:
        return "0.0 s"
    if duration < 9.95:
        return f"{duration:.1f} s"
    if duration < 59.5:
        return f"{duration:.0f} s"
    minutes, rest = divmod(round(duration), 60)
    hours, left = divmod(minutes, 60)
    if hours:
        return f"{hours} h {left} min" if left else f"{hours} h"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def clock(duration: float) -> str:
    """Seconds as `1:23`, or as `1:02:03` with hours."""
    minutes, rest = divmod(min(round(duration), 359_999), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def keep(ratio: float) -> str:
    """A keep ratio as a percentage, or `auto`."""
    return "auto" if ratio == 0 else percent(ratio)


def percent(fraction: float) -> str:
    """A fraction as a percentage. 0% and 100% are exact: they mean nothing and everything."""
    if 0 < fraction < 0.005:
        return "<1%"
    if 0.995 <= fraction < 1:
        return "99%"
    return f"{fraction * 100:.0f}%"


def shortened(name: str, length: int) -> str:
    """A name of at most `length` characters: of a longer one its beginning and its end."""
    if len(name) <= length:
        return name
    end = length // 3
    return f"{name[: length - end - 1]}…{name[len(name) - end :]}"


def plural(number: int, noun: str) -> str:
    return f"{count(number)} {noun}" + ("" if number == 1 else "s")


def error_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a model's own code may raise anything
        return ""


def one_line(error: BaseException) -> str:
    """An error's message without line breaks, cut after 200 characters."""
    return " ".join(error_text(error).split())[:200].rstrip(".") or type(error).__name__
