"""Memory on the screen: the gauge, the line that says what is done, an answer that it stopped."""

from __future__ import annotations

from pathlib import Path

from app.protocol.events import (
    EngineWarning,
    MemoryFreed,
    MemoryReport,
    PressureChanged,
    Reloaded,
    Token,
    Unloaded,
)
from app.protocol.memory import MemoryStats, PressureLevel
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import FinishReason
from tests.fakes import GIB, FakeEngine, Story, does_not_fit
from tests.ui.helpers import (
    DOCUMENT,
    app_with,
    ask,
    kept_app,
    paste,
    screen_text,
    until,
    until_gone,
    until_shown,
)

WIDE = (100, 24)
FIGURES = MemoryStats(32 * GIB, 3 * GIB, 6 * GIB, 21 * GIB, 0, 22 * GIB, 24 * GIB)
SCARCE = Reason(ReasonCode.MEMORY_SHARE, {"used": 21 * GIB, "ceiling": 24 * GIB, "share": 0.875})


async def test_the_gauge_and_a_line_say_how_tight_memory_is() -> None:
    engine = FakeEngine()
    async with app_with(engine).run_test(size=WIDE) as pilot:
        await until_shown(pilot, "ready", "mem ▓░░░░░ 5.5 GB of 24 GB")
        assert "! mem" not in screen_text(pilot)
        engine.say(PressureChanged(PressureLevel.TIGHT, PressureLevel.NORMAL, FIGURES, SCARCE))
        await until_shown(pilot, "! mem ▓▓▓▓▓░ 21 GB of 24 GB", "! Memory is tight (21 GB of 24 GB")
        engine.say(MemoryReport(FIGURES, PressureLevel.NORMAL))
        await until_gone(pilot, "! mem")
        # Dropped caches and background failures are reported.
        pilot.app.chat.notice.show("")  # type: ignore[attr-defined]
        engine.say(MemoryFreed(GIB, Reason(ReasonCode.DRAFT_CACHE_DROPPED)))
        await until_shown(pilot, "The draft's cache was removed from memory (1 GB freed).")
        engine.say(Unloaded("draft\x1b[2J", GIB, Reason(ReasonCode.UNLOADED_UNDER_PRESSURE)))
        await until_shown(pilot, "was unloaded (1 GB) to free memory.")
        assert "\x1b" not in screen_text(pilot)
        engine.say(Reloaded("draft", GIB, 0.4))
        await until_gone(pilot, "was unloaded")
        engine.say(EngineWarning(Reason(ReasonCode.BACKGROUND_STOPPED, {"error": "\x1b[2Jbroken"})))
        await until_shown(pilot, "! Background reading stopped (", "broken).")
        assert "\x1b" not in screen_text(pilot)

        # An answer that was stopped for memory says so.
        engine.story, engine.stepping = Story(ended=FinishReason.MEMORY), True
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        engine.advance_to(lambda event: isinstance(event, Token))
        engine.finish()
        await until_shown(pilot, "■ stopped: memory nearly used up · the text is kept")
        await until_shown(pilot, "▸ Read")


async def test_a_refused_question_is_tried_when_asked_again_in_the_same_way(
    tmp_path: Path,
) -> None:
    engine = FakeEngine(Story(answer="Yes, it is.", failure=does_not_fit()))
    async with kept_app(tmp_path, engine) as (pilot, _):
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        await until_shown(pilot, "Reading 118,204 tokens needs", "Press Enter again")
        await pilot.press("enter")
        await until(pilot, lambda: len(engine.asks) == 2)
        assert engine.asks[1].skip_memory_check
        await until_shown(pilot, "Yes, it is.")
        await pilot.press("ctrl+r")
        await until_shown(pilot, "^A tries anyway")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: len(engine.asks) == 4)
        assert engine.asks[3].skip_memory_check
