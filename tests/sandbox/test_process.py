"""The process for a model's tokenizer and template: limited, cancelled, and restarted."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from tokenizers import Tokenizer

from app.sandbox import process as sandbox
from app.sandbox.process import RequestLimits, TextError, TextPiece, TextProcess
from app.sandbox.worker import count_uncovered
from tests import tiny
from tests.patience import PATIENCE

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[TextProcess]:
    process = TextProcess()
    process.open(tiny.save(tmp_path / "model"))
    yield process
    process.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20 * PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_cancelling_ends_the_process_and_the_next_request_starts_another(
    process: TextProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cancelled(Exception):
        pass

    def cancel() -> None:
        raise Cancelled

    process.finish()
    before = psutil.Process(process._process.pid)  # type: ignore[union-attr]
    monkeypatch.setattr(sandbox, "_POLL_SECONDS", 0.0)
    with pytest.raises(Cancelled):
        process.encode([TextPiece("some text " * 100_000)], cancel)
    assert not before.is_running()
    assert process.count("some text") == 9


def test_a_tokenizer_that_was_opened_is_not_read_again(
    process: TextProcess, tmp_path: Path
) -> None:
    def reader() -> int:
        return process._process.pid  # type: ignore[union-attr]

    process.finish()
    opened = reader()
    spec = Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json")).to_str()
    process.load(spec)
    assert process.count("some text") == 9
    assert reader() == opened
    shutil.rmtree(tmp_path / "model")
    process.close()
    assert process.count("some text") == 9, "it does not need the file again"
    other = json.loads(spec)
    other["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": ""}
    process.open(tiny.save(tmp_path / "model"))
    process.finish()
    opened = reader()
    process.load(json.dumps(other))
    assert process.count("some text") == 8, "what transformers made of it counts"
    assert reader() != opened


def test_a_text_may_be_larger_than_what_the_request_before_it_was_given(
    process: TextProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long document after a template: it was read within the memory of the template."""

    class IsAtWork(Exception):
        pass

    looks = iter(range(10))

    def check() -> None:
        if next(looks, None) is None:
            raise IsAtWork

    monkeypatch.setattr(sandbox, "RENDER_LIMITS", RequestLimits(0.5, 16 << 20))
    assert process.render("{{ x }}", {"x": "text"}) == "text"
    with pytest.raises(IsAtWork):
        process.encode([TextPiece("some text " * 2_000_000)], check)


def test_one_killed_between_two_requests_failed_the_next_one(process: TextProcess) -> None:
    process.finish()
    for _ in range(2):  # as it is, and while what it was set up with is still on its way
        assert process._process is not None
        os.kill(process._process.pid, signal.SIGKILL)
        process._process.wait()
        assert process.count("a") == 1
        process._restart()


def test_one_killed_at_work_is_one_sentence_and_restarts(
    process: TextProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill() -> None:
        assert process._process is not None
        os.kill(process._process.pid, signal.SIGKILL)

    process.finish()
    monkeypatch.setattr(sandbox, "_POLL_SECONDS", 0.0)
    with pytest.raises(TextError, match="ended with SIGKILL"):
        process.encode([TextPiece("some text " * 100_000)], kill)
    assert process.count("a") == 1


def test_it_has_no_variables_no_terminal_and_no_folder_for_modules(process: TextProcess) -> None:
    process.finish()
    assert process._process is not None
    child = psutil.Process(process._process.pid)
    assert set(child.environ()) <= {*sandbox._ENVIRONMENT, "LC_CTYPE"}
    assert os.getsid(child.pid) == child.pid
    assert "-I" in child.cmdline()


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model")
    code = (
        "import sys, os, signal; from pathlib import Path\n"
        "from app.sandbox.process import TextProcess\n"
        f"p = TextProcess(); p.open(Path({str(folder)!r})); p.finish()\n"
        "print(p._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    child = int(done.stdout)
    until(lambda: not psutil.pid_exists(child) or _zombie(child))


def _zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_it_ends_itself_when_its_parent_is_gone(tmp_path: Path) -> None:
    """Its seconds are up, whoever waits for it."""
    code = (
        "import threading, time; from app.sandbox import process as sandbox\n"
        "sandbox.RENDER_LIMITS = sandbox.RequestLimits(0.1, 1 << 28)\n"
        "p = sandbox.TextProcess(); p._restart(); print(p._process.pid, flush=True)\n"
        f"p._send({{'do': 'render'}}, [{ENDLESS.encode()!r}, b'{{}}'], sandbox.RENDER_LIMITS)\n"
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    child = int(done.stdout)
    until(lambda: not psutil.pid_exists(child) or _zombie(child))


def test_where_the_system_limits_nothing_memory_is_watched(
    process: TextProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS."""
    process.finish()
    monkeypatch.setattr(sandbox._AnswerReader, "_memory", lambda answer: time.monotonic_ns())
    monkeypatch.setattr(sandbox, "RENDER_LIMITS", RequestLimits(1, 1000))
    monkeypatch.setattr(TextProcess, "_send", _unlimited)
    with pytest.raises(TextError, match="too much memory"):
        process.render(ENDLESS, {})


def _unlimited(self: TextProcess, header: object, parts: object, limits: RequestLimits) -> None:
    _send(self, header, parts, RequestLimits(limits.seconds, 1 << 34))  # type: ignore[arg-type]


_send = TextProcess._send


def test_each_request_has_its_seconds_to_itself(
    process: TextProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What earlier requests took, by whatever clock, neither shortens nor extends them."""
    process.finish()
    assert process._process is not None
    child, ended = psutil.Process(process._process.pid), resource.RUSAGE_CHILDREN
    while (before := sum(child.cpu_times()[:2])) < 0.7:
        process.render("{% for a in range(50000) %}{% endfor %}", {})
    others = sum(resource.getrusage(ended)[:2])
    monkeypatch.setattr(sandbox, "RENDER_LIMITS", RequestLimits(0.2, 256 << 20))
    assert process.render("{{ x }}", {"x": "text"}) == "text"
    with pytest.raises(TextError, match="too long"):
        process.render(ENDLESS, {})
    assert sum(resource.getrusage(ended)[:2]) - others - before < 0.5


def test_a_restart_frees_the_memory_of_a_long_text(
    process: TextProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_RESTART_AFTER", 1000)
    process.finish()
    first = process._process
    (ids, _), *_ = process.encode([TextPiece("x" * 1001)])[0]
    assert len(np.frombuffer(ids, np.int32)) == 1001
    assert process._process is not first
    assert process.count("ab") == 2


def test_halves_of_characters_count_as_one(process: TextProcess) -> None:
    ((_, places),), lost = process.encode([TextPiece("a\ud800b", offsets=True)])
    assert np.frombuffer(places, np.int64).tolist() == [0, 1, 1, 2, 2, 3]
    assert lost == 0


def test_letters_in_no_token_are_counted() -> None:
    text = "abc" * 100
    for places, expected in {
        (0, 300): 0,
        (): 300,
        (0, 100): 200,
        (200, 300): 200,
        (0, 100, 120, 300): 0,  # the odd unknown character
        (0, 100, 0, 50, 50, 300): 0,  # one token within another
        (0, 200, 0, 50, 240, 300): 40,
    }.items():
        assert count_uncovered(text, array("q", places)) == expected
    assert count_uncovered(" " * 300, array("q")) == 0


def test_a_configuration_that_is_nested_too_deeply_is_refused() -> None:
    nested: list[object] = []
    for _ in range(20_000):
        nested = [nested]
    process = TextProcess()
    with pytest.raises(TextError, match="nested too deeply"):
        process.measure({"model_type": nested}, None)
    process.close()
