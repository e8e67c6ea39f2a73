"""How a question is read, from the first word to the folded panel."""

from __future__ import annotations

from app.protocol.events import ImportanceMap, PhaseProgress, Token
from app.protocol.stats import Phase
from tests.fakes import FakeEngine
from tests.ui.pictures import samples
from tests.ui.pictures.stage import Stage


async def sparsely(stage: Stage) -> None:
    samples.earlier_conversations(stage.home / "data")
    async with stage.opened(FakeEngine(samples.story(), stepping=True)):
        await stage.shown("ready")
        await stage.paste(samples.licence())
        await stage.ask(samples.QUESTION)
        stage.play(lambda e: at(e, Phase.SCORE, 0.6), 2.1)
        await stage.shown("scored 6")
        await stage.take("score")
        stage.play(lambda e: isinstance(e, ImportanceMap) and e.observed == 2, 1.5)
        await stage.shown("importance so far")
        await stage.take("lookahead")
        stage.play(lambda e: at(e, Phase.PREFILL, 0.6), 2.5)
        await stage.shown("first word in 1.")
        await stage.write("And may it be left on a server?")
        await stage.press("enter")
        await stage.shown("queued · Esc takes it back")
        await stage.take("queued")
        await stage.press("escape")
        await stage.gone("queued · Esc takes it back")
        stage.app.chat.composer.box.replace_all("")
        await stage.take("prefill")
        for _ in range(36):
            stage.play(lambda e: isinstance(e, Token), 0.05)
        await stage.shown("executable")
        await stage.take("decode")
        stage.engine.finish()
        await stage.idle()
        await stage.shown("▸ Read")
        await stage.take("answered")
        await stage.press("tab", "space")
        await stage.shown("▾ Read", "Why")
        await stage.take("opened")
        await stage.press("space", "escape", "ctrl+g", "3", "5")
        stage.engine.finish()
        await stage.shown("35%", "would read")
        await stage.take("keep-tried")
        await stage.press("escape", "ctrl+r")
        await stage.until(lambda: len(stage.engine.asks) == 2)
        stage.play(lambda e: at(e, Phase.PREFILL, 0.5), 1.8)
        await stage.shown("Reading all of")
        await stage.take("full")


async def reading_on(stage: Stage) -> None:
    """What the answer turns out to need is read while it is written."""
    async with stage.opened(FakeEngine(samples.story(read_on=3, unsure=True))):
        await stage.shown("ready")
        await stage.paste(samples.licence())
        await stage.ask(samples.QUESTION)
        await stage.idle()
        await stage.press("tab", "space")
        await stage.shown("3 passages while answering")
        await stage.take("answered")


async def trouble(stage: Stage) -> None:
    """Stopped, failed, and read in full since sparse reading did not work."""
    story = samples.story
    async with stage.opened(FakeEngine(story(), stepping=True)):
        await stage.shown("ready")
        await stage.paste(samples.licence())
        await stage.ask(samples.QUESTION)
        stage.play(lambda e: at(e, Phase.SCORE, 0.6), 2.1)
        await stage.press("escape")
        stage.engine.finish()
        await stage.idle()
        await stage.shown("stopped before the first word")
        await stage.ask("What does it leave out?")
        for _ in range(24):
            stage.play(lambda e: isinstance(e, Token), 0.3)
        await stage.press("escape")
        stage.engine.finish()
        await stage.idle()
        await stage.shown("the text is kept")
        await stage.take("stopped")
        stage.engine.story = story(falls_back="the draft's attention cannot be observed")
        await stage.ask("And who must offer it?")
        stage.engine.advance_to(lambda e: at(e, Phase.PREFILL, 0.5))
        stage.now += 4.0
        await stage.shown("cannot be observed")
        await stage.take("falling-back")
        stage.engine.finish()
        await stage.idle()
        await stage.shown("▸ Read all of")
        await stage.take("fell-back")
        stage.engine.story = story(fails_in=Phase.PREFILL)
        await stage.ask("For how long?")
        stage.now += 5.0
        stage.engine.finish()
        await stage.idle()
        await stage.shown("failed", "Memory was nearly used up")
        await stage.take("failed")


def at(event: object, phase: Phase, fraction: float) -> bool:
    """Whether a phase has come so far."""
    is_phase = isinstance(event, PhaseProgress) and event.phase is phase
    return is_phase and event.done >= fraction * event.total
