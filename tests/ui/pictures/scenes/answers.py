"""Answers: chosen, folded, forked, long."""

from __future__ import annotations

from app.protocol.events import Token
from tests.fakes import FakeEngine, Story
from tests.ui.pictures.stage import Stage

CODE = """\
`Cache.trim` counts *stored* tokens, so a gap makes it drop too many. Count positions:

```python
def trim(self, position: int) -> int:
    \"\"\"Drop what lies at `position` and behind it.\"\"\"
    keep = bisect_left(self.positions, position)
    dropped = len(self.positions) - keep
    del self.positions[keep:]
    return dropped
```

| layer | before | after |
|---|---:|---:|
| global | 0.002 | 0.000 |
| window of 4,096 | 1.310 | 0.000 |

1. **Windows** stay true across gaps.
2. Nothing else in `caches.py` has to change.

> Trims are logical, never buffer lengths.
"""
SHORT = "`Cache.trim` counts stored tokens. Count positions instead, with `bisect_left`."
THOUGHTS = """\
The user asks where the positions of entries go wrong.
The cache is trimmed by the number of stored tokens, while the caller passes a position.
With gaps these differ. So bisect over positions instead.
"""


async def chosen(stage: Stage) -> None:
    """What can be done with a message: copied, edited, answered again, deleted."""
    engine = FakeEngine(Story(answer=CODE, slowness=2.0))
    async with stage.opened(engine):
        await stage.shown("ready")
        await stage.ask("Why is the window wrong after a gap, and how do I fix it?")
        await stage.idle()
        await stage.shown("logical")
        await stage.take("markdown")
        await stage.press("tab", "ctrl+k")
        await stage.shown("Copied code")
        await stage.take("chosen")
        engine.story = Story(answer=SHORT, slowness=2.0)
        await stage.press("ctrl+a")
        await stage.until(lambda: len(engine.asks) == 2)
        await stage.idle()
        await stage.press("tab")
        await stage.shown("‹ 2/2 ›")
        await stage.take("forked")
        await stage.press("ctrl+e")
        await stage.shown("Editing an earlier question")
        await stage.take("editing")
        await stage.press("escape", "tab", "ctrl+d")
        await stage.shown("deleted")
        await stage.take("deleted")


async def thinking(stage: Stage) -> None:
    engine = FakeEngine(Story(answer=SHORT, thinking=THOUGHTS, slowness=2.0), stepping=True)
    async with stage.opened(engine):
        await stage.shown("ready")
        await stage.ask("Why is the window wrong after a gap?")
        stage.play(lambda e: isinstance(e, Token), 0.0)
        await stage.shown("thinking…")
        for _ in range(29):
            stage.play(lambda e: isinstance(e, Token), 0.1)
        await stage.shown("30 tokens")
        await stage.take("under-way")
        stage.engine.finish()
        await stage.idle()
        await stage.shown("thought for")
        await stage.take("folded")
        await stage.press("tab", "enter")
        await stage.shown("▾ thought for", "So bisect")
        await stage.take("opened")


async def long(stage: Stage) -> None:
    """Scrolled up while an answer is written."""
    engine = FakeEngine(Story(answer=CODE))
    async with stage.opened(engine):
        await stage.shown("ready")
        for question in ("What is a position?", "What is a window?", "What is trimmed?"):
            await stage.ask(question)
            await stage.idle()
        engine.stepping = True
        await stage.ask("And how do I fix it?")
        stage.play(lambda e: isinstance(e, Token), 2.0)
        await stage.shown("Cac")
        await stage.press("pageup")
        await stage.until(lambda: not stage.app.chat.transcript.follows_end)
        for _ in range(30):
            stage.play(lambda e: isinstance(e, Token), 0.05)
        await stage.shown("new text below")
        await stage.take("below")
