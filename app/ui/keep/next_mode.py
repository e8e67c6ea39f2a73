"""How the next message will be read. A value, so that every change is visible where it is made."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.chat.conversation import effective_mode
from app.protocol.options import AUTO_KEEP, Mode
from app.settings.definitions import Settings
from app.store.records import Overrides
from app.util import formatting


@dataclass(frozen=True, slots=True)
class NextMode:
    """`chosen` holds until it is changed. With `other_way_once` the next message alone is read the
    other way: in full, or in auto mode where `chosen` is full."""

    keep: float
    chosen: Mode = Mode.AUTO
    other_way_once: bool = False

    @property
    def mode(self) -> Mode:
        return self._other if self.other_way_once else self.chosen

    def toggled(self) -> NextMode:
        return replace(self, other_way_once=not self.other_way_once)

    def after_send(self) -> NextMode:
        return replace(self, other_way_once=False)

    def after_unsend(self, mode: Mode) -> NextMode:
        """After a message was taken back: it is still to be read in its `mode`."""
        return replace(self, other_way_once=(mode is Mode.FULL) != (self.chosen is Mode.FULL))

    def at_keep(self, keep: float) -> NextMode:
        return NextMode(keep, Mode.SPARSE)

    def automatic(self) -> NextMode:
        return NextMode(AUTO_KEEP)

    @property
    def label(self) -> str:
        if self.mode is Mode.SPARSE:
            return f"SPARSE {formatting.keep(self.keep)}"
        return self.mode.value.upper()

    @property
    def toggle_label(self) -> str:
        """What Ctrl+T switches to."""
        return (self.chosen if self.other_way_once else self._other).value

    @property
    def _other(self) -> Mode:
        return Mode.AUTO if self.chosen is Mode.FULL else Mode.FULL


def default_next_mode(settings: Settings) -> NextMode:
    return NextMode(settings.reading.keep, settings.reading.mode)


def next_mode_for(choices: Overrides, default: NextMode) -> NextMode:
    """What is chosen for one conversation, and `default` for the rest."""
    mode, keep = effective_mode(choices, default.chosen, default.keep)
    return replace(default, chosen=mode, keep=keep)
