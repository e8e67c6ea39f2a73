"""Pictures of the view that shows which parts of a document were read."""

from __future__ import annotations

from app.ui.spans.screen import SpansScreen
from tests.fakes import FakeEngine
from tests.ui.pictures import samples
from tests.ui.pictures.stage import Stage


async def document(stage: Stage) -> None:
    async with stage.opened(FakeEngine(samples.story(citations=samples.citations()))):
        await stage.shown("ready")
        await stage.paste(samples.licence())
        await stage.ask(samples.QUESTION)
        await stage.idle()
        await stage.shown("▸ Read")
        await stage.press("ctrl+s")
        await stage.shown("What was read")
        await stage.press("n", "n")
        await stage.take("passages")
        screen = stage.app.screen
        assert isinstance(screen, SpansScreen)
        await stage.press("/")
        await stage.until(lambda: screen.search.has_focus, "the search")
        await stage.press(*"patent")
        await stage.until(lambda: screen.search.value == "patent", "all that is searched for")
        await stage.shown("not read (Space")
        await stage.take("search")
        await stage.press("escape")
        await stage.until(lambda: screen.view.has_focus, "the document")
        await stage.press("space")
        await stage.shown("Pinned")
        await stage.take("pinned")
        await stage.press("f")
        await stage.shown("not read")
        await stage.take("folded")
        await stage.press("f", *("right",) * 15)
        await stage.shown("keep 35% would read")
        await stage.take("keep")
