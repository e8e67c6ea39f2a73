"""Cuts a long message into documents, which may be read sparsely, and the question about them.

Editors paste whole files into one message. Questions are always read in full, so without this
nothing in such a message could be skipped. Editors also add blocks of their own: instructions,
reminders and their state are always read, but are not part of the question.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from app.protocol.prompt import Document

LONG = 4_000
"""Minimum characters of a document, and of a message that is cut."""
QUESTION = 1_500
"""Maximum characters of paragraphs that may be the question."""
DEPTH = 5
"""Paragraphs at each end of a text among which the question is looked for."""
TAIL = 600
"""Characters at the end of a text that are the question if there is no such paragraph."""
MAX_TASKS = 3
"""A text with more tags of tasks is a file that happens to have such tags."""
_TAG = re.compile(r"<(/?)([A-Za-z][\w.-]*+)([^<>\n]*+)>(\n?)")
_FENCE = re.compile(r"^(`{3,}+|~{3,}+)([^\n`]*+)$", re.MULTILINE)
_NAME = re.compile(r"(?:name|path|filename|title|source)\s*+=\s*+[\"']([^\"']++)[\"']")
_FILES = frozenset(("file", "document", "attachment", "context"))
"""Tags around files. Names of tags are compared by their letters and digits only."""
_TASK_NAMES = """task userquery userrequest userprompt usermessage userinput question query
    request prompt feedback answer usertask issuedescription prdescription instruction
    instructions"""
_TASKS = frozenset(_TASK_NAMES.split())
"""Tags around the user's own words: Cline, Roo, Kilo, Cursor, Copilot, Windsurf, OpenHands."""
_INSTRUCTIONS = "instructions"
"""A tag around a task, or, after a heading such as `# AGENTS.md`, around rules (Codex)."""
_PINNED_NAMES = """systemreminder systemreminders reminder reminderinstructions systeminfo
    systeminformation environmentdetails environmentcontext environmentinfo environment env
    userinfo workspaceinfo gitstatus userinstructions custominstructions projectinstructions
    instructions permissionsinstructions skillsinstructions agentskills collaborationmode rules
    userrules workspacerules projectrules globalrules repositoryrules
    alwaysappliedworkspacerules agentrequestableworkspacerules cursorrules clinerules
    windsurfrules claudemd agentsmd memories additionalmetadata editorcontext repocontext
    projectlayout openandrecentlyviewedfiles"""
_PINNED = frozenset(_PINNED_NAMES.split())
"""Tags around what an editor adds: Claude Code, Codex, opencode, Cline, Cursor, Copilot."""
_REMINDERS = frozenset(("systemreminder", "systemreminders"))
_RULES_NAMES = """agents.md agents.override.md agent.md claude.md claude.local.md gemini.md qwen.md
    warp.md opencode.md conventions.md copilot-instructions.md .cursorrules .clinerules
    .windsurfrules .roorules .kilocoderules .goosehints .rules"""
_RULES = frozenset(_RULES_NAMES.split())
"""Names of files with rules for agents."""
_ASKED = re.compile(r"[\w\"'”’»)\]*_`]\?(?=\s|$)|\?[\"'”’»)\]*_`]*$|[？؟\u037e]", re.MULTILINE)
"""A question mark after a word; at the end of a line it may stand alone, as in French."""
_REQUEST_WORDS = """what who whom whose when where which why how is are was were does do did can
    could would should will has have please summarise summarize explain describe find list show
    tell give name compare review check analyse analyze identify extract quote translate rewrite
    rephrase write fix implement add remove change update refactor create make generate draft
    answer help count look search use convert improve correct proofread outline sum based according
    was wer wie wo wann warum welche welcher welches ist sind gibt kannst bitte fasse erkläre nenne
    finde zeige liste vergleiche prüfe übersetze schreibe beschreibe que quel quelle quels quelles
    qui quand où pourquoi comment est résume résumez explique expliquez trouve trouvez liste donne
    donnez traduis traduisez qué cuál cuáles quién cuándo dónde cómo resume resuma explica explique
    encuentra enumera traduce cosa quale quali chi quando dove perché come riassumi spiega trova
    elenca traduci qual quais quem quando onde porque resuma explique encontre traduza wat wie waar
    wanneer waarom welke vat leg zoek vertaal"""
_REQUESTS = frozenset(_REQUEST_WORDS.split())
"""First words of requests. They only decide between the two ends of a text."""
_INTRODUCED = re.compile(r"\w++(?:[ ,]++[\w']++){2,}+:")
"""A line that announces what follows."""
_FIRST_WORD = re.compile(r"\W*+([^\W\d_]++)(?:,? \w|[.!:,]?$|[.!:,]?\n)")
_SEPARATORS = re.compile(r"[\s\"'=/\\()`:,*<>]+")
MAX_NAME = 300
"""Characters of a label or heading in which a file's name is looked for."""


def cut(parts: Sequence[str], context: list[str] | None = None) -> tuple[tuple[Document, ...], str]:
    """Cut the text parts of a message into documents and the question. Each character goes into
    one of them. In the question, a document's name marks where the document was. The blocks that
    an editor has added go into `context`, or, without it, stand before the question."""
    documents: list[Document] = []
    blocks: list[str] = []
    own = []
    for part in parts:
        found, rest = _set_apart(part, _PINNED)
        blocks += found
        if rest.strip() or not found:
            own.append(rest)
    question = _cut(own, documents)
    if context is None:
        return tuple(documents), "\n\n".join([*blocks, question] if question else blocks)
    context += blocks
    return tuple(documents), question


def reminders_apart(text: str) -> tuple[list[str], str]:
    """The reminders in the result of a tool, and the result without them."""
    return _set_apart(text, _REMINDERS)


def _set_apart(text: str, kinds: frozenset[str]) -> tuple[list[str], str]:
    """The blocks of a text that a program has added, and the text without them."""
    blocks, kept, at = [], [], 0
    for opening, closing in _blocks_of(text, kinds):
        start = opening.start
        near = max(at, start - 2 * MAX_NAME)
        before = text[near:start].rstrip()
        line = before[before.rfind("\n") + 1 :]
        if _is_rules_heading(line):
            start = near + len(before) - len(line)
        elif opening.kind == _INSTRUCTIONS or (line.strip() and _goes_on(text, closing.end)):
            continue
        blocks.append(text[start : closing.end].strip("\n"))
        kept.append(text[at:start].strip("\n"))
        at = closing.end
    if not blocks:
        is_rules = kinds is _PINNED and _is_rules_heading(text.partition("\n")[0])
        return ([text], "") if is_rules else ([], text)
    return blocks, "\n\n".join(filter(str.strip, [*kept, text[at:].strip("\n")]))


def _goes_on(text: str, at: int) -> bool:
    """Whether a line goes on, so that tags in it are words of a sentence."""
    end = text.find("\n", at)
    return bool(text[at : len(text) if end < 0 else end].strip())


def _cut(parts: Sequence[str], documents: list[Document]) -> str:
    """Move long texts into `documents`; return the question."""
    short = [part for part in parts if len(part) < LONG]
    if len(parts) < 2 or not any(map(str.strip, short)):
        return _cut_text("\n\n".join(parts), documents)
    kept = []
    for part in parts:
        if len(part) < LONG:
            kept.append(part)
        elif _tasks(part) or (_has_question(part) and not any(map(_asks, short))):
            kept.append(_cut_text(part, documents))
        else:  # a long separate part is a document
            documents.append(Document(_named(documents, ""), part))
    return "\n\n".join(kept)


def _cut_text(text: str, documents: list[Document]) -> str:
    text = _without([*_tags(text, _FILES)], text, documents)
    text = _without([*_fences(text)], text, documents)
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
        documents.append(Document(_named(documents, ""), rest))
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
        is_free = kind in _FILES or not match[2].isalpha()
        if closes or is_free or start == 0 or text[start - 1] == "\n":
            yield _Mark(kind, label, opens, closes, start, match.start(4), match.end())


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).casefold()


def _fences(text: str) -> Iterator[_Mark]:
    for match in _FENCE.finditer(text):
        label, end = match[2].strip(), match.end()
        yield _Mark(match[1], label, end < len(text), not label, match.start(), end, end + 1)


def _blocks(marks: Sequence[_Mark]) -> Iterator[tuple[_Mark, _Mark]]:
    """Yield the opening and the closing mark of each block; blocks do not nest. Takes linear time:
    every mark is visited at most twice, even if nothing closes."""
    closing: defaultdict[str, deque[_Mark]] = defaultdict(deque)
    for mark in marks:
        if mark.closes:
            closing[mark.kind].append(mark)
    at = 0
    for mark in marks:
        if mark.opens and mark.start >= at:
            ends = closing[mark.kind]
            while ends and ends[0].start < mark.inner:
                ends.popleft()
            if ends:
                at = ends[0].end
                yield mark, ends[0]


def _without(marks: Sequence[_Mark], text: str, documents: list[Document]) -> str:
    """Move long blocks of `text` into `documents`; return the text with their names instead."""
    kept, at = [], 0
    for opening, closing in _blocks(marks):
        if closing.start - opening.inner < LONG:
            continue
        found = _NAME.search(opening.label)
        name = found[1] if found else opening.label if opening.kind[0] in "`~" else ""
        documents.append(Document(_named(documents, name), text[opening.inner : closing.start]))
        kept += [text[at : opening.start], f"[{documents[-1].name}]"]
        at = closing.end
    return "".join([*kept, text[at:]])


def _named(documents: Sequence[Document], name: str) -> str:
    return " ".join(name.split())[:200] or f"text {len(documents) + 1}"


def _blocks_of(text: str, kinds: frozenset[str]) -> list[tuple[_Mark, _Mark]]:
    """The blocks of these kinds that are in no file or code block. A file with rules for agents
    counts as pinned."""
    marks = sorted([*_tags(text, _FILES | kinds), *_fences(text)], key=attrgetter("start"))
    return [
        (opening, closing)
        for opening, closing in _blocks(marks)
        if opening.kind in kinds or (kinds is _PINNED and names_rules(opening.label))
    ]


def _tasks(text: str) -> list[tuple[_Mark, _Mark]]:
    found = _blocks_of(text, _TASKS)
    return found if len(found) <= MAX_TASKS else []


def names_rules(text: str) -> bool:
    """Whether a name, or the label of a block, has the name of a file with rules for agents."""
    words = _SEPARATORS.split(text[:MAX_NAME])
    return any(word.casefold() in _RULES or word.endswith(".mdc") for word in words)


def _is_rules_heading(line: str) -> bool:
    return line.startswith(("#", "Contents of ", "Instructions from")) and names_rules(line)


def _split(text: str, documents: list[Document]) -> str:
    """Move a text without its question into `documents`; return the question, or the whole text if
    it has only one line."""
    body = text.strip("\n")
    start, end = _ends(body) if len(body) >= LONG else (0, len(body))
    if (start, end) == (0, len(body)):
        return text
    documents.append(Document(_named(documents, ""), body[start:end].strip("\n")))
    return "\n\n".join(filter(None, (body[:start], body[end:].strip("\n"))))


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
    return any(_asks(body[at:stop]) for at, stop in ends)


def _announces(text: str) -> bool:
    """Whether a piece of text ends with a line such as `The contract follows:`."""
    return bool(_INTRODUCED.fullmatch(text.rstrip().rpartition("\n")[2]))


def _asks(text: str) -> bool:
    """Whether a piece of text asks for something, judged by a question mark or its first word."""
    text = text.strip()
    first = _FIRST_WORD.match(text)
    return bool(_ASKED.search(text)) or (
        first is not None
        and first[1].casefold() in _REQUESTS
        and not text.partition("\n")[0].endswith(("{", "}", ";", ",", ")"))
    )
