"""A terminal that becomes too small, and large enough again."""

from __future__ import annotations

from app.ui.framed_screen import SmallScreen
from tests.fakes import FakeEngine
from tests.ui.helpers import SMALL, app_with, type_in, until, until_gone, until_shown


async def test_it_says_what_it_needs_and_goes_by_itself() -> None:
    """It may begin too small, and can be quit."""
    app = app_with(FakeEngine())
    async with app.run_test(size=(30, 8)) as pilot:
        await until_shown(pilot, "needs 40 × 10", "30 × 8")
        await pilot.resize_terminal(*SMALL)
        await until_gone(pilot, "needs")
        await until_shown(pilot, "ready")
        for size in ((39, 24), (80, 9), (8, 3)):
            await type_in(pilot, "Half a question")
            await pilot.resize_terminal(*size)
            await until(pilot, lambda: isinstance(app.screen, SmallScreen), "the words")
            await until_shown(pilot, f"{size[0]} × {size[1]}" if size[0] > 8 else "specchat")
            await pilot.press("f1", "f2", "ctrl+p", "escape", "enter", "x")
            assert isinstance(app.screen, SmallScreen)
            await pilot.resize_terminal(40, 10)
            await until_shown(pilot, "Half a question")
            await pilot.press("s")
            await until(pilot, lambda: app.chat.composer.box.text == "Half a questions")
            app.chat.composer.box.clear()
        await pilot.resize_terminal(30, 8)
        await until_shown(pilot, "needs")
        await pilot.press("ctrl+q")
        await until(pilot, lambda: app.return_code == 0, "the end")
