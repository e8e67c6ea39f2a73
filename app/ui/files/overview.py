"""Facts about the files of a conversation: which were chosen for a question, and why; and the line
above an answer that names them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from rich.cells import cell_len

from app.chat.conversation import Conversation, Turn
from app.chat.turn_progress import TurnProgress
from app.protocol.prompt import Document, RetrievalReason, RetrievedPart
from app.ui.text import ClickLine, LinePart
from app.util import formatting
from app.util.sanitize import sanitize_line

CHARACTERS_PER_TOKEN = 4
"""An estimate for files that were not chosen."""
CHANGE = " · ^F to change"
NONE_STANDS_OUT = "No file stands out: "
MAX_RANGES = 5
"""Ranges of lines of a file that are shown."""
MIN_NAMES = 2
"""Names with their folders are shown if at least this number fits."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One file. `tokens` is the number of its tokens in the prompt, or (`estimated`) in the whole
    file."""

    name: str
    tokens: int
    in_prompt: bool = False
    earlier: bool = False
    """Whether it was chosen for an earlier question."""
    estimated: bool = False
    lines: str = ""
    reason: str = ""
    chosen: bool = False
    """Whether the user's choice is the reason."""
    rank: int = 0
    """Place among the files that were chosen for the question, from the best one."""


def files_of(documents: Iterable[Document]) -> tuple[Document, ...]:
    """All files, each once, without the trees of folders. All that was found in a file that was
    searched is one of them."""
    found: dict[Hashable, Document] = {}
    for each in documents:
        if not each.name.endswith("/"):
            found.setdefault(each.origin if each.is_searched else each, each)
    return tuple(found.values())


def files_for(conversation: Conversation, turn: Turn) -> tuple[Document, ...]:
    """The files from which those for the question of `turn` were chosen."""
    return files_of(conversation.attached_documents(turn))


def common_folder(files: Sequence[Document]) -> str:
    """The folder at the top that all files are in, with its slash, or empty."""
    top, slash, _ = files[0].name.partition("/") if files else ("", "", "")
    return top + slash if slash and all(f.name.startswith(top + slash) for f in files) else ""


def lines_of(parts: Sequence[Document], file: Document | None) -> str:
    """`1–80, 200–240`; empty if the parts are the whole file."""
    if file is None:
        return ""
    if not file.is_searched and sum(len(part.text) for part in parts) >= len(file.text):
        return ""
    ranges = [(part.line, part.line + part.text.rstrip("\n").count("\n")) for part in parts]
    shown = [f"{a:,}–{b:,}" if b > a else f"{a:,}" for a, b in ranges[:MAX_RANGES]]
    return ", ".join([*shown, *(["…"] if len(ranges) > MAX_RANGES else [])])


def by_file(parts: Iterable[RetrievedPart]) -> dict[str, list[RetrievedPart]]:
    found: dict[str, list[RetrievedPart]] = {}
    for part in parts:
        found.setdefault(part.document.name, []).append(part)
    return found


def best_first(parts: Iterable[RetrievedPart]) -> list[list[RetrievedPart]]:
    """The parts of each file. Files that the user chose or named come first, then files with most
    words of the question."""
    first = (RetrievalReason.CHOSEN, RetrievalReason.NAME)

    def order(of_file: list[RetrievedPart]) -> tuple[int, int, int]:
        reason, words = of_file[0].reason, of_file[0].words
        texts = [part.document.text.casefold() for part in of_file]
        often = sum(text.count(word.casefold()) for word in words for text in texts)
        return first.index(reason) if reason in first else len(first), -len(words), -often

    return sorted(by_file(parts).values(), key=order)


def names_with_lines(parts: Iterable[RetrievedPart], files: Sequence[Document]) -> list[str]:
    """Names of the files in the prompt, best first, below their common folder, with line numbers if
    only a part was chosen, as in `urls/base.py:1–80`."""
    by_name, top = {each.name: each for each in files}, common_folder(files)
    names = []
    for of_file in best_first(parts):
        documents = [part.document for part in of_file]
        name = documents[0].name
        lines = lines_of(documents, by_name.get(name))
        names.append(":".join(filter(None, (name.removeprefix(top), lines))))
    return names


def file_facts(
    files: Sequence[Document],
    conversation: Conversation,
    turn: Turn | None,
    progress: TurnProgress | None,
) -> list[FileFacts]:
    """The facts for the answer of `turn`, as far as its `progress` knows them."""
    retrieved = None if progress is None else progress.retrieved
    in_prompt = None if progress is None else progress.messages_with_documents
    parts = by_file(() if turn is None else turn.retrieved or ())
    earlier: dict[str, list[RetrievedPart]] = {}
    if turn is not None:
        asked = enumerate(conversation.question_turns(turn)[:-1])
        before = (each for i, each in asked if in_prompt is None or i in in_prompt)
        earlier = by_file(part for each in before if each for part in each.retrieved or ())
    nearly = {} if retrieved is None else {r.name: (i, r) for i, r in enumerate(retrieved.ranked)}
    all_fit = turn is not None and turn.retrieved is None and bool(turn.text)
    in_turn = set(files_for(conversation, turn)) if all_fit and turn is not None else set()
    ranks = {
        of_file[0].document.name: rank
        for rank, of_file in enumerate(best_first(chain.from_iterable(parts.values())))
    }

    def facts(file: Document) -> FileFacts:
        size = -(-len(file.text) // CHARACTERS_PER_TOKEN)
        if own := parts.get(file.name, earlier.get(file.name)):
            is_earlier = file.name not in parts
            reason = "from an earlier question" if is_earlier else _reason(own[0])
            lines = lines_of([part.document for part in own], file)
            tokens = sum(part.tokens for part in own)
            chosen = not is_earlier and own[0].reason is RetrievalReason.CHOSEN
            rank = ranks.get(file.name, len(ranks))
            return FileFacts(
                file.name, tokens, True, is_earlier, False, lines, reason, chosen, rank
            )
        reason = ""
        if file.name in nearly:
            number, ranked = nearly[file.name]
            words = f" · {', '.join(ranked.words)}" if ranked.words else ""
            reason = f"rank {len(parts) + number + 1}, score {ranked.score:.2f}{words}"
        return FileFacts(file.name, size, file in in_turn, estimated=True, reason=reason)

    return [facts(file) for file in files]


def _reason(part: RetrievedPart) -> str:
    match part.reason:
        case RetrievalReason.WORDS:
            return f"words: {', '.join(part.words)}" if part.words else "words of the question"
        case RetrievalReason.MEANING:
            return "similar in meaning"
        case RetrievalReason.NAME:
            return "named in the question"
        case RetrievalReason.CHOSEN:
            return "your choice"


def summary(facts: Sequence[FileFacts], room: int | None, always: int, never: int) -> str:
    """`5 of 2,293 files · 3,912 of 4,096 tokens · 2 always, 1 never`"""
    shown = [each for each in facts if each.in_prompt and not each.earlier]
    total, before = formatting.plural(len(facts), "file"), sum(each.earlier for each in facts)
    if shown or before:
        tokens = formatting.count(sum(each.tokens for each in shown))
        about = "about " if any(each.estimated for each in shown) else ""
        of = f" of {formatting.count(room)}" if room else ""
        text = f"{formatting.count(len(shown))} of {total} · {about}{tokens}{of} tokens"
        text += f" · {before:,} from earlier questions" if before else ""
    else:
        tokens = formatting.short_count(sum(each.tokens for each in facts))
        text = f"{total} · about {tokens} tokens"
    return " · ".join(filter(None, (text, choice_text(always, never))))


def choice_text(always: int, never: int) -> str:
    """`2 always, 1 never`"""
    counts = ((always, "always"), (never, "never"))
    return ", ".join(f"{number:,} {word}" for number, word in counts if number)


class FilesLine(ClickLine):
    """The line above an answer that names the chosen files; hidden if all files fit."""

    def __init__(self, turn: Turn, files: Sequence[Document]) -> None:
        """`files` are all from which some were chosen."""
        super().__init__()
        self._turn, self._files = turn, files
        self._shown: Sequence[RetrievedPart] | None = None
        self._names: list[str] = []
        self.display = False
        self.show()

    def show(self) -> None:
        """Update the line, if other files were chosen."""
        parts = self._turn.retrieved
        if parts is not None and parts is not self._shown:
            self._shown = parts
            self._names = [sanitize_line(each) for each in names_with_lines(parts, self._files)]
            self.display = True
            self.refresh()

    def pieces(self) -> Iterator[LinePart]:
        found = self._turn.progress.retrieved
        is_open = found is not None and not found.stands_out and len(self._files) > 1
        before = NONE_STANDS_OUT if is_open else ""
        room = self.content_size.width - cell_len(before) - cell_len(CHANGE)
        text = chosen_text(self._shown or (), self._files, self._names, room)
        yield LinePart(before + text, "$ink-dim")
        yield LinePart(CHANGE, "$ink-dim", lambda: self.screen.run_action("files"))


def chosen_text(
    parts: Sequence[RetrievedPart], files: Sequence[Document], names: Sequence[str], width: int
) -> str:
    """`5 of 2,293 files: urls/base.py, …`, or of a single document `12% of contract.pdf`."""
    if len(files) == 1:
        share = sum(len(part.document.text) for part in parts) / max(_length(files[0]), 1)
        head = f"{formatting.percent(share)} of "
        return head + (fit_files(names, width - cell_len(head)) or "the document")
    head = f"{formatting.count(len(by_file(parts)))} of {formatting.plural(len(files), 'file')}"
    fitting = fit_files(names, width - cell_len(head) - 2)
    return f"{head}: {fitting}" if fitting else head


def _length(file: Document) -> int:
    """Characters of a file, about as many as its bytes if it was searched."""
    return file.origin.size if file.is_searched and file.origin else len(file.text)


def fit_files(names: Sequence[str], width: int) -> str:
    """Names such as `urls/base.py:1–80`, as far as they fit. Folders and lines give way to more
    names."""
    short = [_last(each) for each in names]
    bare = [_without_lines(each) for each in names]
    shortest = [_last(each) for each in bare]
    for complete in (names, short, bare, shortest):
        text = fit_names(complete, width)
        if text and not text.endswith("…"):
            return text
    with_folders = fit_names(bare, width)
    return with_folders if with_folders.count(", ") >= MIN_NAMES else fit_names(shortest, width)


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _without_lines(name: str) -> str:
    return name.rpartition(":")[0] or name


def fit_names(names: Sequence[str], width: int) -> str:
    """As many names as fit into `width` cells, then an ellipsis if some are missing."""
    text = ""
    for number, name in enumerate(names):
        longer = f"{text}, {name}" if text else name
        rest = ", …" if number + 1 < len(names) else ""
        if cell_len(longer + rest) > width:
            return f"{text}, …" if text else ""
        text = longer
    return text
