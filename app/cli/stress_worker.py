"""One run of `specchat doctor --stress`, in a separate process: it may hang, abort or be killed.

    python -m app.cli.stress_worker MODE TOKENS TARGET [DRAFT]

Prints one JSON object a line: its progress, and finally its statistics or an error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from app.chat import wording
from app.chat.conversation import Conversation, Question
from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.chat.sample import FILE, text_of
from app.cli.machine import machine
from app.errors import UserError
from app.protocol.events import Failed, Finished, PhaseProgress
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Document

QUESTION = 'What does it say of "Corresponding Source"?'
ANSWER_TOKENS = 8
"""Tokens."""


def main(arguments: Sequence[str]) -> int:
    mode, tokens, target, *draft = arguments
    try:
        _run(Mode(mode), int(tokens), target, draft[0] if draft else None)
    except UserError as error:
        _print(failed=str(error))
    return 0


def _run(mode: Mode, tokens: int, target: str, draft: str | None) -> None:
    load = resolve_pair(target, draft)
    with EngineSession() as session:
        loaded = session.load(load)
        context = loaded.target.context_length or tokens
        document = Document(FILE, text_of(min(tokens, context * 9 // 10)))
        question = Question(QUESTION, (document,), mode)
        _, command = Conversation(Sampling(max_tokens=ANSWER_TOKENS)).start_turn(question)
        for event in session.run(command):
            match event:
                case PhaseProgress():
                    _print(phase=event.phase.value, done=event.done, total=event.total)
                case Failed():
                    _print(failed=wording.failure(event.failure).sentence)
                case Finished(statistics=stats) if stats is not None:
                    _print(
                        machine=machine(),
                        models=[each.name for each in (loaded.target, loaded.draft) if each],
                        tokens=stats.prompt_tokens,
                        read=stats.read_tokens,
                        seconds=stats.ttft,
                        phases={each.phase.value: each.seconds for each in stats.phases},
                        mlx_peak=stats.peak_bytes,
                        failed=None if stats.fallback is None else wording.reason(stats.fallback),
                    )


def _print(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
