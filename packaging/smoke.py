"""Asks a model as its user would, and fails where anything does: a test for a machine without a
screen, such as the virtual Macs of GitHub.

    .venv/bin/python packaging/smoke.py [MODEL]...

Without a name it asks the demo model. Others are downloaded, unless they are folders. It removes
what it saves, except the models.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LICENCE = ROOT / "assets" / "demo" / "gpl-3.0.txt"
CHARACTERS = 9_000
"""Of the licence, about 2,000 tokens: SmolLM2 135M holds 8,192."""
EMBEDDED = "embedded"
FIRST, SECOND = "What is the Corresponding Source?", "What is a Standard Interface?"
PROGRAM = (sys.executable, "-m", "app")
SHORT = ("--max-tokens", "48", "--temp", "0", "--no-thinking")
SECONDS = 600.0 * float(os.environ.get("SPECCHAT_TEST_PATIENCE", "1"))
"""Within which a command has to end."""


class SmokeError(Exception):
    """What went wrong, for a person."""


def expect(condition: object, what: str) -> None:
    if not condition:
        raise SmokeError(what)


@dataclass(frozen=True)
class Smoke:
    """One model, and a folder for all that its tests save."""

    model: str
    folder: Path

    @property
    def _environment(self) -> dict[str, str]:
        names = ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
        fresh = {name: str(self.folder / name) for name in names}
        models = {"HF_HOME": str(Path.home() / ".cache" / "huggingface")}
        return models | os.environ | fresh

    def all(self) -> None:
        document = self.folder / "licence.txt"
        document.write_text(LICENCE.read_text("utf-8")[:CHARACTERS], "utf-8")
        about = ("-f", str(document))
        if self.model != EMBEDDED and not Path(self.model).is_dir():
            self._timed("pull", lambda: self._run("models", "pull", self.model))
        self._timed("doctor", lambda: self._run("doctor", "--target", self.model))
        self._timed("sparse", lambda: self._sparse(*about))
        self._timed("full", lambda: self._full(*about))
        self._timed("second question", self._second)
        for start in ("server", "server again"):
            self._timed(start, lambda: self._serve(document.read_text("utf-8")))

    def _timed(self, name: str, step: Callable[[], str]) -> None:
        start = time.perf_counter()
        said = step()
        print(f"{name + ':':<17}{time.perf_counter() - start:6.1f} s  {said}", flush=True)

    def _run(self, *arguments: str) -> str:
        """The last line that a command prints. Raises SmokeError if it fails."""
        command = [*PROGRAM, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=self._environment
        )
        expect(done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.strip().rpartition("\n")[2]

    def _ask(self, question: str, *arguments: str) -> dict[str, Any]:
        """The statistics of an answer."""
        last = self._run("ask", "--target", self.model, "--json", *SHORT, *arguments, question)
        event: dict[str, Any] = json.loads(last)
        expect(event.get("event") == "Finished", f"not finished: {last}")
        expect(event["text"].strip(), f"an empty answer: {last}")
        statistics: dict[str, Any] = event["statistics"]
        expect(statistics["fallback"] is None, f"fell back: {statistics['fallback']}")
        return statistics

    def _sparse(self, *about: str) -> str:
        figures = self._ask(FIRST, *about, "--keep", "0.2", "--conversation", "new")
        expect(figures["read_tokens"] < figures["prompt_tokens"] / 2, f"not sparse: {figures}")
        return _read(figures)

    def _full(self, *about: str) -> str:
        figures = self._ask(FIRST, *about, "--full")
        expect(figures["read_tokens"] == figures["prompt_tokens"], f"not in full: {figures}")
        return _read(figures)

    def _second(self) -> str:
        """In the same conversation, by another process."""
        figures = self._ask(SECOND, "--keep", "0.2", "--conversation", "last")
        expect(figures["reused_tokens"] > 0, f"nothing reused: {figures}")
        return _read(figures)

    def _serve(self, text: str) -> str:
        """Two questions of one conversation to one process."""
        with self._serving() as address:
            messages = [{"role": "user", "content": f"{text}\n\n{FIRST}"}]
            first = _post(address, messages)
            messages += [
                {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
                {"role": "user", "content": SECOND},
            ]
            second = _post(address, messages)
        for reply in (first, second):
            expect(reply["choices"][0]["message"]["content"].strip(), f"no answer: {reply}")
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        expect(cached > 0, f"nothing reused: {second['usage']}")
        return f"{cached:,} of {second['usage']['prompt_tokens']:,} tokens reused"

    @contextmanager
    def _serving(self) -> Iterator[str]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [*PROGRAM, "serve", "--no-token", "--port", str(port), "--target", self.model]
        address = f"http://127.0.0.1:{port}"
        with subprocess.Popen(command, env=self._environment, start_new_session=True) as process:
            try:
                _wait_for(f"{address}/health", process)
                yield address
                process.send_signal(signal.SIGINT)
                status = process.wait(SECONDS)
                expect(status == 130, f"the server ended with status {status}")
            finally:
                process.kill()


def _read(figures: dict[str, Any]) -> str:
    read, prompt, reused = (figures[f"{name}_tokens"] for name in ("read", "prompt", "reused"))
    return (
        f"{read:,} of {prompt:,} tokens read, {reused:,} reused, first word {figures['ttft']:.1f} s"
    )


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=SECONDS).close()
            return
        except OSError:
            expect(process.poll() is None, f"the server ended with status {process.poll()}")
            expect(time.monotonic() < deadline, "the server did not start")
            time.sleep(0.2)


def _post(address: str, messages: list[dict[str, str]]) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 48, "temperature": 0, "enable_thinking": False}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Asks models as their users would.")
    parser.add_argument("models", nargs="*", default=[EMBEDDED], metavar="MODEL")
    for model in parser.parse_args(arguments).models:
        print(model, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                Smoke(model, Path(folder)).all()
            except (SmokeError, OSError, subprocess.TimeoutExpired) as error:
                print(f"failed: {error}", flush=True)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
