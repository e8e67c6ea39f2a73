"""The real documents are those that `python -m benchmarks quality` asks about."""

from __future__ import annotations

import pytest

from app.models.embedded import target_path
from app.protocol.prompt import Document
from benchmarks.quality.real_documents import Corpus, facts_of
from benchmarks.quality.suites import HELD_OUT, PASSAGE, REAL, SEVERAL, TUNED_ON, DoesNotFit
from benchmarks.quality.tokens import FolderTokens
from tests.real.documents import fetch_documents

pytestmark = pytest.mark.real


@pytest.mark.parametrize("suite", [REAL, PASSAGE, *HELD_OUT, *TUNED_ON])
def test_each_fact_is_once_in_its_document(suite: str) -> None:
    files = [Document(path.name, path.read_text("utf-8")) for path in fetch_documents().iterdir()]
    corpus = Corpus(files, FolderTokens(target_path()))
    corpus.check([suite])
    found = 0
    for index, fact in enumerate(facts_of(suite)):
        try:
            item = corpus.item(suite, index, 7168, 0)
        except DoesNotFit:  # its second passage is too far away
            assert SEVERAL in suite
            continue
        found += 1
        start, end = item.passages[0]
        assert item.document.text[start:end].split() == fact.passage.split()
    assert found > 20
