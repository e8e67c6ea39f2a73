"""Citations as they are shown: numbers in the answer, footnotes, and what the store keeps."""

from __future__ import annotations

import io
from dataclasses import replace

from app.chat.citations import footnotes, marked, summary, with_footnotes
from app.chat.conversation import Question
from app.chat.export import to_json, to_markdown
from app.chat.model_pairs import ModelPair
from app.chat.stored_conversation import StoredConversation
from app.protocol.citations import Citation, CitationKind, Citations
from app.protocol.events import Cited, Finished, Token
from app.protocol.options import Sampling
from app.protocol.prompt import Document
from app.protocol.stats import FinishReason
from app.store.importing import from_json
from app.store.store import Store
from tests.tables import table

MODELS, SAMPLING = ModelPair("big", "revision 1", None, None), Sampling(max_tokens=7)

TEXT = "# Term\n\nIt begins in March.\n\n# End\n\nIt ends after three years.\n"
BEGINS, ENDS = "It begins in March.", "It ends after three years."


def citation(
    answer: str, words: str, passage: str = BEGINS, kind: CitationKind = CitationKind.SUPPORT
) -> Citation:
    start, first = answer.index(words), TEXT.index(passage)
    return Citation(kind, start, start + len(words), 0, 0, first, first + len(passage))


@table(
    "answer, words, expected",
    [
        ("It starts in March. Yes.", "It starts in March.", "It starts in March.¹ Yes."),
        ("- It starts.\n- It ends.", "- It starts.", "- It starts.¹\n- It ends."),
        ("| a | starts |\n| b | c |", "| a | starts |", "| a | starts¹ |\n| b | c |"),
        ("Call `begin in March` first.", "begin in March", "Call `begin in March`¹ first."),
        ("It is “in March”, he said.", "in March", "It is “in March”,¹ he said."),
        ("It is **in March** then.", "in March", "It is **in March**¹ then."),
        (
            "See [it](http://a.b/in-March-too) now.",
            "in-March",
            "See [it](http://a.b/in-March-too)¹ now.",
        ),
        ("See http://a.b/in-March-too now.", "in-March", "See http://a.b/in-March-too¹ now."),
    ],
)
def test_numbers_do_not_break_markdown(answer: str, words: str, expected: str) -> None:
    quoted = citation(answer, words, kind=CitationKind.QUOTATION)
    assert marked(answer, Citations((quoted,))) == expected


def test_one_place_may_have_several_numbers_and_a_passage_has_one() -> None:
    answer = "It starts in March. It ends. It starts."
    citations = Citations(
        (
            citation(answer, "It starts in March."),
            citation(answer, "It ends.", ENDS),
            citation(answer, "It ends."),
            citation(answer, "It starts"),
        )
    )
    assert marked(answer, citations) == "It starts¹ in March.¹ It ends.¹,² It starts."
    assert summary(citations) == "2 citations"
    assert summary(replace(citations, uncited=1)) == "2 citations · 1 sentence without a source"
    assert summary(Citations()) == summary(None) == ""
    first, second = footnotes(citations, [[Document("lease.md", TEXT)]])
    assert first.line == f'[1] lease.md, line 3, Term: "{BEGINS}"'
    assert second.line == f'[2] lease.md, line 7, End: "{ENDS}"'


def test_a_document_that_is_missing_has_no_footnote() -> None:
    answer = "It starts."
    citations = Citations((citation(answer, answer),))
    assert footnotes(citations, [[Document("lease.md", "")]]) == []
    assert footnotes(citations, [[]]) == footnotes(citations, []) == []
    assert with_footnotes(answer, citations, []) == answer


def test_long_passages_are_shown_in_part() -> None:
    text = " ".join(f"word{number}" for number in range(200))
    long = Citation(CitationKind.SUPPORT, 0, 5, 0, 0, 0, len(text))
    (note,) = footnotes(Citations((long,)), [[Document("a", text)]])
    assert note.passage == text
    assert len(note.excerpt) < 120
    assert all(word in (*text.split(), "…") for word in note.excerpt.strip('"').split())


def test_citations_are_stored_exported_and_imported(store: Store) -> None:
    chat = StoredConversation(store, None, MODELS, SAMPLING)
    first = chat.ask(Question("Hello?"))
    first.apply(Finished(1, FinishReason.STOP, "Hello!", (), None))
    answer = "It starts in March."
    turn = chat.ask(Question("When?", (Document("lease.md", TEXT),)))
    own = Citations((replace(citation(answer, answer), message=len(turn.command.messages) - 1),), 1)
    for event in (
        Token(1, (), answer),
        Cited(1, own),
        Finished(1, FinishReason.STOP, answer, (), None),
    ):
        turn.apply(event)
    turn.wait()
    assert turn.turn.citations == own
    assert chat.id is not None
    again = StoredConversation(store, chat.id, MODELS, SAMPLING).conversation
    assert again.turns[-1].citations == own
    out = io.StringIO()
    to_markdown(store, chat.id, out)
    assert f"{answer}¹\n\n¹ lease.md, line 3, Term: " in out.getvalue()
    out = io.StringIO()
    to_json(store, chat.id, out)
    copied = from_json(store, io.StringIO(out.getvalue()))
    imported = StoredConversation(store, copied.id, MODELS, SAMPLING).conversation
    assert imported.turns[-1].citations == own
