"""The demo pair quotes the sentence that answers a question, or says that it found none."""

from __future__ import annotations

import pytest

from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.engine.turn.quotation import NOTHING_FOUND
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


def test_of_200_questions_half_are_answered_by_the_right_sentence() -> None:
    """No constant was chosen on these questions or their documents."""
    files = [Document(path.name, path.read_text("utf-8")) for path in fetch_documents().iterdir()]
    corpus = Corpus(files, FolderTokens(target_path()))
    right, nothing = dict[str, int](), dict[str, int]()
    with EngineSession() as session:
        session.load(resolve_pair())
        for number in range(2 * COUNT):
            suite = SUITE + (REWORDED if number % 2 else "")
            item = corpus.item(suite, number // 2, LENGTH, 0)
            ((passage_start, passage_end),) = item.passages
            *_, finished = session.run(Ask(number, item.messages, Mode.SPARSE))
            assert isinstance(finished, Finished)
            assert finished.finish_reason is FinishReason.STOP
            if finished.text == NOTHING_FOUND:
                nothing[suite] = nothing.get(suite, 0) + 1
                continue
            start = item.document.text.index(finished.text)  # word by word
            end = start + len(finished.text)
            shared = min(end, passage_end) - max(start, passage_start)
            half = min(len(finished.text), passage_end - passage_start) / 2
            right[suite] = right.get(suite, 0) + (shared >= half)
    print(f"\nof {COUNT} questions each, right: {right}, nothing found: {nothing}")
    assert sum(right.values()) >= COUNT
