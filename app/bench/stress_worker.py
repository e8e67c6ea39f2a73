"""One run of `specchat doctor --stress`, in a process of its own: it may hang, abort or be killed.

    python -m app.bench.stress_worker MODE TOKENS TARGET [DRAFT]

Says on standard output, one JSON object a line, how far it is, and at last its figures or a fault.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from app.bench.machine import machine
from app.chat.conversation import Conversation, Question
from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.errors import UserError
from app.paths import assets_path
from app.protocol.events import Failed, Finished, PhaseProgress
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Document

FILE = "gpl-3.0.txt"
CHARACTERS = 3.6
"""Of that text, in one token, about: the figures say how many tokens it was."""
QUESTION = 'What does it say of "Corresponding Source"?'
ANSWER = 8
"""Tokens."""


def main(arguments: Sequence[str]) -> int:
    mode, tokens, target, *draft = arguments
    try:
        _read(Mode(mode), int(tokens), target, draft[0] if draft else None)
    except UserError as error:
        _say(failed=str(error))
    return 0


def _read(mode: Mode, tokens: int, target: str, draft: str | None) -> None:
    load = resolve_pair(target, draft)
    with EngineSession() as session:
        loaded = session.load(load)
        context = loaded.target.context_length or tokens
        document = Document(FILE, _text(min(tokens, context * 9 // 10)))
        question = Question(QUESTION, (document,), mode)
        _, command = Conversation(Sampling(max_tokens=ANSWER)).start_turn(question)
        for event in session.run(command):
            match event:
                case PhaseProgress():
                    _say(phase=event.phase.value, done=event.done, total=event.total)
                case Failed():
                    _say(failed=event.message)
                case Finished(statistics=figures) if figures is not None:
                    _say(
                        machine=machine(),
                        models=[each.name for each in (loaded.target, loaded.draft) if each],
                        tokens=figures.prompt_tokens,
                        read=figures.read_tokens,
                        seconds=figures.ttft,
                        phases={each.phase.value: each.seconds for each in figures.phases},
                        mlx_peak=figures.peak_bytes,
                        failed=figures.fallback,
                    )


def _text(tokens: int) -> str:
    text = (assets_path() / "demo" / FILE).read_text(encoding="utf-8")
    wanted = int(tokens * CHARACTERS)
    return (text * (wanted // len(text) + 1))[:wanted]


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
