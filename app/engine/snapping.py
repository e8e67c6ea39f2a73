"""Where lines and sentences of the documents end, in tokens of the prompt."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from app.engine.messages import Message
from app.engine.prompt import Prompt
from app.engine.tuning import Snap

ENDS = {
    Snap.LINE: re.compile(r"\n+"),
    Snap.SENTENCE: re.compile(r"[.!?]+[\"')\]]*\s+|\n\s*\n"),
}


def borders(prompt: Prompt, messages: tuple[Message, ...], snap: Snap) -> NDArray[np.int64] | None:
    """Tokens of the prompt, ascending, before which a line or sentence has ended; None to not
    snap."""
    if snap is Snap.NONE:
        return None
    found = [np.zeros(0, np.int64)]
    for segment in prompt.segments:
        if segment.document is None or segment.message is None:
            continue
        text = messages[segment.message].documents[segment.document].text
        ends = [match.end() for match in ENDS[snap].finditer(text)]
        starts = prompt.offsets[segment.message, segment.document]
        found.append(segment.start + np.searchsorted(starts, ends))
    return np.concatenate(found)
