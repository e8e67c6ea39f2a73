"""The events of a calendar (iCalendar), such as an invitation in a mail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

_FOLD = re.compile(r"\r?\n[ \t]")
_LINE = re.compile(r'([A-Za-z0-9-]++)((?:[^:"]|"[^"\r\n]*+")*+):(.*)')
_PARAMETER = re.compile(r';([A-Za-z0-9-]++)=("[^"]*+"|[^;"]*+)')
_ESCAPED = re.compile(r"\\([nN,;\\])")
_DATE = re.compile(r"((?:19|20|21)\d{2})(\d{2})(\d{2})(?:T(\d{2})(\d{2})\d{2}(Z?))?")
_DURATION = re.compile(
    r"\+?P(?:(\d{1,4})W)?(?:(\d{1,4})D)?(?:T(?:(\d{1,4})H)?(?:(\d{1,4})M)?(?:\d{1,4}S)?)?"
)
_EVENTS = ("VEVENT", "VTODO")
_TITLES = {"REQUEST": "Invitation", "CANCEL": "Cancelled event", "REPLY": "Reply to an invitation"}


class _Value(NamedTuple):
    text: str
    parameters: dict[str, str]


class _Event(dict[str, list[_Value]]):
    """The values of an event by their names."""

    def first(self, name: str) -> str:
        return self[name][0].text if name in self else ""

    def all(self, name: str, shown: Callable[[_Value], str]) -> str:
        return ", ".join(map(shown, self.get(name, ())))


def calendar_events(source: str) -> Iterator[tuple[str, str]]:
    """Yield what each event says, and its description, which mails often repeat."""
    title, inside, event = "Event", list[str](), _Event()
    for line in _FOLD.sub("", source).splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        name, value = found[1].upper(), found[3].strip()
        if name == "BEGIN":
            inside.append(value.upper())
            if inside[-1] in _EVENTS:
                event = _Event()
        elif name == "END":
            if inside and inside.pop() in _EVENTS:
                yield f"[{title}]\n" + "\n".join(_lines(event)), event.first("DESCRIPTION").strip()
        elif name == "METHOD":
            title = _TITLES.get(value.upper(), "Event")
        elif inside and inside[-1] in _EVENTS:
            parameters = {
                key.upper(): text.strip('"') for key, text in _PARAMETER.findall(found[2])
            }
            text = _ESCAPED.sub(lambda hit: "\n" if hit[1] in "nN" else hit[1], value)
            event.setdefault(name, []).append(_Value(text, parameters))


def _lines(event: _Event) -> Iterator[str]:
    shown = {
        "What": event.first("SUMMARY"),
        "When": _time(event),
        "Where": event.first("LOCATION"),
        "Due": event.all("DUE", _shown),
        "Repeats": event.first("RRULE").replace("FREQ=", "").replace(";", ", ").lower(),
        "Except": event.all("EXDATE", _shown),
        "Instead of": event.all("RECURRENCE-ID", _shown),
        "Status": event.first("STATUS").lower(),
        "Organiser": event.all("ORGANIZER", _person),
        "Invited": event.all("ATTENDEE", _person),
        "Comment": event.first("COMMENT"),
        "Address": event.first("URL"),
    }
    for name, text in shown.items():
        if words := " ".join(text.split()):
            yield f"{name}: {words}"


def _time(event: _Event) -> str:
    """`2026-03-05 14:00 to 15:30 UTC`, `2026-03-05 to 2026-03-07`"""
    if "DTSTART" not in event:
        return ""
    start = event["DTSTART"][0]
    begin, zone = _moment(start)
    if begin is None:
        return start.text
    is_day = "T" not in start.text
    end = begin
    if "DTEND" in event:
        last, end_zone = _moment(event["DTEND"][0])
        if last is None or end_zone != zone:
            return f"{_shown(start)} to {_shown(event['DTEND'][0])}"
        end = last - timedelta(days=1) if is_day else last  # the day after the last one
    elif length := _DURATION.fullmatch(event.first("DURATION")):
        weeks, days, hours, minutes = (int(each or 0) for each in length.groups())
        end += timedelta(weeks=weeks, days=days - is_day, hours=hours, minutes=minutes)
    if end <= begin:
        return _shown(start)
    form = "%Y-%m-%d" if is_day else "%H:%M" if end.date() == begin.date() else "%Y-%m-%d %H:%M"
    first = begin.strftime("%Y-%m-%d" if is_day else "%Y-%m-%d %H:%M")
    return f"{first} to {end.strftime(form)} {zone}".strip()


def _shown(value: _Value) -> str:
    moment, zone = _moment(value)
    if moment is None:
        return value.text
    form = "%Y-%m-%d %H:%M" if "T" in value.text else "%Y-%m-%d"
    return f"{moment.strftime(form)} {zone}".strip()


def _moment(value: _Value) -> tuple[datetime | None, str]:
    """A date or time, and its zone as it is shown."""
    found = _DATE.fullmatch(value.text)
    if found is None:
        return None, ""
    year, month, day, hour, minute = (int(each or 0) for each in found.groups()[:5])
    zone = value.parameters.get("TZID", "")
    with suppress(ValueError):
        moment = datetime(year, month, day, hour, minute)
        return moment, "UTC" if found[6] else f"({zone})" if zone else ""
    return None, ""


def _person(value: _Value) -> str:
    """`Anna <anna@example.org> (accepted)`"""
    address = re.sub(r"^mailto:", "", value.text, flags=re.IGNORECASE)
    name = value.parameters.get("CN", "")
    shown = f"{name} <{address}>" if name and name != address else address
    state = value.parameters.get("PARTSTAT", "").lower()
    return shown if state in ("", "needs-action") else f"{shown} ({state})"
