"""The rows of the list of conversations, their order and text; and the sidebar."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.fuzzy import FuzzySearch
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.errors import UserError
from app.protocol.prompt import Role
from app.store.records import (
    ConversationRecord,
    ConversationSize,
    DocumentHit,
    KnownDocument,
    SearchHit,
)
from app.ui.attach.attachment import PASTE
from app.ui.background import start_task
from app.ui.state.repository import ChatRepository
from app.ui.text import fit_path, spread
from app.util import formatting
from app.util.sanitize import sanitize_line

UNTITLED = "(no question yet)"
MAX_MATCHED = 200
"""Characters of a title that are matched and shown: fuzzy matching slows down with length."""
_SPEAKERS = {Role.USER: "You", Role.ASSISTANT: "Answer"}
MAX_SHOWN = 200
MARK_WIDTH = 2


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """`matched` are the indices of the title's characters that match the filter; `hit` is the best
    message that the search found in it."""

    conversation: ConversationRecord
    size: ConversationSize
    matched: tuple[int, ...] = ()
    hit: SearchHit | None = None

    @property
    def id(self) -> int:
        return self.conversation.id


def matching_rows(
    conversations: Sequence[ConversationRecord],
    sizes: Mapping[int, ConversationSize],
    text: str = "",
    hits: Sequence[SearchHit] = (),
) -> list[ConversationRow]:
    """Rows that match `text`: first those whose title matches, best first, then those with a hit,
    in the order of `hits`. Without `text`, all rows in the given order."""
    rows = [ConversationRow(each, sizes.get(each.id, ConversationSize())) for each in conversations]
    if not text:
        return rows
    best: dict[int, SearchHit] = {}
    for hit in hits:
        best.setdefault(hit.conversation, hit)
    matcher = FuzzySearch()
    titled: list[tuple[float, ConversationRow]] = []
    found: list[ConversationRow] = []
    for row in rows:
        row = replace(row, hit=best.get(row.id))
        score, matched = matcher.match(text, row.conversation.title[:MAX_MATCHED])
        if score > 0:
            titled.append((score, replace(row, matched=tuple(matched))))
        elif row.hit is not None:
            found.append(row)
    titled.sort(key=lambda scored: -scored[0])
    order = list(best)
    found.sort(key=lambda row: order.index(row.id))
    return [*(row for _, row in titled), *found]


def render_row(
    row: ConversationRow,
    width: int,
    now: datetime,
    status: str = "",
    current: bool = False,
    label: str = "",
) -> Content:
    """A line of at most `width` cells, and another with the snippet of the hit. `status` says what
    is running in it; `current`: it is on the screen; `label` is shown instead of the date."""
    conversation = row.conversation
    facts = [formatting.plural(row.size.questions, "question")] if row.size.questions else []
    facts += [formatting.size(row.size.documents)] if row.size.documents else []
    date = Content.styled(f"{label or short_date(conversation.updated_at, now):>10}", "$ink-dim")
    running = Content.styled(f"◆ {status}" if status else "", "$accent")
    for right in (  # the first that leaves enough of the title
        Content.assemble(running, "  ", (" · ".join(facts), "$ink-dim"), "  ", date),
        Content.assemble(running, "  ", date),
        Content.assemble(running, (f"  {label}" if label else "", "$ink-dim")),
    ):
        if width - right.cell_length - 4 >= min(24, width // 2):
            break
    mark = ("★ ", "$accent") if conversation.pinned else "  "
    line = spread(Content.assemble(mark, _title(row, "bold" if current else "")), right, width)
    if row.hit is None:
        return line
    speaker = f"{_SPEAKERS.get(row.hit.role, '')}: "
    return line + "\n" + _snippet(speaker, row.hit.snippet, row.hit.matches, width)


def is_named(known: KnownDocument) -> bool:
    """Whether a user recognises it by its name: not pastes, and not what other programs sent."""
    return known.origin is not None or ("." in known.name and not PASTE.fullmatch(known.name))


def render_known(known: KnownDocument, width: int, now: datetime, with_path: bool) -> Content:
    """One line for a document to ask about again."""
    label = known.path if with_path and known.path else known.label
    chats = formatting.plural(len(known.conversations), "chat")
    facts = Content.styled(f"{chats}  {short_date(known.used_at, now):>10}", "$ink-dim")
    room = width - facts.cell_length - MARK_WIDTH - 2
    name = Content.assemble(("▣ ", "$accent"), fit_path(sanitize_line(label), room))
    return spread(name, facts, width)


def render_document(hit: DocumentHit, width: int) -> Content:
    """The document's name and its conversation in one line, and the line that was found."""
    title = sanitize_line(hit.title[:MAX_MATCHED]) if hit.title.strip() else UNTITLED
    others = f" and {formatting.count(hit.others)} more" if hit.others else ""
    name = Content.assemble(("▤ ", "$accent"), sanitize_line(hit.name))
    room = max(width // 3, width - name.cell_length - 6)
    place = Content.styled(f"in '{title}'", "$ink-dim").truncate(room, ellipsis=True)
    line = spread(name, place + Content.styled(others, "$ink-dim"), width)
    if not hit.line:
        return line
    number = f"line {formatting.count(hit.line)}: "
    return line + "\n" + _snippet(number, hit.snippet, hit.matches, width)


def short_date(time: datetime, now: datetime) -> str:
    """The time of day if it is today, else the day. Both in the time zone of `now`."""
    local = time.astimezone(now.tzinfo)
    if local.date() == now.date():
        return f"{local:%H:%M}"
    if local.date() == now.date() - timedelta(days=1):
        return "yesterday"
    return f"{local:%d %b}" if local.year == now.year else f"{local:%Y-%m-%d}"


def distinct_labels(
    titles: Iterable[tuple[str, ConversationRecord]], now: datetime
) -> dict[int, str]:
    """Labels by id for conversations whose title another one has, too: the date of the last
    message, to the minute if needed, or else a number."""
    same_title: dict[str, list[ConversationRecord]] = {}
    for title, conversation in titles:
        same_title.setdefault(title, []).append(conversation)
    labels: dict[int, str] = {}
    for group in same_title.values():
        if len(group) > 1:
            labels |= zip((each.id for each in group), _labels(group, now), strict=True)
    return labels


def _labels(group: Sequence[ConversationRecord], now: datetime) -> Sequence[str]:
    times = [each.updated_at.astimezone(now.tzinfo) for each in group]
    dates = [short_date(time, now) for time in times]
    for labels in (dates, [f"{time:%d %b %H:%M}" for time in times]):
        if len(set(labels)) == len(labels):
            return labels
    ids = sorted(each.id for each in group)
    return [f"#{ids.index(each.id) + 1}" for each in group]


def _title(row: ConversationRow, style: str) -> Content:
    """Sanitised character by character, so that the matched ones can be highlighted."""
    title = row.conversation.title
    if not title.strip():
        return Content.styled(UNTITLED, "$ink-dim")
    matched = set(row.matched)
    highlight = f"{style} $accent".strip()
    return Content.assemble(
        *(
            (sanitize_line(character), highlight if index in matched else style)
            for index, character in enumerate(title[:MAX_MATCHED])
        )
    )


def _snippet(label: str, text: str, matches: Sequence[tuple[int, int]], width: int) -> Content:
    pieces: list[tuple[str, str]] = []
    at = 0
    for start, end in matches:
        pieces += [(text[at:start], "$ink-dim"), (text[start:end], "bold")]
        at = end
    pieces.append((text[at:], "$ink-dim"))
    pieces[0] = pieces[0][0].lstrip(), pieces[0][1]
    flat = [(sanitize_line(_collapse_whitespace(piece)), style) for piece, style in pieces]
    return Content.assemble((f"    {label}", "$ink-dim"), *flat).truncate(width, ellipsis=True)


def _collapse_whitespace(text: str) -> str:
    """Each run of white space as one space, also at the ends."""
    return re.sub(r"\s+", " ", text)


class Sidebar(Vertical):
    """The list beside the chat. It is for the mouse only; keys work in the list of Ctrl+O."""

    @dataclass
    class Opened(Message):
        """A conversation was clicked."""

        id: int

    def __init__(
        self, repository: ChatRepository, statuses: Callable[[], Mapping[int, str]]
    ) -> None:
        super().__init__(id="side")
        self._repository, self._statuses = repository, statuses
        self._current: int | None = None
        self._list = OptionList(id="side-list", compact=True, markup=False)
        self._list.can_focus = False

    def compose(self) -> ComposeResult:
        yield Static("Conversations  ^O", id="side-head", markup=False)
        yield self._list

    def update_list(self, current: int | None) -> None:
        """Read the list again; `current` is the conversation on the screen."""
        self._current = current
        if self.display and self._repository.readable:
            start_task(self, self._load, exclusive=True)

    def on_show(self) -> None:
        self.update_list(self._current)

    def on_resize(self) -> None:
        """Titles are cut to the width."""
        self.update_list(self._current)

    async def _load(self) -> None:
        try:
            conversations = await self._repository.read(lambda store: store.conversations())
        except UserError:  # shown by what reads more than the titles
            return
        statuses, width = self._statuses(), self._list.size.width - 2
        listed = conversations[:MAX_SHOWN]
        titles = ((_short_title(each, width - MARK_WIDTH).plain, each) for each in listed)
        labels = distinct_labels(titles, datetime.now().astimezone())

        def option(each: ConversationRecord) -> Option:
            busy, current = each.id in statuses, each.id == self._current
            line = sidebar_line(each, width, busy, current, labels.get(each.id, ""))
            return Option(line, id=str(each.id))

        self._list.set_options(map(option, listed))
        ids = [each.id for each in listed]
        self._list.highlighted = ids.index(self._current) if self._current in ids else None

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id is not None:
            self.post_message(self.Opened(int(event.option_id)))


def sidebar_line(
    conversation: ConversationRecord, width: int, busy: bool, current: bool, label: str = ""
) -> Content:
    """One line of at most `width` cells. `label` tells it from others of the same title."""
    mark = "▸ " if current else "★ " if conversation.pinned else "  "
    right = Content.assemble(
        (f" {label}" if label else "", "$ink-dim"), (" ◆" if busy else "", "$accent")
    )
    title = _short_title(conversation, width - MARK_WIDTH - right.cell_length)
    line = Content.assemble((mark, "$accent"), title.stylize("bold" if current else ""), right)
    return line.truncate(width, ellipsis=True)


def _short_title(conversation: ConversationRecord, width: int) -> Content:
    title = Content(sanitize_line(conversation.title.strip()) or UNTITLED)
    return title.truncate(max(1, width), ellipsis=True)
