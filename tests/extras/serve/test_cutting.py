"""Long messages are cut into documents and a question, and nothing of them is lost."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.extras.serve.cutting import LONG, cut
from app.protocol.prompt import Document
from app.util.places import place_of
from tests.tables import table

PASTE = "\n".join(f"line {n} of a long file" for n in range(400))
QUESTION = "What does line 7 say?"


@pytest.mark.parametrize("text", [f"{PASTE}\n\n{QUESTION}", f"{QUESTION}\n\n{PASTE}"])
def test_the_short_paragraph_at_an_end_is_the_question(text: str) -> None:
    (document,), question = cut([text])
    assert question == QUESTION
    assert document.text == PASTE


def test_what_is_short_stays_whole() -> None:
    text = f"{PASTE[: LONG - 100]}\n\n{QUESTION}"[: LONG - 1]
    assert cut([text]) == ((), text)


def test_long_code_blocks_become_documents_and_their_names_stay() -> None:
    text = (
        f"Compare these.\n\n```old.py\n{PASTE}\n```\n\n```python\n{PASTE}!\n```\n\nWhich is right?"
    )
    documents, question = cut([text])
    assert [document.name for document in documents] == ["old.py", "python"]
    assert [document.text for document in documents] == [f"{PASTE}\n", f"{PASTE}!\n"]
    assert question == "Compare these.\n\n[old.py]\n\n[python]\n\nWhich is right?"


def test_tagged_files_become_documents() -> None:
    text = f'<file path="a/b.txt">\n{PASTE}</file>\n{QUESTION}\n```\nshort()\n```'
    (document,), question = cut([text])
    assert (document.name, document.text) == ("a/b.txt", PASTE)
    assert question == f"[a/b.txt]\n{QUESTION}\n```\nshort()\n```"


def test_a_long_part_beside_a_short_one_is_a_document() -> None:
    (document,), question = cut([PASTE, QUESTION])
    assert (document.text, question) == (PASTE, QUESTION)


def test_a_question_in_a_long_part_is_found_if_the_short_parts_ask_nothing() -> None:
    (document,), question = cut([f"{QUESTION}\n\n{PASTE}", "[Image 1]"])
    assert (document.text, question) == (PASTE, f"{QUESTION}\n\n[Image 1]")
    (document,), question = cut([f"Who wrote it?\n\n{PASTE}", QUESTION])
    assert question == QUESTION


def test_without_paragraphs_the_last_lines_are_the_question() -> None:
    (document,), question = cut([PASTE])
    assert f"{document.text}\n{question}" == PASTE
    assert 20 < len(question) < 700


def test_a_text_without_lines_is_not_cut() -> None:
    assert cut(["x" * 9000]) == ((), "x" * 9000)


CLAUSE = "The tenant keeps the rooms in good order and reports damage at once. " * 6
CLAUSES = "\n\n".join(f"{n}. {CLAUSE}" for n in range(1, 20))
SIGNED = "Signed in Berlin on 5 May 2026."
CONTRACT = f"{CLAUSES}\n\n{SIGNED}"


@table(
    "question",
    [
        "What is the notice period?",
        "Summarise the contract.",
        "Please list all dates",
        "Tell me this: who pays for repairs",
        "I have a contract.\n\nWho signed it?",
        "Quel est le préavis ?",
        "Nenne die Kündigungsfrist.",
        "解約の予告期間は？",
        "The contract follows:",
        "Is 'a?b' in *it*?**",
    ],
)
def test_a_question_before_a_text_is_found(question: str) -> None:
    whole = (Document("text 1", CONTRACT),), question
    signed = (Document("text 1", CLAUSES),), f"{question}\n\n{SIGNED}"
    has_mark = set(question) & set("?？")
    assert cut([f"{question}\n\n{CONTRACT}"]) == (whole if has_mark else signed)


@table(
    "first, last",
    [
        (first, last)
        for first in ("Draft Lease Agreement", "List of Parties", "Review of 2026", "They agree:")
        for last in ("I need the penalty for late delivery.", "TL;DR", "Vertragsstrafe, bitte.")
    ],
)
def test_a_title_that_looks_like_a_request_hides_no_question(first: str, last: str) -> None:
    _, question = cut([f"{first}\n\n{CLAUSES}\n\n{last}"])
    assert question.endswith(last)


def test_what_stands_in_tags_may_be_quoted_by_the_question() -> None:
    log = "Here is the search log:\n<query>\nfoo bar\n</query>"
    asked = "Which clause mentions late delivery?"
    documents, question = cut([f"{log}\n\n{CONTRACT}\n\n{asked}"])
    assert asked in question
    assert all(asked not in each.text for each in documents)


def test_a_question_on_the_line_before_a_text_is_found() -> None:
    question = "Which line is wrong?"
    assert cut([f"{question}\n{PASTE}"]) == ((Document("text 1", PASTE),), question)
    heading = "Server log"
    (document,), found = cut([f"{heading}\n\n{PASTE}\n{question}"])
    assert (document.text, found) == (f"{heading}\n\n{PASTE}", question)


def test_questions_at_both_ends_are_both_the_question() -> None:
    (document,), question = cut([f"Who pays?\n\n{CONTRACT}\n\nAnd until when?"])
    assert (document.text, question) == (CONTRACT, "Who pays?\n\nAnd until when?")


def test_without_a_recognisable_question_the_end_is_always_read() -> None:
    for last in ("Berapa dendanya", "What is the penalty?"):  # both leave the same document
        (document,), question = cut([f"Kontrak sewa\n\n{CLAUSES}\n\n{last}"])
        assert (document.text, question) == (f"Kontrak sewa\n\n{CLAUSES}", last)


ENVIRONMENT = (
    f"<environment_details>\n# Files\n{PASTE}\n\n# Current Mode\nACT\n</environment_details>"
)


@table(
    "tag", ["task", "user_query", "userRequest", "question", "feedback", "USER_REQUEST", "answer"]
)
def test_a_task_in_tags_is_the_question(tag: str) -> None:
    task = f"<{tag}>\nFix the failing test in a.py\n</{tag}>"
    context: list[str] = []
    for parts in ([f"{task}\n\n{ENVIRONMENT}"], [task, ENVIRONMENT], [f"{ENVIRONMENT}\n{task}"]):
        context.clear()
        assert cut(parts, context) == ((), task)
        assert context == [ENVIRONMENT]
    for text in (f"{task}\n\n{CONTRACT}", f"{CONTRACT}\n\n{task}"):
        assert cut([text]) == ((Document("text 1", CONTRACT),), task)
    (document,), question = cut([f"<{tag}>\nWho pays?\n\n{CONTRACT}\n</{tag}>", "[1 file]"])
    assert (document.text, question) == (CONTRACT, f"<{tag}>\nWho pays?</{tag}>\n\n[1 file]")


def test_tags_in_a_sentence_are_its_words() -> None:
    for tag in ("user-info", "system-reminder"):
        question = f"Why is <{tag}> shown twice, and what is </{tag}> for?"
        assert cut([question], context := []) == ((), question)
        assert context == []


def test_instructions_are_a_task_unless_they_are_those_of_a_file() -> None:
    task = "<instructions>\nName the parties.\n</instructions>"
    for text in (f"{task}\n\n{CONTRACT}", f"{CONTRACT}\n\n{task}"):
        assert cut([text], context := []) == ((Document("text 1", CONTRACT),), task)
        assert context == []
    rules = f"# AGENTS.md instructions for /repo\n\n<INSTRUCTIONS>\n{PASTE}\n</INSTRUCTIONS>"
    assert cut([f"{rules}\n\n{QUESTION}"], context := []) == ((), QUESTION)
    assert context == [rules]


def test_a_file_with_many_tags_of_tasks_is_a_file() -> None:
    file = "".join(f"<task>\nDo {n}.\n{CLAUSE}\n</task>\n" for n in range(20))
    (document,), question = cut([f"{file}\n\nWhich task is last?"])
    assert (document.text, question) == (file.rstrip(), "Which task is last?")


@table(
    "block",
    [
        f"<system-reminder>\n{PASTE}\n</system-reminder>",
        f"<environment_context>\n{PASTE}\n</environment_context>",
        f"<env>\n{PASTE}\n</env>",
        f"<permissions instructions>\n{PASTE}\n</permissions instructions>",
        f"# AGENTS.md instructions for /repo\n\n<INSTRUCTIONS>\n{PASTE}\n</INSTRUCTIONS>",
        f"# AGENTS.md\n\n{PASTE}",
        f"Contents of /repo/CLAUDE.md (project instructions):\n\n{PASTE}",
        f'<file path="/repo/CLAUDE.md">\n{PASTE}\n</file>',
        f'<file name=".cursor/rules/style.mdc">\n{PASTE}\n</file>',
        f"```.cursorrules\n{PASTE}\n```",
        f"CONVENTIONS.md\n```\n{PASTE}\n```",
        f"docs/CONVENTIONS.md\n````md\n{PASTE}\n````",
        f"CONVENTIONS.md\n<source>\n{PASTE}\n</source>",
        f"<skill>\n<name>review</name>\n<path>/s/SKILL.md</path>\n{PASTE}\n</skill>",
        f'<skill_content name="review">\n{PASTE}\n</skill_content>',
        f"Base directory for this skill: /s/review\n\n{PASTE}",
        f'<explicit_instructions type="new_task">\n{PASTE}\n</explicit_instructions>',
        "<turn_aborted>\nThe user interrupted the turn.\n</turn_aborted>",
    ],
)
def test_what_an_editor_adds_is_no_document_and_no_question(block: str) -> None:
    context: list[str] = []
    assert cut([block, QUESTION], context) == ((), QUESTION)
    assert context == [block]
    documents, question = cut([QUESTION, block])
    assert (documents, question) == ((), f"{block}\n\n{QUESTION}")


def test_a_reminder_on_the_line_of_the_question_is_found() -> None:
    reminder = "<system-reminder>Be brief.</system-reminder>"
    assert cut([f"{QUESTION} {reminder}"], context := []) == ((), f"{QUESTION} ")
    assert context == [reminder]
    for text in ("Is <env>x</env> XML?", "Is <task>x</task> XML?"):
        assert cut([text], context := []) == ((), text)


def test_reminders_in_files_and_code_stay_there() -> None:
    reminder = "<system-reminder>\nshort\n</system-reminder>"
    for text in (f'<file path="a.txt">\n{reminder}\n</file>', f"```\n{reminder}\n```"):
        assert cut([text], context := []) == ((), text)
        assert context == []


def test_nested_reminders_are_one_block() -> None:
    inner = "<system-reminder>b</system-reminder>"
    for between in (" ", "\n"):
        reminder = f"<system-reminder>{between}a{between}{inner}{between}c</system-reminder>"
        assert cut([f"{reminder}\n{QUESTION}"], context := []) == ((), QUESTION)
        assert context == [reminder]
    mention = f"<system-reminder>\nTags <system-reminder> are mine.\n{PASTE}\n</system-reminder>"
    assert cut([f"{mention}\n\n{QUESTION}\n{inner}"], context := []) == ((), QUESTION)
    assert context == [mention, inner]


@table("last", ["Which has the longer notice period?", "Compare the two contracts.", "Who pays?)"])
def test_a_question_between_two_texts_is_found(last: str) -> None:
    other = CLAUSES.replace("tenant", "buyer")
    documents, question = cut([f"{CLAUSES}\n\n{last}\n\n{other}"])
    assert question == last or question.startswith(f"{last}\n\n")
    assert documents[0] == Document("text 1", CLAUSES)
    assert documents[1].text.startswith("1. The buyer")
    assert all(last not in each.text for each in documents)


def test_a_question_on_a_line_between_two_texts_is_found() -> None:
    documents, question = cut([f"{PASTE}\n{QUESTION}\n{PASTE}"])
    assert question.startswith(f"{QUESTION}\n\n")
    assert [each.text for each in documents] == [PASTE, PASTE[: len(documents[1].text)]]


def test_questions_within_a_text_stay_there_if_it_has_many_or_an_end_asks() -> None:
    answers = "\n\n".join(f"Who pays for {n}?\n\n{CLAUSE}" for n in range(20))
    documents, question = cut([f"{CLAUSES}\n\n{answers}\n\n{CONTRACT}"])
    assert (len(documents), question) == (1, SIGNED)
    documents, question = cut([f"{CLAUSES}\n\nWho pays?\n\n{CLAUSES}\n\nSummarise the text."])
    assert (len(documents), question) == (1, "Summarise the text.")


FILE_BLOCKS = {
    f'<file_content path="src/a.ts">\n{PASTE}\n</file_content>': "src/a.ts",
    f'<folder_content path="src/">\n{PASTE}\n</folder_content>': "src/",
    f'<url_content url="https://a.b/c">\n{PASTE}\n</url_content>': "https://a.b/c",
    f'<attachment filePath="b.py">\n{PASTE}\n</attachment>': "b.py",
    f'<document index="1">\n<source>c.pdf</source>\n{PASTE}\n</document>': "c.pdf",
    f"calc.py\n```\n{PASTE}\n```": "calc.py",
    f"### File: `src/calc.py`\n\n````python\n{PASTE}\n````": "src/calc.py",
    f"calc.py\n<source>\n{PASTE}\n</source>": "calc.py",
    f"Compare these.\n```\n{PASTE}\n```": "text 1",
}


@table("block", FILE_BLOCKS)
def test_a_file_has_the_name_that_its_tag_or_the_line_above_gives(block: str) -> None:
    for parts in ([f"{block}\n\n{QUESTION}"], [QUESTION, block]):
        (document,), question = cut(parts)
        assert document.name == FILE_BLOCKS[block]
        assert QUESTION in question
        assert PASTE not in question


def test_lines_of_an_unnamed_text_are_no_marks_of_pages() -> None:
    text = f"[Page 99]\n{PASTE}"
    (document,), _ = cut([f"{text}\n\n{QUESTION}"])
    assert document.text == text
    assert place_of(document.text, 50, name=document.name).part == ""
    (document,), _ = cut([f"```console\n{text}\n```\n\n{QUESTION}"])
    assert place_of(document.text, 50, name=document.name).part == ""
    (document,), _ = cut([f'<file path="a.pdf">\n{text}</file>\n\n{QUESTION}'])
    assert place_of(document.text, 50, name=document.name).part == "page 99"


COMMAND = "<command-message>review</command-message>\n<command-name>/review</command-name>"


def test_a_command_and_its_body_are_no_documents() -> None:
    for parts in ([COMMAND, CONTRACT], [f"{COMMAND}\n{CONTRACT}"]):
        assert cut(parts) == ((), "\n\n".join(parts))
    assert cut([CONTRACT], after_command=True) == ((), CONTRACT)
    output = "<local-command-stdout></local-command-stdout>"
    (document,), question = cut([COMMAND, output, f"{QUESTION}\n\n{CONTRACT}"])
    assert document.text == CONTRACT
    assert question == f"{COMMAND}\n\n{output}\n\n{QUESTION}"


def test_rules_at_the_end_of_a_message_are_always_read() -> None:
    for heading in ("# *SEARCH/REPLACE block* Rules:", "# File editing rules:"):
        rules = f"{heading}\n\nEvery block is new.\n{PASTE}"
        assert cut([f"{QUESTION}\n\n{rules}"], context := []) == ((), QUESTION)
        assert context == [rules]
        asked = f"```md\n{rules}\n```\n\n{QUESTION}"
        (document,), question = cut([asked], context := [])
        assert (document.text, question, context) == (f"{rules}\n", f"[md]\n\n{QUESTION}", [])


def test_skill_tags_of_other_files_are_words() -> None:
    text = "<skill>\nPython\n</skill>"
    assert cut([text], context := []) == ((), text)
    assert context == []


@pytest.mark.slow
@table(
    "text",
    [
        "<a>",
        "<file>",
        "<task>\n",
        "```\n",
        "</file>",
        "?\n",
        "\n",
        "<system-reminder>\n",
        "</system-reminder>\n",
        "CLAUDE.md\n```\n",
        "a.\n\n",
        "<",
        "<instructions>\n</instructions>\n",
    ],
)
def test_long_texts_are_cut_in_linear_time(text: str) -> None:
    seconds = []
    for size in (200_000, 800_000):
        began = time.process_time()
        cut([text * (size // len(text))])
        seconds.append(time.process_time() - began)
    assert seconds[1] < 0.5 or seconds[1] < 8 * seconds[0]


@given(st.lists(st.sampled_from([PASTE, QUESTION, "", "\n\n", "```\n", "<file>", "x" * 5000])))
def test_no_text_is_lost(parts: list[str]) -> None:
    text = "\n".join(parts)
    documents, question = cut([text])
    letters = "".join(document.text for document in documents) + question
    for word in ("400", "line 399", "What does", "x" * 5000):
        assert letters.count(word) >= text.count(word)
