"""From the engine's thread to the screen: nothing is lost, little is drawn, nobody waits."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from itertools import pairwise

import pytest

from app.protocol.events import Closed, Token
from app.ui.background import FLUSH_SECONDS, Bridge
from tests.fakes import FakeEngine, Story
from tests.ui.helpers import SMALL, app_with, ask, until, until_shown


async def test_a_flood_of_tokens_is_drawn_whole_at_20_hertz_at_most() -> None:
    words = [f"word{number} " for number in range(3_000)]
    engine = FakeEngine(stepping=True)
    app = app_with(engine)
    async with app.run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        takes: list[float] = []
        take = app.chat.bridge.take

        def counted() -> list[object]:
            takes.append(time.monotonic())
            return list(take())

        app.chat.bridge.take = counted  # type: ignore[method-assign, assignment]
        listener = app.chat.bridge.listener

        def flood() -> None:
            for number, word in enumerate(words):
                listener(Token(engine.turns[0].number, (number,), word))

        thread = threading.Thread(target=flood)
        thread.start()
        turn = app.chat.open_chats.shown.conversation.turns[0]
        await until(pilot, lambda: len(turn.generated_ids) == len(words))
        thread.join()
        assert turn.text == "".join(words)
        assert turn.generated_ids == tuple(range(len(words)))
        assert all(b - a >= FLUSH_SECONDS * 0.9 for a, b in pairwise(takes))
    app.chat.bridge.listener(Closed())  # events after the screen is gone do not disturb the engine


@pytest.mark.slow
async def test_a_turn_on_a_real_thread_reaches_its_end() -> None:
    engine = FakeEngine(Story(answer="Done."))
    engine.start_thread(lambda event: 0.0)
    app = app_with(engine)
    async with app.run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        await until_shown(pilot, "▸ Read", "Done.")


def test_a_bridge_gives_each_event_once() -> None:
    class Receiver:
        posted = 0

        def post_message(self, message: object) -> None:
            self.posted += 1

    receiver = Receiver()
    bridge = Bridge(receiver)  # type: ignore[arg-type]
    for number in range(5):
        bridge.listener(Token(1, (number,), ""))
    assert receiver.posted == 1
    assert len(bridge.take()) == 5
    assert bridge.take() == []
    bridge.listener(Closed())
    assert receiver.posted == 2


def test_the_screens_never_import_mlx() -> None:
    program = "import sys, app.ui.app, app.ui.terminal; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    modules = done.stdout.decode().split()
    assert "app.protocol.events" in modules
    assert not [name for name in modules if name.split(".")[0] in ("mlx", "mlx_lm", "numpy")]
    assert not [name for name in modules if name.startswith("app.engine")], "only the protocol"


def test_the_first_drawing_waits_for_nothing_that_comes_later() -> None:
    program = "import sys, app.ui.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    modules = set(done.stdout.decode().split())
    later = {"markdown_it", "sqlite3", "app.ui.spans.screen", "app.ui.settings.screen"}
    assert not later & modules
