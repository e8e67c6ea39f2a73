"""The real documents are those that `specchat eval` asks about."""

from __future__ import annotations

import pytest

from app.eval.real_documents import FACTS, Corpus
from app.eval.suites import REAL
from app.eval.tokens import FolderTokens
from app.models.embedded import target_path
from app.protocol.prompt import Document
from tests.real.documents import fetch_documents

pytestmark = pytest.mark.real


def test_each_fact_is_once_in_its_document() -> None:
    files = [Document(path.name, path.read_text("utf-8")) for path in fetch_documents().iterdir()]
    corpus = Corpus(files, FolderTokens(target_path()))
    corpus.check()
    for index, fact in enumerate(FACTS):
        item = corpus.item(REAL, index, 2048, 0)
        assert item.passage is not None
        start, end = item.passage
        assert item.document.text[start:end].split() == fact.passage.split()
