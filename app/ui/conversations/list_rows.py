"""What the list shows: which conversations, in which order, as lines of text. No widgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from textual.content import Content
from textual.fuzzy import FuzzySearch

from app.sessions.records import Conversation, ConversationSize, Role, SearchHit
from app.util import formatting
from app.util.sanitize import sanitize_line

UNTITLED = "(no question yet)"
MAX_MATCHED = 200
"""Characters of a title that are looked at: matching takes longer the longer they are."""
_SPEAKERS = {Role.USER: "You", Role.ASSISTANT: "Answer"}


@dataclass(frozen=True, slots=True)
class Row:
    """`matched` are the characters of the title that the filter matches; `hit` is the best message
    that it was found in."""

    conversation: Conversation
    size: ConversationSize
    matched: tuple[int, ...] = ()
    hit: SearchHit | None = None

    @property
    def id(self) -> int:
        return self.conversation.id


def matching_rows(
    conversations: Sequence[Conversation],
    sizes: Mapping[int, ConversationSize],
    words: str = "",
    hits: Sequence[SearchHit] = (),
) -> list[Row]:
    """All of them as they come (pinned first, then the last used ones); or with `words` those whose
    title matches, the best first, and then those in which they were found."""
    every = [Row(each, sizes.get(each.id, ConversationSize())) for each in conversations]
    words = words.strip()
    if not words:
        return every
    best: dict[int, SearchHit] = {}
    for hit in hits:
        best.setdefault(hit.conversation, hit)
    matcher = FuzzySearch()
    titled: list[tuple[float, Row]] = []
    found: list[Row] = []
    for row in every:
        row = replace(row, hit=best.get(row.id))
        score, matched = matcher.match(words, row.conversation.title[:MAX_MATCHED])
        if score > 0:
            titled.append((score, replace(row, matched=tuple(matched))))
        elif row.hit is not None:
            found.append(row)
    titled.sort(key=lambda scored: -scored[0])
    order = list(best)
    found.sort(key=lambda row: order.index(row.id))
    return [*(row for _, row in titled), *found]


def render_row(
    row: Row, width: int, now: datetime, status: str = "", shown: bool = False, label: str = ""
) -> Content:
    """A row as one line, or with a snippet as two, each at most `width` cells wide. `status` says
    what is done in it at present; `shown`: it is the one on the screen; `label` tells it from
    others of its title."""
    conversation = row.conversation
    parts = [formatting.plural(row.size.questions, "question")] if row.size.questions else []
    parts += [formatting.size(row.size.documents)] if row.size.documents else []
    facts = Content.styled(" · ".join(parts), "$ink-dim")
    when = Content.styled(f"{label or short_date(conversation.updated_at, now):>10}", "$ink-dim")
    doing = Content.styled(f"◆ {status}", "$accent") if status else Content("")
    mark = ("★ ", "$accent") if conversation.pinned else "  "
    least = doing + "  " + Content.styled(label, "$ink-dim") if label else doing
    for right in (doing + "  " + facts + "  " + when, doing + "  " + when, least):
        room = width - right.cell_length - 4
        if room >= min(24, width // 2):
            break
    title = _title(row, "bold" if shown else "").truncate(max(1, room), ellipsis=True)
    gap = " " * max(1, width - 2 - title.cell_length - right.cell_length)
    line = Content.assemble(mark, title, gap, right).truncate(width, ellipsis=True)
    return line if row.hit is None else line + "\n" + _snippet(row.hit, width)


def short_date(time: datetime, now: datetime) -> str:
    """The time of day if it is today, else the day. Both in the zone of `now`."""
    local = time.astimezone(now.tzinfo)
    if local.date() == now.date():
        return f"{local:%H:%M}"
    return f"{local:%d %b}" if local.year == now.year else f"{local:%Y-%m-%d}"


def distinct_labels(looks: Iterable[tuple[str, Conversation]], now: datetime) -> dict[int, str]:
    """Of conversations that look the same as others, by their ids, a few characters that tell them
    apart: when each was used last, as finely as it takes, or else a number."""
    alike: dict[str, list[Conversation]] = {}
    for look, conversation in looks:
        alike.setdefault(look, []).append(conversation)
    labels: dict[int, str] = {}
    for group in alike.values():
        if len(group) > 1:
            labels |= zip((each.id for each in group), _labels(group, now), strict=True)
    return labels


def _labels(group: Sequence[Conversation], now: datetime) -> Sequence[str]:
    times = [each.updated_at.astimezone(now.tzinfo) for each in group]
    for labels in (
        [short_date(time, now) for time in times],
        [f"{time:%d %b %H:%M}" for time in times],
    ):
        if len(set(labels)) == len(labels):
            return labels
    ids = sorted(each.id for each in group)
    return [f"#{ids.index(each.id) + 1}" for each in group]


def _title(row: Row, style: str) -> Content:
    """Sanitised character by character, so that what matches can be marked."""
    title = row.conversation.title
    if not title.strip():
        return Content.styled(UNTITLED, "$ink-dim")
    matched = set(row.matched)
    marked = f"{style} $accent".strip()
    pieces = (
        (sanitize_line(character), marked if place in matched else style)
        for place, character in enumerate(title[:MAX_MATCHED])
    )
    return Content.assemble(*pieces)


def _snippet(hit: SearchHit, width: int) -> Content:
    pieces: list[tuple[str, str]] = []
    at = 0
    for start, end in hit.matches:
        pieces += [(hit.snippet[at:start], "$ink-dim"), (hit.snippet[start:end], "bold")]
        at = end
    pieces.append((hit.snippet[at:], "$ink-dim"))
    flat = [(sanitize_line(" ".join(_kept_ends(text))), style) for text, style in pieces]
    speaker = (f"    {_SPEAKERS.get(hit.role, '')}: ", "$ink-dim")
    return Content.assemble(speaker, *flat).truncate(width, ellipsis=True)


def _kept_ends(text: str) -> list[str]:
    """The words, with white space at the ends as empty words."""
    before = [""] if text[:1].isspace() else []
    after = [""] if text[-1:].isspace() else []
    return [*before, *text.split(), *after]
