"""A server's log, made up: routine lines of several services, and incidents that are asked about.

All of it is in `server_log.toml`. The same log every time.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

LINES = 13_000
START = datetime(2025, 3, 11, 5, 58, 3)
SECONDS = 9
"""Between two messages, on average."""


def server_log() -> str:
    """LINES lines, with the incidents at equal distances."""
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    kinds, incidents, rng = content["kinds"], content["incidents"], Random(0)
    messages = {kind: _messages(kind, each) for kind, each in kinds.items()}
    filling = _Filling(rng, content["names"])
    now, lines, planted = START, list[str](), 0
    while len(lines) < LINES:
        now += timedelta(milliseconds=int(1000 * rng.expovariate(1 / SECONDS)))
        if len(lines) >= (planted + 0.5) * LINES / len(incidents):
            incident = incidents[planted]
            found = list(incident["lines"])
            kind, planted = incident["kind"], planted + 1
        else:
            (kind,) = rng.choices(list(kinds), [each["share"] for each in kinds.values()])
            (message,) = rng.choices(*messages[kind])
            found = filling.fill(message).split("\n")
        time = now.strftime(kinds[kind]["time"]).replace("000Z", "Z")
        lines += [line.replace("{time}", time) for line in found]
    return "\n".join(lines) + "\n"


def _messages(kind: str, content: dict[str, Any]) -> tuple[list[str], list[int]]:
    """The templates of a kind as whole lines, and how often each comes: errors are rare."""
    before, templates = content["before"], content["templates"]
    weights = [
        4 if re.search(r"ERROR|error [a-z]", text) else 3 if re.search(r"(?i)\bwarn", text) else 12
        for text in templates
    ]
    if kind == "json":
        templates = [_as_json(text) for text in templates]
    own_host = before.replace("{host} ", "")  # a template with @ names its host itself
    whole = [own_host + t[1:] if t.startswith("@") else before + t for t in templates]
    return [text.replace("~", "\n") for text in whole], weights


def _as_json(template: str) -> str:
    level, service, message = template.split(" ", 2)
    return f'{{"ts":"{{time}}","level":"{level}","service":"{service}","msg":"{message}"}}'


class _Filling:
    def __init__(self, rng: Random, names: dict[str, list[str]]) -> None:
        self._rng, self._names = rng, names
        draw = rng.randint
        self._makers: dict[str, Callable[[], object]] = {
            "pid": lambda: draw(300, 32_000),
            "port": lambda: draw(1024, 65_000),
            "id": lambda: draw(1_000_000, 7_700_000),
            "ip": lambda: ".".join(str(draw(2, 250)) for _ in range(4)),
            "ip3": lambda: ".".join(str(draw(0, 250)) for _ in range(3)),
            "hex": lambda: f"{rng.getrandbits(32):08x}",
            "size": lambda: draw(120, 90_000),
            "WORD": lambda: rng.choice(names["word"]).upper(),
            "pod": lambda: (
                f"{rng.choice(names['svc'])}-{rng.getrandbits(32):08x}-{rng.getrandbits(20):05x}"
            ),
        }

    def fill(self, template: str) -> str:
        return re.sub(r'\{([^{}"]+)\}', self._value, template)

    def _value(self, match: re.Match[str]) -> str:
        name = match[1]
        if name in self._makers:
            return str(self._makers[name]())
        if name in self._names:
            return self._rng.choice(self._names[name])
        if span := re.fullmatch(r"(\d+)-(\d+)", name):
            return str(self._rng.randint(int(span[1]), int(span[2]))).zfill(len(span[1]))
        return self._rng.choice(name.split("|")) if "|" in name else match[0]
