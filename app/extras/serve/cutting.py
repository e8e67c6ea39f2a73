"""Cuts a long message into documents, which may be read sparsely, and the question about them.

Editors paste whole files into one message. Questions are always read in full, so without this
nothing in such a message could be skipped. Editors also add blocks of their own: instructions,
reminders and their state are always read, but are not part of the question.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from app.protocol.prompt import Document
from app.util.places import UNNAMED, escape_marks
from app.util.sentences import asks as is_asking
from app.util.sentences import begins_as_request

LONG = 4_000
"""Minimum characters of a document, and of a message that is cut."""
QUESTION = 1_500
"""Maximum characters of paragraphs that may be the question."""
DEPTH = 5
"""Paragraphs at each end of a text among which the question is looked for."""
TAIL = 600
"""Characters at the end of a text that are the question if there is no such paragraph."""
MAX_MARKS = 100
"""Documents of a message whose names are removed around the question."""
MAX_INNER = 3
"""Maximum paragraphs in a text that are a question in its middle."""
MAX_TASKS = 3
"""A text with more tags of tasks is a file that happens to have such tags."""
_TAG = re.compile(r"<(/?)([A-Za-z][\w.-]*+)([^<>\n]*+)>(\n?)")
_FENCE = re.compile(r"^(`{3,}+|~{3,}+)([^\n`]*+)$", re.MULTILINE)
_NAME = re.compile(r"(?:name|path|title|source|url)\s*+=\s*+[\"']([^\"']++)[\"']", re.IGNORECASE)
_INNER_NAME = re.compile(r"\s*+<(?:name|path|filename|title|source|url)>([^<>\n]++)</")
_FILE_NAMES = """file document attachment context filecontent filecontents finalfilecontent
    foldercontent urlcontent"""
_SOURCE = "source"
"""aider's tag around a file that has code fences."""
_FILES = frozenset((*_FILE_NAMES.split(), _SOURCE))
"""Tags around files. Names of tags are compared by their letters and digits only."""
_TASK_NAMES = """task userquery userrequest userprompt usermessage userinput question query
    request prompt feedback answer usertask issuedescription prdescription instruction
    instructions"""
_TASKS = frozenset(_TASK_NAMES.split())
"""Tags around the user's own words: Cline, Roo, Kilo, Cursor, Copilot, Windsurf, OpenHands."""
_INSTRUCTIONS = "instructions"
"""A tag around a task, or, after a heading such as `# AGENTS.md`, around rules (Codex)."""
_SKILL = "skill"
"""Codex's tag around instructions that begin with their name."""
_PINNED_NAMES = """systemreminder systemreminders reminder reminderinstructions systeminfo
    systeminformation environmentdetails environmentcontext environmentinfo environment env
    userinfo workspaceinfo gitstatus userinstructions custominstructions projectinstructions
    instructions permissionsinstructions skillsinstructions agentskills collaborationmode rules
    userrules workspacerules projectrules globalrules repositoryrules
    alwaysappliedworkspacerules agentrequestableworkspacerules cursorrules clinerules
    windsurfrules claudemd agentsmd memories additionalmetadata editorcontext repocontext
    projectlayout openandrecentlyviewedfiles skill skillcontent explicitinstructions turnaborted
    localcommandcaveat tasknotification"""
_PINNED = frozenset(_PINNED_NAMES.split())
"""Tags around what an editor adds: Claude Code, Codex, opencode, Cline, Cursor, Copilot."""
_REMINDERS = frozenset(("systemreminder", "systemreminders"))
_RULES_NAMES = """agents.md agents.override.md agent.md claude.md claude.local.md gemini.md qwen.md
    warp.md opencode.md conventions.md copilot-instructions.md .cursorrules .clinerules
    .windsurfrules .roorules .kilocoderules .goosehints .rules"""
_RULES = frozenset(_RULES_NAMES.split())
"""Names of files with rules for agents."""
_SKILL_HEADING = "Base directory for this skill:"
"""Begins the instructions of a skill in Claude Code and opencode."""
_AIDER_RULES = re.compile(
    r"^# (?:<SYSTEM> )?(?:\*SEARCH/REPLACE block\*|File editing) rules:$",
    re.IGNORECASE | re.MULTILINE,
)
"""Begins the rules that aider adds at the end of a message."""
_COMMAND = re.compile(r"\s*+<command-(?:name|message)>")
"""Begins a part of a message with a command of Claude Code. Its body is the next part."""
_ASKED = re.compile(r"[\w\"'”’»)\]*_`]\?(?=\s|$)|\?[\"'”’»)\]*_`]*$|[？؟\u037e]", re.MULTILINE)
"""A question mark after a word; at the end of a line it may stand alone, as in French."""
_INTRODUCED = re.compile(r"\w++(?:[ ,]++[\w']++){2,}+:")
"""A line that announces what follows."""
_FIRST_WORD = re.compile(r"\W*+[^\W\d_]++(?:,? [\w\"'`“„«]|[.!:,。！]?$|[.!:,。！]?\n)")
"""The first word of a sentence, unlike that of a line such as `count = 3` or `find . -name a`."""
_CODE_ENDS = ("{", "}", ";", ",", ")")
_SEPARATORS = re.compile(r"[\s\"'=/\\()`:,*<>]+")
MAX_NAME = 300
"""Characters of a label or heading in which a file's name is looked for."""


def cut(
    parts: Sequence[str],
    context: list[str] | None = None,
    *,
    is_asked: bool = False,
    after_command: bool = False,
) -> tuple[tuple[Document, ...], str]:
    """Cut the text parts of a message into documents and the question. Each character goes into
    one of them. In the question, a document's name marks where the document was. The blocks that
    an editor has added go into `context`, or, without it, stand before the question.

    `is_asked`: another message, with no answer between the two, asks something, so this one may be
    a text only. `after_command`: the first part is the body of a command."""
    documents: list[Document] = []
    commands: list[str] = []
    texts: list[str] = []
    blocks, own = _own_parts(parts)
    for part in own:
        is_command = ends_with_command([part])
        (commands if is_command or after_command else texts).append(part)
        after_command = is_command
    question = _cut(texts, documents, is_asked)
    if commands:
        question = "\n\n".join(filter(None, [*commands, question]))
    if context is None:
        return tuple(documents), "\n\n".join([*blocks, question] if question else blocks)
    context += blocks
    return tuple(documents), question


def message_asks(parts: Sequence[str]) -> bool:
    """Whether the user's own words in a message ask for something."""
    return any(
        _tasks(part) or (_has_question if len(part) < LONG else _asks_at_edge)(part)
        for part in _own_parts(parts)[1]
    )


def introduces(text: str) -> bool:
    """Whether a text asks for nothing and ends with a line that announces another, such as `Here it
    is:` or the name of a file."""
    line = text.rstrip().rpartition("\n")[2]
    return (line.endswith((":", "：")) or bool(_file_name(line))) and not message_asks([text])


def ends_with_command(parts: Sequence[str]) -> bool:
    """Whether the last part is a command. Its body is the next part, if there is one."""
    return bool(parts) and _COMMAND.match(parts[-1]) is not None


def _own_parts(parts: Sequence[str]) -> tuple[list[str], list[str]]:
    """The blocks that an editor has added to a message, and the other parts."""
    blocks, own = [], []
    for part in parts:
        found, rest = _set_apart(part, _PINNED)
        blocks += found
        if rest.strip() or not found:
            own.append(rest)
    return blocks, own


def text_document(name: str, text: str) -> Document:
    """A document that is not a file. Lines of its text are marks of pages only if its name has an
    ending that says so. Rules for agents are always read."""
    text = text if "." in name else escape_marks(text, name)
    return Document(name, text, ((0, len(text)),) if names_rules(name) else ())


def without_outer_names(text: str, documents: Sequence[Document]) -> str:
    """Remove the names of documents before and after a question. Each document begins with its
    name anyway, and the name's words would count as words of the question. If there are names
    inside the question, all names stay."""
    marks = tuple(f"[{document.name}]" for document in documents)
    if not 0 < len(marks) <= MAX_MARKS or len(text) > LONG + sum(map(len, marks)):
        return text
    inner = text.strip()
    while inner.startswith(marks):
        inner = inner[len(next(filter(inner.startswith, marks))) :].lstrip()
    while inner.endswith(marks):
        inner = inner[: -len(next(filter(inner.endswith, marks)))].rstrip()
    return text if any(mark in inner for mark in marks) else inner


def reminders_apart(text: str) -> tuple[list[str], str]:
    """The reminders in the result of a tool, and the result without them."""
    return _set_apart(text, _REMINDERS)


def _set_apart(text: str, kinds: frozenset[str]) -> tuple[list[str], str]:
    """The blocks of a text that a program has added, and the text without them."""
    blocks, kept, at = [], [], 0
    text, rules = _aider_rules_apart(text) if kinds is _PINNED else (text, [])
    for opening, closing in _blocks_of(text, kinds):
        start = opening.start
        near = max(at, start - 2 * MAX_NAME)
        before = text[near:start].rstrip()
        line = before[before.rfind("\n") + 1 :]
        is_named = opening.kind not in kinds and names_rules(_file_name(line))
        if is_named or _is_rules_heading(line):
            start = near + len(before) - len(line)
        elif (
            opening.kind == _INSTRUCTIONS
            or (opening.kind == _SKILL and not _INNER_NAME.match(text, opening.inner))
            or (line.strip() and _goes_on(text, closing.end))
        ):
            continue
        blocks.append(text[start : closing.end].strip("\n"))
        kept.append(text[at:start].strip("\n"))
        at = closing.end
    if not blocks:
        is_rules = kinds is _PINNED and _is_rules_heading(text.partition("\n")[0])
        return ([text, *rules], "") if is_rules else (rules, text)
    rest = "\n\n".join(filter(str.strip, [*kept, text[at:].strip("\n")]))
    return blocks + rules, rest


def _aider_rules_apart(text: str) -> tuple[str, list[str]]:
    """A text without the rules at its end, and the rules. In a code block they are a file's."""
    found = _AIDER_RULES.search(text)
    if found is None or f"\n{text[: found.start()]}".count("\n```") % 2:
        return text, []
    rules = text[found.start() :]
    if any(_ASKED.search(rules, at, stop) for at, stop in _tails(rules, "\n\n", QUESTION)):
        return text, []
    return text[: found.start()].rstrip("\n"), [rules]


def _goes_on(text: str, at: int) -> bool:
    """Whether a line goes on, so that tags in it are words of a sentence."""
    end = text.find("\n", at)
    return bool(text[at : len(text) if end < 0 else end].strip())


def _cut(parts: Sequence[str], documents: list[Document], is_asked: bool) -> str:
    """Move long texts into `documents`; return the question."""
    least = QUESTION if is_asked else LONG
    short = [part for part in parts if len(part) < least]
    if not is_asked and (len(parts) < 2 or not any(map(str.strip, short))):
        return _cut_text("\n\n".join(parts), documents)
    is_asked_here, kept = any(map(_asks, short)), []
    for part in parts:
        has_question = _asks_at_edge if is_asked and len(part) >= LONG else _has_question
        if len(part) < least:
            kept.append(part)
        elif _tasks(part) or (has_question(part) and not is_asked_here):
            kept.append(_cut_text(part, documents))
        else:  # a long separate part is a document, or has some
            before = len(documents)
            rest = _without_files(part, documents)
            if len(rest) < least:
                kept.append(rest)
            else:
                documents[before:] = []
                _add(documents, part)
    return "\n\n".join(kept)


def _cut_text(text: str, documents: list[Document]) -> str:
    text = _without_files(text, documents)
    if len(text) < LONG:
        return text
    tasks, around, at = [], [], 0
    for opening, closing in _tasks(text):
        task = text[opening.inner : closing.start]
        if len(task) >= LONG:
            task = _split(task, documents)
        tasks.append(text[opening.start : opening.inner] + task + text[closing.start : closing.end])
        around.append(text[at : opening.start].strip("\n"))
        at = closing.end
    if not tasks:
        return _split(text, documents)
    rest = "\n\n".join(filter(str.strip, [*around, text[at:].strip("\n")]))
    if len(rest) >= LONG and _has_question(rest):
        rest = _split(rest, documents)
    elif len(rest) >= LONG:
        _add(documents, rest)
        rest = ""
    return "\n\n".join(filter(None, [rest, *tasks]))


class _Mark(NamedTuple):
    """Characters `start:end` that open or close a block: a tag or a code fence. `inner` is where
    the block's text begins. The two marks of a block have the same `kind`; `label` is the rest of
    the opening mark."""

    kind: str
    label: str
    opens: bool
    closes: bool
    start: int
    end: int
    inner: int


def _tags(text: str, kinds: frozenset[str]) -> Iterator[_Mark]:
    """The tags of these kinds. A name of one word begins a line, unless it is that of a file."""
    for match in _TAG.finditer(text):
        slash, label, start = match[1], match[3], match.start()
        kind = _letters(match[2])
        if kind not in kinds and 0 < len(label) < MAX_NAME:
            kind, label = kind + _letters(label), ""
        if kind not in kinds:
            continue
        opens, closes = not slash and not label.endswith("/"), bool(slash) and not label.strip()
        is_free = (kind in _FILES and kind != _SOURCE) or not match[2].isalpha()
        if closes or is_free or start == 0 or text[start - 1] == "\n":
            yield _Mark(kind, label, opens, closes, start, match.start(4), match.end())


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).casefold()


def _fences(text: str) -> Iterator[_Mark]:
    for match in _FENCE.finditer(text):
        label, end = match[2].strip(), match.end()
        yield _Mark(match[1], label, end < len(text), not label, match.start(), end, end + 1)


def _blocks(marks: Sequence[_Mark]) -> Iterator[tuple[_Mark, _Mark]]:
    """Yield the opening and the closing mark of each outermost block. A tag ends at the tag that
    closes it and all of its kind in it, or else, like a code block, at the next one that closes.
    Takes linear time: every mark is visited at most twice, even if nothing closes."""
    closing: defaultdict[str, deque[_Mark]] = defaultdict(deque)
    opened: defaultdict[str, list[_Mark]] = defaultdict(list)
    pairs: dict[int, _Mark] = {}
    for mark in marks:
        if mark.closes:
            closing[mark.kind].append(mark)
        if mark.opens and not mark.closes:
            opened[mark.kind].append(mark)
        elif mark.closes and not mark.opens and opened[mark.kind]:
            pairs[opened[mark.kind].pop().start] = mark
    at = 0
    for mark in marks:
        if mark.opens and mark.start >= at:
            ends = closing[mark.kind]
            while ends and ends[0].start < mark.inner:
                ends.popleft()
            if ends:
                end = pairs.get(mark.start, ends[0])
                at = end.end
                yield mark, end


def _without_files(text: str, documents: list[Document]) -> str:
    text = _without([*_tags(text, _FILES)], text, documents)
    return _without([*_fences(text)], text, documents)


def _without(marks: Sequence[_Mark], text: str, documents: list[Document]) -> str:
    """Move long blocks of `text` into `documents`; return the text with their names instead."""
    kept, at = [], 0
    for opening, closing in _blocks(marks):
        if closing.start - opening.inner < LONG:
            continue
        _add(documents, text[opening.inner : closing.start], _name(text, opening))
        kept += [text[at : opening.start], f"[{documents[-1].name}]"]
        at = closing.end
    return "".join([*kept, text[at:]])


def _add(documents: list[Document], text: str, name: str = "") -> None:
    name = " ".join(name.split())[:200] or f"{UNNAMED} {len(documents) + 1}"
    documents.append(text_document(name, text))


def _name(text: str, opening: _Mark) -> str:
    """The name of a block: in its first line or tag, or alone on the line above it; "" if none."""
    if is_fence := opening.kind[0] in "`~":
        found = None
    else:
        found = _NAME.search(opening.label) or _INNER_NAME.match(text, opening.inner)
    if found or (is_fence and ("." in opening.label or "/" in opening.label)):
        return found[1] if found else opening.label
    above = text[max(0, opening.start - MAX_NAME) : opening.start].rstrip()
    return _file_name(above[above.rfind("\n") + 1 :]) or (opening.label if is_fence else "")


def _file_name(line: str) -> str:
    """The name of a file that a line consists of; "" if it has other words."""
    name = line.rpartition("File: ")[2].strip(" \t#*`\"':")
    is_name = os.path.splitext(name)[1][1:].isalnum() or names_rules(name)
    return name if is_name and len(name.split()) == 1 else ""


def _blocks_of(text: str, kinds: frozenset[str]) -> list[tuple[_Mark, _Mark]]:
    """The blocks of these kinds that are in no file or code block. A file with rules for agents
    counts as pinned."""
    marks = sorted([*_tags(text, _FILES | kinds), *_fences(text)], key=attrgetter("start"))
    return [
        (opening, closing)
        for opening, closing in _blocks(marks)
        if opening.kind in kinds
        or (kinds is _PINNED and names_rules(f"{opening.label} {_name(text, opening)}"))
    ]


def _tasks(text: str) -> list[tuple[_Mark, _Mark]]:
    found = _blocks_of(text, _TASKS)
    return found if len(found) <= MAX_TASKS else []


def names_rules(text: str) -> bool:
    """Whether a name, or the label of a block, has the name of a file with rules for agents."""
    words = _SEPARATORS.split(text[:MAX_NAME])
    return any(word.casefold() in _RULES or word.endswith(".mdc") for word in words)


def _is_rules_heading(line: str) -> bool:
    if line.startswith(_SKILL_HEADING):
        return True
    return line.startswith(("#", "Contents of ", "Instructions from")) and names_rules(line)


def _split(text: str, documents: list[Document]) -> str:
    """Move a text without its question into `documents`; return the question, or the whole text if
    it has only one line."""
    body = text.strip("\n")
    if len(body) < LONG:
        return text
    start, end = _ends(body)
    tail = body[end:].strip("\n")
    is_asked = any(_asks(each) for each in (*body[:start].split("\n\n"), *tail.split("\n\n")))
    inner = [] if is_asked else _inner(body, start, end)
    if (start, end) == (0, len(body)) and not inner:
        return text
    question, at = [body[:start]], start
    for first, last in [*inner, (end, end)]:
        between = body[at:first].strip("\n")
        if len(between) < TAIL:
            question.append(between)
        else:
            _add(documents, between)
        question.append(body[first:last])
        at = last
    return "\n\n".join(filter(None, [*question, tail]))


def _inner(body: str, start: int, end: int) -> list[tuple[int, int]]:
    """The paragraphs, or else the lines, between `start` and `end` that ask for something; none if
    there are many, as in a list of questions and answers."""
    for gap in ("\n\n", "\n"):
        found, at = [], start
        for piece in body[start:end].split(gap):
            is_line = gap == "\n" and not _ASKED.search(piece)
            if len(piece) <= TAIL and not is_line and _is_request(piece):
                found.append((at, at + len(piece)))
            at += len(piece) + len(gap)
        if found:
            return found if len(found) <= MAX_INNER else []
    return []


def _ends(body: str) -> tuple[int, int]:
    """Where the question's part at the start ends, and where its part at the end begins: at
    paragraphs, or else lines, that ask for something. Unless a question mark is at the start, the
    last short paragraph belongs to the question too, or else the last lines do."""
    last = len(body)
    for gap, longest in (("\n\n", QUESTION), ("\n", TAIL)):
        heads, tails = [*_heads(body, gap, longest)], [*_tails(body, gap, longest)]
        asking = [stop for at, stop in heads if _asks(body[at:stop]) or _announces(body[at:stop])]
        start = max(asking, default=0)
        end = min((at for at, stop in tails if _asks(body[at:stop])), default=len(body))
        if gap == "\n\n" and tails:
            last = tails[0][0]
        if end == len(body) and start and not _ASKED.search(body[:start]):
            end = max(last, start)  # a title may look like a request
        if (start, end) != (0, len(body)):
            return start, end
    if last < len(body):
        return 0, last
    end = body.rfind("\n", 0, len(body) - 1)
    while end > 0 and len(body) - (earlier := body.rfind("\n", 0, end)) <= TAIL and earlier > 0:
        end = earlier
    return (0, len(body)) if end <= 0 or len(body) - end > QUESTION else (0, end)


def _heads(body: str, gap: str, longest: int) -> Iterator[tuple[int, int]]:
    """The first pieces of a text, within its `longest` first characters."""
    at = 0
    for _ in range(DEPTH):
        stop = body.find(gap, at, longest + len(gap))
        if stop < 0:
            return
        yield at, stop
        at = stop + len(gap)


def _tails(body: str, gap: str, longest: int) -> Iterator[tuple[int, int]]:
    """The last pieces of a text, within its `longest` last characters, last one first."""
    stop = len(body)
    for _ in range(DEPTH):
        at = body.rfind(gap, max(0, len(body) - longest - len(gap)), stop)
        if at < 0:
            return
        yield at + len(gap), stop
        stop = at


def _has_question(text: str) -> bool:
    """Whether a paragraph at an end of a text asks for something."""
    body = text.strip("\n")
    ends = [*_heads(body, "\n\n", QUESTION), *_tails(body, "\n\n", QUESTION)]
    return any(_asks(body[at:stop]) for at, stop in ends) or _asks_at_edge(body)


def _asks_at_edge(text: str) -> bool:
    """Whether the first or the last paragraph of a text asks for something, or its last line. At
    the start, a title such as `Review of 2026` does not."""
    body = text.strip()
    first, last = body.partition("\n\n")[0], body.rpartition("\n\n")[2]
    if len(first) <= QUESTION and (_ASKED.search(first) or _is_request(first)):
        return True
    if len(last) <= QUESTION and _asks(last):
        return True
    return _ASKED.search(last.rpartition("\n")[2]) is not None


def _is_request(text: str) -> bool:
    """Whether a piece of text is a question or an instruction, and ends as a sentence does. A
    heading is none."""
    text = text.strip()
    ends = text.rstrip("\"'”’»)]*_` ").endswith((".", "!", ":", "?", "。", "！", "：", "？", "؟"))
    return ends and not text.startswith("#") and _asks(text) and is_asking(text)


def _announces(text: str) -> bool:
    """Whether a piece of text ends with a line such as `The contract follows:`."""
    return bool(_INTRODUCED.fullmatch(text.rstrip().rpartition("\n")[2]))


def _asks(text: str) -> bool:
    """Whether a piece of text asks for something, judged by a question mark or its first words."""
    text = text.strip()
    if _ASKED.search(text):
        return True
    is_sentence = _FIRST_WORD.match(text) and not text.partition("\n")[0].endswith(_CODE_ENDS)
    return bool(is_sentence) and begins_as_request(text)
