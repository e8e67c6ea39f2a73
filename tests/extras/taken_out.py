"""Runs specchat from trees that lack an extra, one after another, and prints what it did as JSON.

    python tests/extras/taken_out.py TREE EXTRA [TREE EXTRA]...

One process for all trees, because other packages take the longest to import.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import os
import pkgutil
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SMOLLM2 = "local/smollm2-135m-instruct"
USES = {
    "serve": ("serve", "serve --port 1234"),
    "hosts": ("hosts", "worker 127.0.0.1", "ask --hosts 10.0.0.2 Why?", "--hosts 10.0.0.2"),
    "gguf": ("models add tiny.gguf", "models show tiny.gguf", f"models pull {SMOLLM2}"),
    "ocr": ("ask --ocr -f scan.pdf Why?",),
    "launcher": ("install-launcher", "install-launcher --remove"),
}
"""Commands that need the extra."""


def use_tree(tree: str) -> None:
    sys.path[:] = [tree, str(ROOT), *(each for each in sys.path if each not in (tree, str(ROOT)))]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("app", "tests")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def imported() -> list[str]:
    """The names of all modules, after importing them."""
    app = importlib.import_module("app")
    names = [each.name for each in pkgutil.walk_packages(app.__path__, "app.")]
    for name in names:
        importlib.import_module(name)
    return names


def typed(words: Sequence[str]) -> tuple[int, str]:
    """The exit status of a command, and what it printed."""
    from app.cli.main import run

    printed, status = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True), 0
    with redirect_stdout(printed), redirect_stderr(printed), suppress(SystemExit):
        status = run(words)
    return status, printed.buffer.getvalue().decode()


async def said_by(app: Any, key: str) -> str:
    """What the app says once a key was pressed; empty if that is no key."""
    from tests.ui.helpers import until, until_shown

    async with app.run_test() as pilot:
        await until_shown(pilot, "⏎ send")
        if key:
            await pilot.press(key)
            await until(pilot, lambda: app.chat.notice.text)
        said = str(app.chat.notice.text)
    app.shutdown()
    return said


def started(key: str) -> str:
    """Start the app as `specchat` does, with a fake engine and no terminal; press a key."""
    from app.cli import run_app
    from app.cli.supervisor import Supervisor
    from app.engine import engine
    from app.ui.app import SpecchatApp
    from tests.fakes import FakeEngine

    said: list[str] = []
    engine.MlxEngine = lambda step, load_spread: FakeEngine()  # type: ignore[assignment, misc]
    SpecchatApp.run = lambda app: said.append(asyncio.run(said_by(app, key)))  # type: ignore[method-assign]
    with open(os.devnull, "wb") as log:
        run_app._open(run_app.StartOptions(), (), Supervisor(os.getppid(), log.fileno()))
    return said[0]


def main(arguments: Sequence[str]) -> None:
    found = {}
    for tree, extra in zip(arguments[::2], arguments[1::2], strict=True):
        use_tree(tree)
        found[extra] = {
            "help": typed(["--help"]),
            "app": started("f5" if extra == "serve" else ""),
            "loaded": [name for name in sys.modules if name.startswith("app.extras.")],
            "uses": [typed(words.split()) for words in USES[extra]],
            "modules": imported(),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
