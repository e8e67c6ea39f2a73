"""Lists what was skipped in a folder or a file and why, and which texts are doubtful."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from app.ingest.records import SkipReason
from app.ui.attach.attachment import Attachment
from app.ui.hanging_indent import HangingLines, hanging_indent
from app.util import formatting
from app.util.sanitize import sanitize_line

MAX_LISTED = 500
"""Of each kind; of the rest only the number is shown."""
DOT = Content.styled("· ", "$ink-dim")
_EXPECTED = (SkipReason.IGNORED, SkipReason.EMPTY)


class SkippedScreen(ModalScreen[None]):
    """Any of its keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,space,q", "dismiss", "Close", id="skipped.close")
    ]

    def __init__(self, attached: Attachment) -> None:
        super().__init__()
        self._attached = attached

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield SkippedList(lines(self._attached))
            yield Static(Content.styled("Esc close", "$ink-dim"))


class SkippedList(HangingLines):
    """A heading and a list of sentences."""

    def __init__(self, lines: list[Content]) -> None:
        super().__init__()
        self._heading, *self._sentences = lines

    def lines(self, width: int) -> list[Content]:
        return [self._heading, *(hanging_indent(DOT, each, width) for each in self._sentences)]


def lines(attached: Attachment) -> list[Content]:
    """A heading, then one sentence each, with the expected reasons last."""
    read = formatting.plural(len(attached.texts), "file")
    heading = f"{sanitize_line(attached.name)}  {read} read, {attached.skipped_text or '0 skipped'}"
    skipped = sorted(attached.skipped, key=lambda each: (not each.rest, each.reason in _EXPECTED))
    doubtful = [each.sentence for each in attached.doubtful]
    found = [Content.styled(heading, "bold $accent")]
    for sentences in ([each.sentence for each in skipped[: MAX_LISTED + 1]], doubtful):
        found += [Content(sanitize_line(each)) for each in sentences[:MAX_LISTED]]
    more = max(0, len(skipped) - MAX_LISTED) + max(0, len(doubtful) - MAX_LISTED)
    if more:
        found.append(Content.styled(f"… and {more:,} more", "$ink-dim"))
    return found
