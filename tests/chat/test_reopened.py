"""A law: what a chat shows and sends does not change when it is closed and opened again. Random
histories with system prompts, versions of files, branches, edits and interrupted answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.chat.conversation import Conversation, Question, Turn, TurnPart, TurnState
from app.chat.model_pairs import ModelPair
from app.chat.stored_conversation import StoredConversation, StoredTurn
from app.protocol.citations import Citation, CitationKind, Citations
from app.protocol.events import (
    Cited,
    Event,
    Failed,
    Finished,
    ImportanceMap,
    Planned,
    Retrieved,
    Selected,
    Token,
)
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import (
    Document,
    Message,
    Origin,
    RetrievalReason,
    RetrievedPart,
    Segment,
    SegmentKind,
    Span,
    SpanReason,
    SpanText,
)
from app.protocol.reasons import Failure, FailureKind
from app.protocol.stats import DocumentsRead, FinishReason, Reading, Statistics
from app.store.records import DraftRecord, Overrides, encode
from app.store.store import Store
from tests.store.samples import answer_stats

MODELS = ModelPair("big", "revision 1", "small", "revision 2"), ModelPair("other", "revision 3")
SAMPLING = Sampling(max_tokens=7)
STEPS = 14
PATHS = "/h/proj/a.py", "/h/proj/b.py", "/h/proj/sub/a.py", "/x/a.py"
TEXTS = (
    "LIMIT = 10\n",
    "# new\nLIMIT = 99\n",
    "LIMIT = 10\nLIMIT = 11\n",
    "ä\r\n\u2028x\n",
    "\ufeffone line\n",
)
FEW, MANY = 30, 300


class History:
    """Random steps in one chat, which is opened again now and then."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.store, self.random = folder, Store(folder), Random(seed)
        self.models = MODELS[0]
        self.chat = self.opened(None)
        self.done: list[str] = []

    def opened(self, id: int | None) -> StoredConversation:
        chat = StoredConversation(self.store, id, self.models, SAMPLING)
        chat.load_progress()
        return chat

    @property
    def conversation(self) -> Conversation:
        return self.chat.conversation

    def step(self) -> None:
        steps: list[Callable[[], None]] = [self.ask] * 3
        if self.conversation.branch:
            steps += [self.ask, self.edit, self.ask_again, self.set_system, self.reopen]
            steps += [self.step_version, self.step_version, self.delete, self.resume]
            steps += [self.be_killed, self.duplicate, self.send_a_draft, self.change_models]
        step = self.random.choice(steps)
        self.done.append(step.__name__)
        step()

    def check(self) -> None:
        if self.chat.id is None:
            return
        again = self.opened(self.chat.id)
        before, after = seen(self.chat), seen(again)
        for name in before | after:
            values = before.get(name), after.get(name)
            assert values[0] == values[1], f"{name} differs after {self.done}: {values}"

    # ------------------------------------------------------------------------------ steps

    def ask(self) -> None:
        self.play(self.chat.ask(self.question()))

    def edit(self) -> None:
        turn = self.random.choice(self.conversation.branch)
        self.play(self.chat.ask(self.question(), edit_of=turn))

    def ask_again(self) -> None:
        turn = self.random.choice(self.conversation.branch)
        pins = {}
        for message, documents in enumerate(self.conversation.documents_by_message(turn)):
            for number, document in enumerate(documents):
                if self.random.random() < 0.2:
                    pins[message, number] = (self.characters(document.text),)
        mode = self.random.choice([*Mode])
        again = self.random.random() < 0.3
        self.play(self.chat.ask_again(mode, 0.5, turn, pins, choose_files=again))

    def set_system(self) -> None:
        system = self.random.choice([None, "", "Answer briefly.", "Answer in German."])
        self.chat.set_overrides(Overrides(system=system))

    def change_models(self) -> None:
        self.models = self.random.choice(MODELS)
        self.chat.set_models(self.models)

    def reopen(self) -> None:
        self.chat = self.opened(self.chat.id)

    def step_version(self) -> None:
        turn = self.random.choice(self.conversation.branch)
        part = self.random.choice([*TurnPart])
        self.chat.step_version(turn, part, self.random.choice([-1, 1]))
        self.chat.load_progress()

    def delete(self) -> None:
        if self.random.random() < 0.3:
            turn = self.random.choice(self.conversation.branch)
            removed = self.chat.delete(turn, self.random.choice([*TurnPart]))
            if self.random.random() < 0.5:
                self.chat.restore(removed)
            self.chat.load_progress()

    def resume(self) -> None:
        last = self.conversation.branch[-1]
        if last.can_continue:
            self.play(self.chat.resume(last))

    def be_killed(self) -> None:
        """The program ends within an answer."""
        turn = self.chat.ask(self.question())
        for event in [*self.events(turn)][: self.random.randint(0, 6)]:
            turn.apply(event, 1.0)
        self.store.close()
        self.store = Store(self.folder)
        self.reopen()

    def duplicate(self) -> None:
        if self.random.random() < 0.3:
            assert self.chat.id is not None
            self.chat = self.opened(self.store.duplicate(self.chat.id).id)

    def send_a_draft(self) -> None:
        """Type a message, close the chat, and send it when it is open again."""
        asked = self.question()
        stored = self.store.attach_all([(d.name, encode(d.text)) for d in asked.documents])
        attached = tuple(
            replace(record, line=document.line, origin=document.origin)
            for record, document in zip(stored, asked.documents, strict=True)
        )
        mode = str(asked.mode)
        draft = DraftRecord(self.chat.id, asked.text, attached, mode, asked.keep)
        self.store.save_draft(draft)
        self.reopen()
        assert self.store.draft(self.chat.id) == draft
        documents = tuple(
            Document(each.name, self.store.text(each), line=each.line, origin=each.origin)
            for each in draft.attachments
        )
        assert documents == asked.documents
        self.play(self.chat.ask(replace(asked, documents=documents)))

    # -------------------------------------------------------------------- what is asked

    def question(self) -> Question:
        count = self.random.choice([0, 0, 1, 1, 2, 3])
        documents = tuple(self.document() for _ in range(count))
        if self.random.random() < 0.15:  # a folder
            root = self.random.choice(["/h/proj", "/x"])
            tree = Document("proj/" if root == "/h/proj" else "x/", "a.py\n", origin=Origin(root))
            inside = [path for path in PATHS if path.startswith(root + "/")]
            files = tuple(
                self.file(path, root.rpartition("/")[2] + path[len(root) :]) for path in inside
            )
            documents += (tree, *files)
        text = f"Question {self.random.randrange(10**6)}?"
        mode = self.random.choice([*Mode])
        return Question(text, documents, mode, self.random.choice([0.0, 0.25, 1.0]))

    def document(self) -> Document:
        path = self.random.choice(PATHS)
        name = path.rpartition("/")[2]
        if self.random.random() < 0.2:
            return Document(self.random.choice([name, "paste-1.txt"]), self.random.choice(TEXTS))
        return self.file(path, name)

    def file(self, path: str, name: str) -> Document:
        text, part = self.random.choice(TEXTS), self.random.choice(["", "", "2-"])
        origin = Origin(path, len(text), self.random.randrange(9), str(hash(text)), part)
        name = f"{name}#{part}" if part else name
        line = 2 if part else 1
        return Document(name, text, line=line, origin=origin)

    # ------------------------------------------------------------------ what is answered

    def characters(self, text: str) -> tuple[int, int]:
        start = self.random.randrange(max(len(text) - 1, 1))
        return start, self.random.randint(start + 1, max(len(text), start + 1))

    def play(self, turn: StoredTurn) -> None:
        turn.turn.start(0.5)
        for event in self.events(turn):
            turn.apply(event, 1.0)
        turn.wait()

    def events(self, turn: StoredTurn) -> Iterator[Event]:
        """What an engine may send for this command."""
        number, ask, random = turn.turn.number, turn.command, self.random
        begun = ask.messages[-1] if turn.turn.previous_end else Message(ask.messages[0].role, "")
        asked = list(ask.messages[:-1] if turn.turn.previous_end else ask.messages)
        if random.random() < 0.1:
            yield Failed(number, Failure(FailureKind.NO_MODEL))
            return
        if random.random() < 0.1 and begun.text == "":
            yield Finished(number, FinishReason.CANCELLED, "", (), None)
            return
        again = turn.turn.previous_end is not None
        if not again and asked[-1].retrieved is None and random.random() < 0.2:
            parts = tuple(self.retrieved(asked))
            yield Retrieved(number, parts, (), DocumentsRead("", 3, 1_000, 100), 100)
            documents = tuple(part.document for part in parts)
            asked[-1] = replace(asked[-1], retrieved=documents)
        places = [
            (message, document, each)
            for message, sent in enumerate(asked)
            for document, each in enumerate(sent.in_prompt)
        ]
        sparse = random.random() < 0.6
        segments = tuple(
            Segment(SegmentKind.DOCUMENT, at, at + 1, message, document)
            for at, (message, document, _) in enumerate(places)
        )
        reading = Reading.SPARSE if sparse else Reading.DENSE
        yield Planned(number, reading, (), 0.5, 100, 90, 0, tuple(range(100)), segments)
        if random.random() < 0.05:
            yield Failed(number, Failure(FailureKind.MEMORY_EXHAUSTED))
            return
        if sparse:
            yield ImportanceMap(number, (0.0, 1.0), 4, 4)
            texts = tuple(
                SpanText(span, message, document, *self.characters(each.text))
                for span, (message, document, each) in enumerate(places)
                if random.random() < 0.7
            )
            spans = tuple(
                Span(at, at + 1, SpanReason.IMPORTANT, 2.0) for at in range(len(places) + 1)
            )
            yield Selected(number, 0.5, len(spans), 100, spans, texts)
        words = random.choice([["Limits", " are", " 99", ". Yes", "."], ["No", "."], []])
        ids = [random.randrange(2**31) for _ in words]
        for word, id in zip(words, ids, strict=True):
            yield Token(number, (id,), word, random.choice(["", "", "hm"]))
        text, whole = begun.text + "".join(words), (*(begun.token_ids or ()), *ids)
        if places and text and random.random() < 0.8:
            found = tuple(
                self.citation(text, *random.choice(places)) for _ in range(random.randint(0, 3))
            )
            yield Cited(number, Citations(found, random.randrange(3)))
        ended = random.choice([*FinishReason] + [FinishReason.STOP] * 5)
        yield Finished(number, ended, text, tuple(whole), statistics(reading, ask.mode))

    def citation(self, text: str, message: int, document: int, cited: Document) -> Citation:
        kind = self.random.choice([*CitationKind])
        passage = self.characters(cited.text)
        return Citation(kind, *self.characters(text), message, document, *passage, 0.5)

    def retrieved(self, asked: list[Message]) -> Iterator[RetrievedPart]:
        for document in {each: None for sent in asked for each in sent.documents}:
            if self.random.random() < 0.5:
                reason = self.random.choice([*RetrievalReason])
                part = replace(document, text=document.text[3:], origin=None, replaces=None)
                yield RetrievedPart(part, 3, reason, ("limit",))


def statistics(reading: Reading, mode: Mode) -> Statistics:
    stats = answer_stats(reading=reading, mode=mode, fallback=None)
    names = Statistics.__dataclass_fields__
    return Statistics(**{name: getattr(stats, name) for name in names})


# ------------------------------------------------------------------------------- what is seen


def seen(chat: StoredConversation) -> dict[str, Any]:
    """What a chat shows, and what it would send next."""
    conversation = chat.conversation
    turns = [turn for turn in conversation.branch if not in_vain(turn)]
    found: dict[str, Any] = {"turns": len(turns)}
    for number, turn in enumerate(turns, 1):
        found |= {f"{what} of turn {number}": value for what, value in parts(chat, turn)}
    kept = [*conversation.turns]
    new = conversation.with_versions(
        Question("Next?", tuple(version(path, path.rpartition("/")[2]) for path in PATHS[:2]))
    )
    found["versions"] = [described(each) for each in new.documents]
    _, command = conversation.start_turn(new)
    found["next prompt"] = [
        (each, *map(described, each.documents), *map(described, each.retrieved or ()))
        for each in command.messages
    ]
    found["next command"] = replace(command, conversation="")
    conversation.turns = kept
    return found


def in_vain(turn: Turn) -> bool:
    """Whether it is another answer that was not completed: it is shown until the chat is closed."""
    again = turn.retry_of is not None and turn.retry_of.in_context
    return again and (turn.replaced or turn.state is TurnState.FAILED)


def parts(chat: StoredConversation, turn: Turn) -> Iterator[tuple[str, Any]]:
    conversation, selected = chat.conversation, turn.progress.selected
    documents = conversation.documents_by_message(turn)
    system = int(bool(turn.system))
    question = turn.question
    yield "question", (question.text, [described(each) for each in question.documents])
    yield "answer", (turn.text, turn.thinking, turn.state, turn.can_continue, turn.answer)
    yield "retrieved", turn.retrieved
    yield "documents", [[described(each) for each in message] for message in documents[system:]]
    yield "missing", conversation.missing(turn)
    notes = [
        (each.line, each.to_plain(), each.citation.start) for each in conversation.footnotes(turn)
    ]
    yield (
        "citations",
        (notes, turn.citations and (len(turn.citations.found), turn.citations.uncited)),
    )
    for part in TurnPart:
        yield f"{part} version", chat.version_of(turn, part)
    if turn.in_context and selected is not None:
        yield "spans", selected.spans
        yield (
            "passages read",
            [
                (each.span, documents[each.message][each.document].text[each.start : each.end])
                for each in selected.texts
            ],
        )


def described(document: Document) -> tuple[Any, ...]:
    old = document.replaces
    where = document.origin and (document.origin.path, document.origin.part)
    return document, document.line, where, old and (old.name, old.text), document.within


def version(path: str, name: str) -> Document:
    return Document(name, "# newest\n", origin=Origin(path, 9, 9, "newest"))


def run(seed: int, folder: Path) -> list[str]:
    history = History(folder, seed)
    try:
        for _ in range(STEPS):
            history.step()
            history.check()
    finally:
        history.store.close()
    return history.done


@pytest.mark.parametrize(
    "seeds", [range(FEW), pytest.param(range(FEW, MANY), marks=pytest.mark.slow)]
)
def test_a_chat_is_the_same_after_it_was_closed_and_opened(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        run(seed, tmp_path / str(seed))
