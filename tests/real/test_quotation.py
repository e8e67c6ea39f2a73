"""The demo pair quotes the passage that answers a question, shows candidates, or says that it
found none."""

from __future__ import annotations

from collections import Counter

import pytest

from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.engine.turn.quotation import CANNOT_COUNT, NOTHING_FOUND, PASSAGES_FOUND
from app.models.embedded import target_path
from app.protocol.commands import Ask
from app.protocol.events import Finished
from app.protocol.options import Mode
from app.protocol.prompt import Document
from app.protocol.stats import FinishReason
from benchmarks.quality.real_documents import Corpus
from benchmarks.quality.suites import REWORDED
from benchmarks.quality.tokens import FolderTokens
from tests.real.documents import fetch_documents

pytestmark = pytest.mark.real
SUITE, LENGTH, COUNT = "passage-english", 2048, 100


def test_of_200_questions_few_get_a_wrong_answer_and_most_the_right_passage() -> None:
    """No constant was chosen on these questions or their documents."""
    files = [Document(path.name, path.read_text("utf-8")) for path in fetch_documents().iterdir()]
    corpus = Corpus(files, FolderTokens(target_path()))
    kinds = Counter[str]()
    with EngineSession() as session:
        session.load(resolve_pair())
        for number in range(2 * COUNT):
            suite = SUITE + (REWORDED if number % 2 else "")
            item = corpus.item(suite, number // 2, LENGTH, 0)
            ((passage_start, passage_end),) = item.passages
            *_, finished = session.run(Ask(item.messages, Mode.SPARSE))
            assert isinstance(finished, Finished)
            assert finished.finish_reason is FinishReason.STOP
            if finished.text == NOTHING_FOUND:
                kinds["nothing found"] += 1
            elif finished.text.startswith((PASSAGES_FOUND, CANNOT_COUNT)):
                middle = (passage_start + passage_end) // 2
                halves = (passage_start, middle), (middle, passage_end)
                shown = any(item.document.text[a:b] in finished.text for a, b in halves)
                kinds["candidates with it" if shown else "other candidates"] += 1
            else:
                start = item.document.text.index(finished.text)  # word by word
                end = start + len(finished.text)
                shared = min(end, passage_end) - max(start, passage_start)
                half = min(len(finished.text), passage_end - passage_start) / 2
                kinds["right" if shared >= half else "wrong"] += 1
    print(f"\n{dict(kinds)}")
    assert kinds["wrong"] <= 0.1 * 2 * COUNT
    assert kinds["right"] + kinds["candidates with it"] >= COUNT
