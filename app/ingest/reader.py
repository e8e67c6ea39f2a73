"""Reads files, folders and standard input as documents."""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

from app.ingest.breadth import in_breadth
from app.ingest.convert import converted
from app.ingest.documents import converted_apart, document_text, pages_of, too_much_text
from app.ingest.excerpt import Outline, excerpt, outline_of, split_path
from app.ingest.filenames import (
    is_keynote,
    is_private_key,
    is_prose,
    is_unicode,
    printable,
    reading_order,
)
from app.ingest.generated import is_generated
from app.ingest.kinds import (
    Kind,
    apple_bundle,
    begins_as_pdf,
    is_document,
    kind_of,
    refusal_of_head,
    suffix_of,
)
from app.ingest.limits import ReadBudget, ReadLimits
from app.ingest.line_ranges import LargeText, open_text, part_too_large, read_lines
from app.ingest.markdown import visible
from app.ingest.names import distinct_names
from app.ingest.parts import Ranges, merged, parse_ranges
from app.ingest.records import (
    REASON_TEXTS,
    FileRead,
    IngestError,
    LimitReached,
    ReadProgress,
    ReadResult,
    ReadResults,
    Rejected,
    Skipped,
    SkipReason,
    limit_reached,
    skipped,
)
from app.ingest.safe_open import modification_time, read_file, too_large
from app.ingest.text import Decoded, decode_like, is_binary, whole_characters
from app.ingest.walk import FoundFile, Walk
from app.protocol.prompt import SEARCHED, Document, Origin
from app.util import formatting
from app.util.places import escape_marks
from app.util.sanitize import without_hidden

STDIN = "-"
MAX_NAMES, MAX_NEAREST = 20_000, 2
"""Names of a folder among which those nearest to a missing one are looked for, and how many are
given."""
_APART = 1 << 18
"""Files with more bytes are converted in a process with limits, which takes .05 s more."""
_INDENT = "  "
_RAISE_LIMIT = "raise the limit in the settings, or save the part you need in a file of its own"


def read(
    paths: Sequence[str],
    stdin: BinaryIO | None = None,
    limits: ReadLimits | None = None,
    progress: Callable[[ReadProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    questions: Sequence[str] = (),
) -> ReadResults:
    """Read files, folders and standard input (`-`).

    A document is named after its file or, inside a folder, by its path, which begins with the
    folder's name. Files of the same name are named with folders. A path may
    name a part, as in `contract.pdf#5-10` (see `excerpt.py`). Paths in
    `paths` are read even if they are links, private or ignored. Inside a folder, links are not
    followed, and unreadable, ignored and private files are skipped and listed.

    A text file that is larger than what `limits` leave is searched for the words of `questions`:
    the question, and the one before it. Its documents are lines of it; without a question, its
    beginning and end.

    `progress` is called at most 20 times a second, `cancelled` at every step, both on the calling
    thread. Raises ReadCancelled, and IngestError if a path is missing, empty or not text, if a
    folder has no readable file, or if the input is larger than `limits` allow.
    """
    if paths.count(STDIN) > 1:
        raise IngestError("Standard input can be read only once", "give `-` only once")
    limits = limits or ReadLimits()
    standard_input = _read_stdin(stdin, limits) if STDIN in paths else None
    budget = ReadBudget(progress, cancelled)
    bytes_left = limits.total_bytes
    inputs = _without_overlaps(map(_Input.of, paths))
    folders = [each.place for each in inputs if each.is_folder]
    names = distinct_names((each.place for each in inputs if each.path != STDIN), folders)
    results: list[ReadResult] = []
    for each in inputs:
        if standard_input is not None and each.path == STDIN:
            result = standard_input
        else:
            result = _read_path(each, names[each.place], bytes_left, limits, budget, questions)
        bytes_left -= result.size
        if bytes_left < 0:
            raise IngestError(
                f"The input is larger than {formatting.size(limits.total_bytes)}",
                "use fewer or smaller files",
            )
        results.append(result)
    return ReadResults(tuple(results))


@dataclass(frozen=True, slots=True)
class _Input:
    """A path to read, and the part of it that is wanted."""

    path: str
    part: str
    place: str
    """The absolute path; of a folder, where its links lead to."""
    is_folder: bool

    @classmethod
    def of(cls, path: str) -> _Input:
        path, part = split_path(path)
        part = "" if part == SEARCHED else part
        is_folder = os.path.isdir(path)
        return cls(
            path, part, (os.path.realpath if is_folder else os.path.abspath)(path), is_folder
        )


def _without_overlaps(inputs: Iterable[_Input]) -> list[_Input]:
    """The inputs, of which those that are overlapping parts of a file, such as `a.log#1-9` and
    `a.log#5-12`, are one."""
    found: dict[int, _Input] = {}
    parts: dict[str, dict[int, Ranges]] = {}
    for number, each in enumerate(inputs):
        if (ranges := parse_ranges(each.part)) is not None:
            known = parts.setdefault(each.place, {})
            for other, others in [*known.items()]:
                if len(merged(ranges + others)) < len(merged(ranges)) + len(merged(others)):
                    number, ranges = min(number, other), ranges + known.pop(other)
                    each = replace(each, part=f"{found.pop(other).part},{each.part}")
            known[number] = ranges
        found[number] = each
    return [found[number] for number in sorted(found)]


def _read_path(
    wanted: _Input,
    name: str,
    bytes_left: int,
    limits: ReadLimits,
    budget: ReadBudget,
    questions: Sequence[str],
) -> ReadResult:
    path, part = wanted.path, wanted.part
    with _errors_about(repr(path)):
        mode = file_mode(path)
        if stat.S_ISDIR(mode):
            return _read_folder(path, name, bytes_left, limits, budget)
        if not stat.S_ISREG(mode):
            raise Rejected(SkipReason.SPECIAL)
        budget.visit(printable(path))
        if os.path.getsize(path) > (limits.total_bytes if part else bytes_left):
            with open_text(path, budget) as text:
                if not is_document(path, text.head):
                    _check_large(path, text.head, limits)
                    if not part:
                        return _search(text, wanted, name, budget, questions)
                    return _read_large(text, wanted, name, limits, budget)
        try:
            content = _read_file(path, None, limits, budget, part=part)
        except Rejected as rejected:
            if rejected.reason is SkipReason.TOO_LARGE:
                raise Rejected(rejected.reason, rejected.detail, _RAISE_LIMIT) from None
            raise
        budget.add_file(content.size)
        return content.alone(name, part, content.origin(wanted.place))


def _read_large(
    text: LargeText, wanted: _Input, name: str, limits: ReadLimits, budget: ReadBudget
) -> ReadResult:
    """Lines of a text file that is too large to be read whole."""
    if (ranges := parse_ranges(wanted.part)) is None:
        raise part_too_large(text, limits.total_bytes, wanted.path)
    documents, files, missing = [], [], list[Skipped]()
    for lines in read_lines(text, ranges, limits.total_bytes, wanted.path):
        decoded = _shown(wanted.path, Kind.TEXT, decode_like(lines.data, text.head))
        digest = hashlib.sha256(lines.data).hexdigest()
        content = _Content(decoded, len(lines.data), text.modified, digest)
        origin = content.origin(wanted.place)
        part = Document(f"{name}#{lines.label}", decoded.text, line=lines.first)
        origin = origin and replace(origin, size=text.size, part=wanted.part)
        documents.append(replace(part, origin=origin))
        files.append(content.read_as(part.name))
        missing += content.missing_of(part.name)
        budget.add_file(content.size)
    _check_text(documents)
    return ReadResult(documents[0].name, tuple(documents), tuple(files), tuple(missing))


def _search(
    text: LargeText, wanted: _Input, name: str, budget: ReadBudget, questions: Sequence[str]
) -> ReadResult:
    """Lines that belong to a question, of a text file that is too large to be read whole. What is
    missing has the number of the other lines as its `pages`."""
    from app.ingest.search import search  # numpy is slow to import

    found = search(text, questions)
    chosen = [each for each in found.lines if text.is_wide or b"\0" not in each.data]
    like = decode_like(b"".join(each.data for each in chosen), text.head)
    digest = hashlib.sha256(text.head).hexdigest()
    origin = Origin(wanted.place, text.size, text.modified, digest, SEARCHED)
    documents, missing = [], dict[SkipReason, Rejected]()
    for lines in chosen:
        plain = lines.data.decode(like.encoding, "backslashreplace").removeprefix("\ufeff")
        shown = _shown(wanted.path, Kind.TEXT, replace(like, text=plain))
        known = origin if is_unicode(wanted.place) else None
        documents.append(Document(name, shown.text, line=lines.first, origin=known))
        missing.update((each.reason, each) for each in shown.missing)
    _check_text(documents)
    size = sum(len(each.data) for each in chosen)
    budget.add_file(size)
    count = min(sum(each.last - each.first + 1 for each in chosen), found.total)
    others = " and some between, because none has a word of the question"
    if found.words:
        others = f" and those around the question's words ({', '.join(found.words)})"
    detail = f"is too large to be read as a whole ({formatting.size(text.size)}), so "
    detail += (
        f"{count:,} of its {found.total:,} lines were chosen: the first and last ones{others}"
        if questions
        else "it is searched for the words of each question"
    )
    left = found.total - count
    missing[SkipReason.SEARCHED] = Rejected(SkipReason.SEARCHED, detail, pages=left)
    read_as = FileRead(name, size, like.encoding, like.lossy, like.guessed)
    skips = tuple(skipped(name, each) for each in missing.values())
    return ReadResult(name, tuple(documents), (read_as,), skips)


def _check_large(path: str, head: bytes, limits: ReadLimits) -> None:
    """Raise Rejected if a large file that begins with `head` is no text with lines."""
    if (rejected := refusal_of_head(head)) is not None:
        raise rejected
    if is_binary(head):
        raise Rejected(SkipReason.BINARY)
    if kind_of(path, head) is not Kind.TEXT:
        what = f"is larger than {formatting.size(limits.total_bytes)}"
        raise Rejected(SkipReason.TOO_LARGE, what, _RAISE_LIMIT)


def read_outline(path: str, limits: ReadLimits, cancelled: Callable[[], bool]) -> Outline:
    """The parts that can be named after the path of a file: of a PDF only its pages, because that
    is fast. Raises IngestError and ReadCancelled."""
    budget = ReadBudget(cancelled=cancelled)
    with _errors_about(repr(path)):
        if os.path.getsize(path) > limits.total_bytes:
            with open_text(path, budget) as large:
                if not is_document(path, large.head):
                    _check_large(path, large.head, limits)
                    return Outline("line", range(1, large.count_lines() + 1))
        data = read_file(path, None, lambda head: limits.document_bytes, budget)
        if begins_as_pdf(data) and (pages := pages_of(data, limits, budget)):
            return pages
        text = _text_of(path, data, limits, budget).text
    return outline_of(Document(Path(path).name, text))


def _nearest(path: str) -> str:
    """Advice for a path that does not exist: names in its folder that are nearly the same."""
    folder, name = os.path.split(path.rstrip("/"))
    try:
        with os.scandir(folder or ".") as entries:
            names = [printable(each.name) for each in itertools.islice(entries, MAX_NAMES)]
    except (OSError, ValueError):
        names = []
    found = get_close_matches(name, names, MAX_NEAREST)
    if not found:
        return "check the name and the current folder"
    nearest = " or ".join(repr(os.path.join(folder, each)) for each in found)
    return f"check the name (nearest to it: {nearest})"


def file_mode(path: str) -> int:
    """Mode bits of a file or folder; the path may name a part of a file. Raises IngestError if it
    does not exist or cannot be reached."""
    path, _ = split_path(path)
    if not path:
        raise IngestError("The file name is empty", "give a file, a folder or `-`")
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise IngestError(f"There is no file or folder {path!r}", _nearest(path)) from None
    except OSError as error:
        problem = f"{path!r} cannot be read ({error.strerror})"
        raise IngestError(problem, "check its name and permissions") from None


def _read_stdin(stdin: BinaryIO | None, limits: ReadLimits) -> ReadResult:
    if stdin is None:
        raise IngestError("There is no standard input", "give a file instead of `-`")
    data = stdin.read(limits.total_bytes + 1)
    with _errors_about("Standard input"):
        if len(data) > limits.total_bytes:
            raise too_large(limits.total_bytes)
        return _read_content("", data, limits).alone("standard input")


def read_content(
    name: str,
    data: bytes,
    limits: ReadLimits | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Document:
    """Read the content of a file. Raises IngestError and ReadCancelled."""
    name, limits = printable(name), limits or ReadLimits()
    with _errors_about(repr(name)):
        return Document(name, _read_content(name, data, limits, cancelled).decoded.text)


def _read_content(
    name: str, data: bytes, limits: ReadLimits, cancelled: Callable[[], bool] | None = None
) -> _Content:
    budget = ReadBudget(cancelled=cancelled)
    return _Content(_text_of(name, data, limits, budget), len(data))


@contextmanager
def _errors_about(what: str) -> Iterator[None]:
    """Turn Rejected and LimitReached in the block into an IngestError about `what`."""
    try:
        yield
    except (Rejected, LimitReached) as error:
        rejected = error.rejected if isinstance(error, LimitReached) else error
        problem = IngestError(f"{what} {rejected.detail}", rejected.advice)
        problem.reason = rejected.reason
        raise problem from None


# ------------------------------------------------------------------------------------- one file


@dataclass(frozen=True, slots=True)
class _Content:
    """The text of a file of `size` bytes; see `Origin` for the rest."""

    decoded: Decoded
    size: int
    modified: int = 0
    sha256: str = ""

    def origin(self, path: str) -> Origin | None:
        """None for a path that is not valid Unicode, because it could not be stored."""
        origin = Origin(path, self.size, self.modified, self.sha256)
        return origin if is_unicode(path) else None

    def read_as(self, path: str) -> FileRead:
        decoded = self.decoded
        doubts = decoded.lossy, decoded.guessed, decoded.recognised
        return FileRead(path, self.size, decoded.encoding, *doubts)

    def missing_of(self, path: str) -> tuple[Skipped, ...]:
        return tuple(skipped(path, each) for each in self.decoded.missing)

    def alone(self, name: str, part: str = "", origin: Origin | None = None) -> ReadResult:
        """The result for a file, or a part of one, that is an input itself. Raises Rejected."""
        whole = Document(name, self.decoded.text, origin=origin)
        documents = excerpt(whole, part) if part else (whole,)
        name = documents[0].name
        _check_text(documents)
        return ReadResult(name, documents, (self.read_as(name),), self.missing_of(name))


def _check_text(parts: Sequence[Document]) -> None:
    """Raise Rejected if there is no text in any part of a file."""
    if not any(each.text.strip() for each in parts):
        raise Rejected(SkipReason.EMPTY, "has only blank lines in this part", "choose another one")


def _read_file(
    name: str,
    parent: int | None,
    limits: ReadLimits,
    budget: ReadBudget,
    part: str = "",
    is_written: bool | None = None,
) -> _Content:
    """Read a file: `name` in the open folder `parent`, or a path, which is read even if it has a
    private key or is generated. `part`: only this part will be used. `is_written`: by hand, not
    generated. Raises Rejected, LimitReached and ReadCancelled."""
    alone = parent is None

    def size_limit(head: bytes) -> int:
        if not alone and not limits.include_private:
            if is_private_key(head):
                raise Rejected(SkipReason.PRIVATE, "is a private key")
            if is_keynote(name) and not is_document(name, head):
                raise Rejected(SkipReason.PRIVATE)
        if (rejected := refusal_of_head(head)) is not None:
            raise rejected
        if is_document(name, head, alone):
            return limits.document_bytes
        if is_binary(head):
            raise Rejected(SkipReason.BINARY)
        is_checked = not alone and not limits.include_ignored and not is_written
        if is_checked and is_generated(name, head):
            raise Rejected(SkipReason.GENERATED)
        return limits.total_bytes if alone else limits.file_bytes

    modified = modification_time(name, parent)  # first: a change meanwhile must be noticed
    data = read_file(name, parent, size_limit, budget)
    text = _text_of(name, data, limits, budget, part)
    return _Content(text, len(data), modified, hashlib.sha256(data).hexdigest())


def _text_of(
    name: str, data: bytes, limits: ReadLimits, budget: ReadBudget, part: str = ""
) -> Decoded:
    """The text of a file: for documents, web pages, notebooks, mail and Rich Text what a program
    would show, for other files their content. Raises as `_read_file` does."""
    kind, suffix = kind_of(name, data), suffix_of(name)
    if kind.has_parts:
        decoded = document_text(name, data, limits, budget, part, kind)
    elif kind is Kind.TEXT or len(data) <= _APART:
        decoded = converted(kind, suffix, data, budget.check)
    else:
        decoded = converted_apart(kind, suffix, data, limits, budget)
    if len(decoded.text) > limits.total_bytes:
        raise too_much_text(limits)
    shown = _shown(name, kind, decoded)
    if not shown.text.strip():
        raise Rejected(SkipReason.EMPTY)
    return shown


def _shown(name: str, kind: Kind, decoded: Decoded) -> Decoded:
    """The text of a file of this kind, as a person sees it."""
    text = whole_characters(decoded.text)
    is_source = kind in (Kind.TEXT, Kind.TEXT_FORMAT) and not is_prose(name)
    shown, invisible = without_hidden(text)
    if not is_source:
        text = visible(shown)
    if not kind.has_parts:
        text = escape_marks(text, name)
    missing = decoded.missing
    if invisible:
        what = "part of its code" if is_source else "not read"
        count = formatting.plural(invisible, "invisible character")
        is_or_are = "is" if invisible == 1 else "are"
        detail = f"has {count} that may hide a text and {is_or_are} {what}"
        missing = *missing, Rejected(SkipReason.INVISIBLE, detail, pages=invisible)
    return replace(decoded, text=text, missing=missing)


# -------------------------------------------------------------------------------------- a folder


def _read_folder(
    path: str, name: str, max_bytes: int, limits: ReadLimits, budget: ReadBudget
) -> ReadResult:
    """Read the files below a folder, at most `max_bytes` in total. What cannot be read is skipped
    and listed.

    Every file is a separate document, so that the models always know which file they read. `texts`
    are in the order of the tree. Raises ReadCancelled, and IngestError if there is nothing to
    read.
    """
    top = Path(path).resolve()
    with suppress(OSError):
        if (rejected := apple_bundle(top.name, os.listdir(top))) is not None:
            raise rejected
    reader = _FolderReader(top, name, max_bytes, limits, budget)
    reader.run()
    if not reader.texts:
        raise _no_files(path, reader)
    return ReadResult(
        reader.name,
        tuple(reader.texts),
        tuple(reader.files),
        tuple(reader.skipped),
        _overview(reader, limits),
    )


class _FolderReader:
    def __init__(
        self, top: Path, name: str, max_bytes: int, limits: ReadLimits, budget: ReadBudget
    ) -> None:
        self.name = name
        self.top = top
        self.started = time.time_ns()
        self.texts: list[Document] = []
        self.files: list[FileRead] = []
        self.skipped: list[Skipped] = []
        self._contents: dict[str, _Content] = {}
        """By path from the top."""
        self._bytes_left = max_bytes
        self._limits = limits
        self._budget = budget

    def run(self) -> None:
        paths: dict[str, None] = {}
        most = self._limits.files
        with self._up_to_limit():
            for found in self._found(self._skip):
                paths[found.path] = None
                if len(self._contents) < most and not self._read(found):
                    del paths[found.path]
        if len(paths) > most:
            with self._up_to_limit():
                self._read_in_breadth(list(paths))
        for path in filter(self._contents.__contains__, paths):
            content, name = self._contents[path], f"{self.name}/{printable(path)}"
            origin = content.origin(str(self.top / path))
            self.texts.append(Document(name, content.decoded.text, origin=origin))
            self.files.append(content.read_as(name))
            self.skipped += content.missing_of(name)
        if len(paths) > most:
            reached = limit_reached(f"{most:,} files", len(paths) - len(self._contents))
            self.skipped.append(skipped(self.name, reached.rejected))

    @contextmanager
    def _up_to_limit(self) -> Iterator[None]:
        try:
            yield
        except LimitReached as limit:
            self._skip(self._budget.path, limit.rejected)

    def _found(self, skip: Callable[[str, Rejected], None]) -> Iterator[FoundFile]:
        with closing(Walk(self.top, self._limits, self._budget, skip).files()) as files:
            yield from files

    def _read_in_breadth(self, paths: Sequence[str]) -> None:
        """Read some files of each folder, in place of the first ones."""
        chosen = in_breadth(paths, self._limits.files)
        for path in self._contents.keys() - chosen:
            self._bytes_left += self._contents.pop(path).size
        for found in self._found(lambda path, rejected: None):
            if found.path in chosen and found.path not in self._contents:
                self._read(found)

    def _read(self, found: FoundFile) -> bool:
        """Read a file; False if it is skipped."""
        limits = self._limits
        try:
            content = _read_file(
                found.name, found.folder, limits, self._budget, is_written=found.is_written
            )
        except Rejected as rejected:
            self._skip(found.path, rejected)
            return False
        if content.size > self._bytes_left:
            raise limit_reached(formatting.size(limits.total_bytes))
        self._bytes_left -= content.size
        self._contents[found.path] = content
        self._budget.add_file(content.size)
        return True

    def _skip(self, path: str, rejected: Rejected) -> None:
        self.skipped.append(skipped(f"{self.name}/{printable(path)}", rejected))


def _overview(reader: _FolderReader, limits: ReadLimits) -> Document:
    """The folder's tree, as a document for the models. It also lists skipped files, except those
    that git ignores."""
    top = len(reader.name) + 1
    files = [(each.path[top:], "") for each in reader.files]
    files += [
        (each.path[top:], f"skipped: {REASON_TEXTS[each.reason][0]}")
        for each in reader.skipped
        if each.reason not in (SkipReason.IGNORED, SkipReason.RULES) and not each.rest
    ]
    files.sort(key=lambda file: [reading_order(part) for part in file[0].split("/")])
    count = len(reader.files)
    head = f"{formatting.plural(count, 'file')} of it follow{'s' if count == 1 else ''}."
    if any(each.rest for each in reader.skipped):
        head += " It contains more files, which were skipped."
    drawn = folder_tree(reader.name, files, limits.tree_lines)
    text = f"A folder; {head}\n\n{drawn}"
    top_path = str(reader.top)
    origin = Origin(top_path, modified=reader.started) if is_unicode(top_path) else None
    return Document(f"{reader.name}/", text, origin=origin)


def _no_files(path: str, reader: _FolderReader) -> IngestError:
    problem = f"The folder {path!r} has no readable text files"
    advice = "choose another one"
    if len(reader.skipped) == 1:
        return IngestError(f"{problem} ({reader.skipped[0].sentence[:-1]})", advice)
    summary = ReadResult("", (), (), tuple(reader.skipped)).skipped_summary
    return IngestError(f"{problem} (skipped {summary})" if summary else problem, advice)


@dataclass
class _Folder:
    entries: dict[str, _Folder | str] = field(default_factory=dict)
    """Entries by name: a subfolder, or for a file a remark or an empty string."""
    total: int = 0
    """Number of files in the folder and its subfolders."""


def folder_tree(name: str, files: Iterable[tuple[str, str]], max_lines: int) -> str:
    """Draw a folder as a tree of names, which shows the model what is where. `files` are sorted
    paths below the folder `name`, each with a remark or ''.

    Draws as many levels as fit in `max_lines`, and says how many lines are missing.
    """
    top = _Folder()
    for path, remark in files:
        _put(top, path.split("/"), remark)
    depth = 1
    while (more := _count(top, depth + 1)) <= max_lines and more > _count(top, depth):
        depth += 1
    lines = [f"{name}/", *_draw(top, depth, _INDENT)]
    if len(lines) > max_lines:
        lines[max_lines:] = [f"{_INDENT}… and {len(lines) - max_lines:,} more"]
    return "\n".join(lines) + "\n"


def _put(folder: _Folder, names: list[str], remark: str) -> None:
    folder.total += 1
    for name in names[:-1]:
        below = folder.entries.get(name)
        if not isinstance(below, _Folder):
            below = folder.entries[name] = _Folder()
        folder = below
        folder.total += 1
    folder.entries[names[-1]] = remark


def _count(folder: _Folder, depth: int) -> int:
    if depth == 0:
        return 0
    below = folder.entries.values()
    return len(below) + sum(_count(each, depth - 1) for each in below if not isinstance(each, str))


def _draw(folder: _Folder, depth: int, indent: str) -> Iterator[str]:
    for name, entry in folder.entries.items():
        if isinstance(entry, str):
            yield f"{indent}{name} ({entry})" if entry else indent + name
        elif depth > 1:
            yield f"{indent}{name}/"
            yield from _draw(entry, depth - 1, indent + _INDENT)
        else:
            yield f"{indent}{name}/ ({formatting.plural(entry.total, 'file')})"
