"""Where each API has a field for citations."""

from __future__ import annotations

import pytest

from app.extras.serve.answers import ServedAnswer
from app.protocol.citations import Citation, CitationKind, Citations
from app.protocol.commands import Ask
from app.protocol.prompt import Message, Role
from tests.extras.serve.running import ANSWER, LONG_TEXT, TOKEN, client
from tests.fakes import FakeEngine, Story

PASSAGE = "The code of gate 1 is 37."
START = LONG_TEXT.index(PASSAGE)
CITED = Citations(
    (Citation(CitationKind.SUPPORT, 0, len(ANSWER), 0, 0, START, START + len(PASSAGE)),), 2
)
ASKED = f"{LONG_TEXT}\n\nWhat is due?"


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine(Story(answer=ANSWER, citations=CITED))
    engine.start_thread(lambda event: 0.0)
    return engine


def test_chat_completions_annotate_the_message(address: str) -> None:
    import openai

    asking = openai.OpenAI(base_url=f"{address}/v1", api_key=TOKEN, max_retries=0)
    found = asking.chat.completions.create(
        model="any", messages=[{"role": "user", "content": ASKED}]
    )
    (choice,) = found.choices
    assert choice.message.content == ANSWER
    assert choice.message.annotations is not None
    (annotation,) = choice.message.annotations
    cited = annotation.url_citation
    assert (cited.start_index, cited.end_index) == (0, len(ANSWER))
    assert cited.url.endswith(f"#char={START},{START + len(PASSAGE)}")
    assert cited.title.endswith(", line 3")
    assert found.usage is not None
    about = found.usage.model_extra
    assert about is not None
    assert about["specchat"]["sentences_without_passage"] == 2
    chunks = [
        *asking.chat.completions.create(
            model="any", messages=[{"role": "user", "content": ASKED}], stream=True
        )
    ]
    last = chunks[-1].choices[0].delta.model_extra
    assert last is not None
    assert last["annotations"][0]["url_citation"]["end_index"] == len(ANSWER)


def test_responses_annotate_the_text(address: str) -> None:
    import openai

    asking = openai.OpenAI(base_url=f"{address}/v1", api_key=TOKEN, max_retries=0)
    found = asking.responses.create(model="any", input=ASKED).model_dump()
    (part,) = found["output"][0]["content"]
    assert part["text"] == ANSWER
    (annotation,) = part["annotations"]
    assert annotation["type"] == "file_citation"
    assert (annotation["index"], annotation["quote"]) == (len(ANSWER), PASSAGE)
    events = [*asking.responses.create(model="any", input=ASKED, stream=True)]
    (added,) = [each for each in events if each.type == "response.output_text.annotation.added"]
    assert added.annotation_index == 0
    completed = events[-1].model_dump()["response"]["output"][0]["content"][0]
    assert completed["annotations"] == [annotation]


def test_anthropics_messages_cite_the_documents(address: str) -> None:
    content = [
        {"type": "document", "title": "gates", "source": {"type": "text", "data": LONG_TEXT}},
        {"type": "text", "text": "What is due?"},
    ]
    with client(address) as http:
        body = {"max_tokens": 9, "messages": [{"role": "user", "content": content}]}
        (block,) = http.post("/v1/messages", json=body).json()["content"]
    assert block["text"] == ANSWER
    assert block["citations"] == [
        {
            "type": "char_location",
            "cited_text": PASSAGE,
            "document_index": 0,
            "document_title": "gates",
            "start_char_index": START,
            "end_char_index": START + len(PASSAGE),
        }
    ]


def test_citations_are_those_of_the_text_that_the_client_gets() -> None:
    def at(start: int, end: int) -> Citation:
        return Citation(CitationKind.QUOTATION, start, end, 0, 0, 0, 5)

    found = Citations((at(0, 10), at(12, 20), at(21, 30)), 1)
    assert found.between(11, 25) == Citations((at(1, 9),), 1)
    answer = ServedAnswer(Ask((Message(Role.USER, "?"),)))
    assert answer.footnotes == []
