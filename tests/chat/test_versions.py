"""A file that is attached again with another text: which version each prompt, citation, pin and
export has, and what tells where the file is."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

from app.chat.conversation import Question
from app.chat.export import to_json, to_markdown
from app.chat.model_pairs import ModelPair
from app.chat.stored_conversation import StoredConversation, StoredTurn
from app.protocol.citations import Citation, CitationKind, Citations
from app.protocol.commands import Ask
from app.protocol.events import Failed, Retrieved, Retrieving
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import SEARCHED, Document, Origin, RetrievalReason, RetrievedPart
from app.protocol.reasons import Failure, FailureKind
from app.protocol.stats import DocumentsRead
from app.store.importing import from_json
from app.store.records import DraftRecord
from app.store.store import Store
from tests.chat.test_stored_conversation import play
from tests.fakes import Story

MODELS = ModelPair("big", "revision 1", "small", "revision 2")
PATH = "/files/someone/contract.txt"
OLD, NEW, NEWEST = "The notice is 30 days.", "The notice is 60 days.", "The notice is 90 days."
LETTER = Document(
    "letter.txt", "Dear tenant", origin=Origin("/files/someone/letter.txt", 11, 5, "b")
)


def version(text: str, path: str = PATH, name: str = "contract.txt", part: str = "") -> Document:
    return Document(name, text, origin=Origin(path, len(text), 7, "digest of " + text, part))


def opened(store: Store, id: int | None = 1) -> StoredConversation:
    return StoredConversation(store, id, MODELS, Sampling())


def ask(chat: StoredConversation, *documents: Document, cites: str = "") -> StoredTurn:
    turn = chat.ask(Question("What is the notice?", documents, Mode.FULL))
    messages = chat.conversation.documents_by_message(turn.turn)
    places = [(i, k) for i, m in enumerate(messages) for k, d in enumerate(m) if cites == d.text]
    found = tuple(
        Citation(CitationKind.QUOTATION, 0, 4, message, document, 0, len(cites))
        for message, document in places
    )
    play(turn, Story(answer="Days.", citations=Citations(found)))
    return turn


def texts(command: Ask) -> list[list[str]]:
    return [[each.text for each in message.in_prompt] for message in command.messages[::2]]


def cited(chat: StoredConversation) -> list[list[str]]:
    return [
        [note.passage for note in chat.conversation.footnotes(turn)]
        for turn in chat.conversation.branch
    ]


def test_newer_versions_of_two_parts_of_a_file_take_their_places(store: Store) -> None:
    def parts(*texts: str) -> list[Document]:
        both = zip(texts, lines, strict=True)
        part = "Third,Fifth"
        return [replace(version(text, part=part), line=line) for text, line in both]

    chat, lines = opened(store, None), (3, 5)
    ask(chat, *parts("Third.", "Fifth."))
    lines = (4, 7)  # something was inserted before them
    again = [["New third.", "New fifth."], []]
    assert texts(ask(chat, *parts("New third.", "New fifth.")).command) == again
    assert texts(opened(store).ask_again(Mode.FULL, 0.5).command) == again


def test_a_newer_version_takes_the_place_of_the_earlier_one(store: Store) -> None:
    chat = opened(store, None)
    assert texts(ask(chat, version(OLD), LETTER).command) == [[OLD, LETTER.text]]
    assert texts(ask(chat).command) == [[OLD, LETTER.text], []]
    assert texts(ask(chat, version(NEW)).command) == [[NEW, LETTER.text], [], []]
    assert texts(ask(chat).command)[:2] == [[NEW, LETTER.text], []]
    again = opened(store)
    assert texts(ask(again, version(NEWEST)).command)[0] == [NEWEST, LETTER.text]
    assert [each.text for each in again.conversation.branch[2].question.documents] == [NEW]


def test_citations_keep_the_version_that_they_are_from(store: Store) -> None:
    chat = opened(store, None)
    ask(chat, version(OLD), LETTER, cites=OLD)
    ask(chat, version(NEW), cites=NEW)
    ask(chat, cites=LETTER.text)
    expected = [[OLD], [NEW], [LETTER.text]]
    assert cited(chat) == cited(opened(store)) == expected
    out = io.StringIO()
    to_markdown(store, 1, out)
    notes = [line for line in out.getvalue().splitlines() if "line 1:" in line]
    assert [OLD in notes[0], NEW in notes[1], LETTER.text in notes[2]] == [True] * 3
    with io.StringIO() as exported:
        to_json(store, 1, exported)
        copy = from_json(store, io.StringIO(exported.getvalue()))
    assert cited(opened(store, copy.id)) == expected


def test_other_files_and_pastes_replace_nothing(store: Store) -> None:
    chat = opened(store, None)
    ask(chat, version(OLD), Document("paste-1.txt", "one"))
    others = version(NEW, "/elsewhere/contract.txt"), Document("paste-1.txt", "two")
    assert texts(ask(chat, *others).command) == [[OLD, "one"], [NEW, "two"]]
    part = version("part", name="contract.txt#5-10", part="5-10")
    assert texts(ask(chat, part).command)[2] == ["part"]


def test_a_version_of_a_failed_or_edited_question_is_not_used(store: Store) -> None:
    chat = opened(store, None)
    ask(chat, version(OLD))
    failed = chat.ask(Question("And now?", (version(NEW),)))
    failed.apply(Failed(failed.turn.number, Failure(FailureKind.NO_MODEL)))
    failed.wait()
    assert texts(ask(chat, cites=OLD).command) == [[OLD], []]
    out = io.StringIO()
    to_markdown(store, 1, out)
    assert f'"{OLD}"' in out.getvalue()
    edited = chat.ask(Question("Really?", (version(NEWEST),)), edit_of=chat.conversation.branch[0])
    assert texts(edited.command) == [[NEWEST]]


def test_pins_stay_with_the_version_that_has_them(store: Store) -> None:
    chat = opened(store, None)
    ask(chat, LETTER, version(OLD))
    last = ask(chat, version(NEW)).turn
    chat.ask_again(Mode.FULL, 0.5, last, {(0, 1): ((0, 3),)})
    first, second = opened(store).conversation.turns[:2]
    assert [each.pinned for each in first.question.documents] == [(), ()]
    assert [each.pinned for each in second.question.documents] == [((0, 3),)]


def test_parts_of_the_earlier_version_leave_the_prompt(store: Store) -> None:
    chat = opened(store, None)
    turn = chat.ask(Question("What is it?", (version(OLD), LETTER)))
    parts = [
        RetrievedPart(Document(each.name, each.text[:9]), 3, RetrievalReason.WORDS)
        for each in (version(OLD), LETTER)
    ]
    turn.apply(Retrieved(turn.turn.number, tuple(parts), (), DocumentsRead("", 2, 1_000, 100), 100))
    play(turn)
    command = ask(chat, version(NEW)).command
    assert texts(command)[0] == [LETTER.text[:9]]
    assert [each.text for each in command.messages[0].documents] == [NEW, LETTER.text]
    assert texts(opened(store).ask_again(Mode.FULL, 0.5).command) == texts(command)


def test_a_retrieved_part_of_a_file_is_cited_with_its_page(store: Store) -> None:
    pages = "".join(f"[Page {n}]\na\nb\nc\n{OLD}\n\n" for n in range(1, 4))
    file = version(pages, name="contract.pdf")
    start = pages.index(OLD, pages.index("[Page 3]"))
    part = Document(file.name, pages[start:], line=1 + pages.count("\n", 0, start))
    chat = opened(store, None)
    turn = chat.ask(Question("What is the notice?", (file, LETTER)))
    found = RetrievedPart(part, 3, RetrievalReason.WORDS)
    turn.apply(Retrieved(turn.turn.number, (found,), (), DocumentsRead("", 2, 1_000, 100), 100))
    play(turn, Story(citations=Citations((Citation(CitationKind.QUOTATION, 0, 4, 0, 0, 0, 10),))))
    (note,) = chat.conversation.footnotes(turn.turn)
    assert (note.place.text, note.document.origin) == ("page 3, line 4", file.origin)


def test_files_of_the_same_name_are_told_apart(store: Store) -> None:
    """In one question, and across questions; a retrieved part belongs to the one that it names."""
    other = version(NEW, "/elsewhere/contract.txt")
    chat = opened(store, None)
    turn = chat.ask(Question("What is the notice?", (version(f"Term.\n{OLD}"), other)))
    names = [each.name for each in turn.turn.question.documents]
    assert names == ["someone/contract.txt", "elsewhere/contract.txt"]
    found = RetrievedPart(Document(names[0], OLD, line=2), 3, RetrievalReason.WORDS)
    turn.apply(Retrieved(turn.turn.number, (found,), (), DocumentsRead("", 2, 1_000, 100), 100))
    (documents, *_) = chat.conversation.documents_by_message(turn.turn)
    assert [each.origin.path for each in documents if each.origin] == [PATH]
    chat = opened(store, None)
    play(chat.ask(Question("What is the notice?", (version(OLD),))), Story())
    (document,) = chat.ask(Question("And here?", (other,))).turn.question.documents
    assert (document.name, document.replaces) == ("elsewhere/contract.txt", None)


def test_what_could_not_be_read_is_of_the_whole_file(store: Store) -> None:
    pages = "[Page 1]\none\n\n[Page 2]\n\n\n[Page 3]\nthree\n\n"
    chat = opened(store, None)
    turn = chat.ask(Question("What?", (version(pages, name="scan.pdf"), LETTER)))
    assert chat.conversation.missing(turn.turn) == "scan.pdf: 1 of 3 pages without text"
    part = Document("scan.pdf", "[Page 3]\nthree\n\n", line=7)
    found = RetrievedPart(part, 3, RetrievalReason.WORDS)
    turn.apply(Retrieved(turn.turn.number, (found,), (), DocumentsRead("", 2, 1_000, 100), 100))
    assert chat.conversation.missing(turn.turn) == "scan.pdf: 1 of 3 pages without text"


def test_tokens_are_counted_of_files_that_were_searched(store: Store) -> None:
    """Two runs of 50 characters of a file of 10,000 bytes, and another file of 100."""
    origin = Origin(PATH, 10_000, part=SEARCHED)
    runs = [Document("huge.log", "x" * 49 + "\n", line=n, origin=origin) for n in (1, 900)]
    chat = opened(store, None)
    turn = chat.ask(Question("What is it?", (*runs, Document("paste-1.txt", "y" * 100))))
    whole = DocumentsRead.of(["huge.log", "huge.log", "paste-1.txt"], 1_000, 100)
    assert whole.files == 2
    turn.apply(Retrieving(turn.turn.number, whole))
    turn.apply(Retrieved(turn.turn.number, (), (), whole, 100))
    progress = turn.turn.progress
    assert progress.retrieving is not None
    assert progress.retrieved is not None
    tokens = {progress.retrieving.tokens, progress.retrieved.documents.tokens}
    assert tokens == {1_000 * 10_100 // 200}
    play(turn)
    statistics = turn.turn.statistics
    assert statistics is not None
    assert statistics.documents is not None
    assert statistics.documents.tokens > 20 * statistics.documents.chosen
    restored = opened(store).conversation.turns[0].statistics
    assert restored is not None
    assert restored.documents == statistics.documents
    chat = opened(store, None)
    turn = chat.ask(Question("What is it?", tuple(runs)))
    assert chat.conversation.missing(turn.turn) == "huge.log: only lines chosen from 10 KB"


def test_exports_and_imports_have_no_paths(store: Store, tmp_path: Path) -> None:
    ask(opened(store, None), version(OLD), LETTER)
    out = io.StringIO()
    to_json(store, 1, out)
    assert "someone" not in out.getvalue()
    plain = json.loads(out.getvalue())
    plain["messages"][0]["attachments"][0]["origin"] = [PATH, 1, 2, "c", ""]
    copy = from_json(store, io.StringIO(json.dumps(plain)))
    assert [a.origin for a in store.branch(copy.id)[0].attachments] == [None, None]


def test_a_document_knows_its_file_after_a_restart(store: Store) -> None:
    ask(opened(store, None), version(OLD))
    (turn,) = opened(store).conversation.turns
    assert [each.origin for each in turn.question.documents] == [version(OLD).origin]
    copy = store.duplicate(1)
    assert store.branch(copy.id)[0].attachments == store.branch(1)[0].attachments
    record = store.branch(1)[0].attachments[0]
    unsent = DraftRecord(1, "text", (record, replace(record, origin=None)))
    store.save_draft(unsent)
    assert store.draft(1).attachments == unsent.attachments


def test_a_file_that_comes_with_its_folder_is_a_version_of_it(store: Store) -> None:
    chat, name = opened(store, None), "someone/contract.txt"
    tree = Document("someone/", "contract.txt\n", origin=Origin("/files/someone"))
    ask(chat, LETTER, version(OLD), cites=OLD)
    ask(chat, tree, version(NEW, name=name), cites=NEW)
    assert cited(chat) == cited(opened(store)) == [[OLD], [NEW]]
    expected = [[LETTER.text, NEW], [tree.text], []]
    assert texts(ask(chat).command) == expected
    assert texts(opened(store).ask_again(Mode.FULL, 0.5).command) == expected


def test_each_of_several_equal_documents_is_replaced(store: Store) -> None:
    chat = opened(store, None)
    ask(chat, version(OLD), version(OLD))
    assert texts(ask(chat, version(NEW), version(NEW)).command) == [[NEW, NEW], []]


def test_parts_of_a_file_leave_the_prompt_when_it_comes_under_another_name(store: Store) -> None:
    chat = opened(store, None)
    turn = chat.ask(Question("What is it?", (version(OLD), LETTER)))
    part = RetrievedPart(Document("contract.txt", OLD[:9]), 3, RetrievalReason.WORDS)
    turn.apply(Retrieved(turn.turn.number, (part,), (), DocumentsRead("", 2, 1_000, 100), 100))
    play(turn)
    tree = Document("someone/", "contract.txt\n", origin=Origin("/files/someone"))
    command = ask(chat, tree, version(NEW, name="someone/contract.txt")).command
    assert texts(command) == [[], [tree.text]]
    assert texts(opened(store).ask_again(Mode.FULL, 0.5).command) == texts(command)
