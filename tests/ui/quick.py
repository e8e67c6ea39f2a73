"""Textual without what it repeats and waits for in tests: the same apps, ready sooner."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import textual.app
import textual.pilot
from textual._compositor import Compositor
from textual._context import visible_screen_stack
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.geometry import Region
from textual.screen import Screen

FRAME = 1 / 60
"""Seconds in which Textual draws what has changed."""
CALM = 1 / 50
"""A thread that has not worked for so many seconds waits for something else than the processor."""


def install(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(textual.app, "wait_for_idle", wait_for_idle)
    patch.setattr(textual.pilot, "wait_for_idle", wait_for_idle)
    patch.setattr(Stylesheet, "_parse_rules", cached(Stylesheet._parse_rules))
    patch.setattr(RuleSet, "__hash__", object.__hash__)  # the same one, without a call of Python
    patch.setattr(Compositor, "render_update", draw_widgets)


async def wait_for_idle(min_sleep: float = CALM, max_sleep: float = 1.0) -> None:
    """Wait until the app has nothing to do: no callback is ready, no timer is due within a frame,
    and no thread works for the app.

    Textual's own function looks at the processor time of the whole process instead, and needs a
    fiftieth of a second to see that none is used: twice for every key.
    """
    loop: Any = asyncio.get_running_loop()
    start = calm_since = time.monotonic()
    idle_rounds = 0
    while idle_rounds < 2 or time.monotonic() - start < min_sleep:
        now = time.monotonic()
        if now - start > max_sleep:
            return
        timers = (timer.when() for timer in loop._scheduled if not timer.cancelled())
        next_timer = min(timers, default=now + max_sleep)
        if loop._ready:
            idle_rounds, calm_since = 0, now
            await asyncio.sleep(0)
        elif next_timer < now + FRAME:
            idle_rounds = 0
            await asyncio.sleep(max(0.0, next_timer - now))
        elif threads_at_work(loop) and now - calm_since < CALM:
            worked = time.process_time() - time.thread_time()
            await asyncio.sleep(CALM / 10)
            if time.process_time() - time.thread_time() - worked > CALM / 100:
                calm_since = time.monotonic()
        else:
            idle_rounds += 1
            await asyncio.sleep(0)


def draw_widgets(
    compositor: Compositor,
    full: bool = False,
    screen_stack: list[Screen[object]] | None = None,
    simplify: bool = False,
) -> None:
    """Draw each widget that has changed, but do not put their lines together: no terminal shows
    them. `screen_text` does that when a test looks."""
    visible_screen_stack.set([] if screen_stack is None else screen_stack)
    screen = compositor.size.region
    changed = {screen} if full else compositor._dirty_regions.copy()
    compositor._dirty_regions.clear()
    if changed:
        for _ in compositor._get_renders(Region.from_union(changed).intersection(screen)):
            pass


def threads_at_work(loop: Any) -> bool:
    """Whether a thread does something whose result the app waits for."""
    executor = loop._default_executor
    if executor is not None and len(executor._threads) > executor._idle_semaphore._value:
        return True
    return any(thread.name in ("background", "models") for thread in threading.enumerate())


_parsed: dict[tuple[Any, ...], list[RuleSet]] = {}


def cached(parse_rules: Callable[..., list[RuleSet]]) -> Callable[..., list[RuleSet]]:
    """All apps have the same style sheets, about 150: each is parsed once for each theme."""

    def parse_once(sheet: Stylesheet, *arguments: Any, **options: Any) -> list[RuleSet]:
        key = (arguments, *options.items(), *sheet._variables.items())
        if key not in _parsed:
            _parsed[key] = parse_rules(sheet, *arguments, **options)
        return _parsed[key]

    return parse_once
