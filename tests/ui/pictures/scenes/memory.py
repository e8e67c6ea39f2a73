"""Memory that gets tight while an answer comes, rung by rung."""

from __future__ import annotations

from app.protocol.events import PressureChanged, Token
from app.protocol.memory import MemoryStats, PressureLevel
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import FinishReason, Phase
from tests.fakes import GIB, FakeEngine
from tests.ui.pictures import samples
from tests.ui.pictures.scenes.reading import at
from tests.ui.pictures.stage import Stage


async def tight(stage: Stage) -> None:
    story = samples.story(ended=FinishReason.MEMORY)
    async with stage.opened(FakeEngine(story, stepping=True)):
        await stage.shown("ready")
        await stage.paste(samples.licence())
        await stage.ask(samples.QUESTION)
        stage.play(lambda e: at(e, Phase.PREFILL, 0.6), 4.0)
        stage.engine.say(
            PressureChanged(PressureLevel.WARN, PressureLevel.NORMAL, _figures(86), _scarce(86))
        )
        await stage.shown("getting tight")
        await stage.take("warn")
        stage.engine.say(
            PressureChanged(PressureLevel.TIGHT, PressureLevel.WARN, _figures(91), _scarce(91))
        )
        await stage.shown("Memory is tight")
        await stage.take("tight")
        for _ in range(24):
            stage.play(lambda e: isinstance(e, Token), 0.1)
        stage.engine.say(
            PressureChanged(PressureLevel.CRITICAL, PressureLevel.TIGHT, _figures(96), _scarce(96))
        )
        stage.engine.finish()
        await stage.idle()
        await stage.shown("stopped: memory nearly used up")
        await stage.take("critical")


def _figures(percent: int) -> MemoryStats:
    ceiling = 24 * GIB
    used = ceiling * percent // 100
    return MemoryStats(32 * GIB, 32 * GIB - used - 6 * GIB, used, used, 0, used, ceiling)


def _scarce(percent: int) -> Reason:
    ceiling = 24 * GIB
    data = {"used": ceiling * percent // 100, "ceiling": ceiling, "share": percent / 100}
    return Reason(ReasonCode.MEMORY_SHARE, data)
