"""`specchat ask`: reads files and folders, and answers one question about them."""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import os
import select
import stat
import sys
import termios
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from app.chat import wording
from app.chat.citations import footnotes
from app.chat.conversation import Conversation, Question, Turn, effective_mode
from app.chat.engine_session import EngineError, EngineSession
from app.chat.model_pairs import lacks_document, model_pair
from app.chat.stored_conversation import StoredConversation
from app.cli.conversations import LOCK_SECONDS, find_conversation, open_store
from app.cli.machines import chosen_hosts, load_spread
from app.cli.options import (
    ANSWER,
    MAX_ANSWER,
    add_hosts,
    add_kv_bits,
    add_models,
    number,
    parse_keep,
    whole,
)
from app.cli.report import MAX_LISTED, Report
from app.cli.settings import requested_load, user_settings
from app.cli.status import INTERRUPTED
from app.cli.terminal import ProgressLine, cancel_on_sigint
from app.engine.cache.snapshot_folder import remove_other_snapshots
from app.engine.engine import MlxEngine
from app.errors import UserError
from app.ingest.limits import ReadLimits
from app.ingest.reader import STDIN, read
from app.ingest.recognition import install_advice, installed_recogniser
from app.ingest.records import (
    RECOGNISABLE,
    IngestError,
    ReadProgress,
    ReadResult,
    ReadResults,
    SkipReason,
)
from app.models.first_model import first_model
from app.paths import costs_path, snapshots_path
from app.protocol.commands import Ask, Load
from app.protocol.events import Cited, Event, Failed, Finished, SnapshotFailed
from app.protocol.options import DEFAULT_KEEP_RATIO, BackgroundPolicy, Mode, Sampling
from app.protocol.prompt import searched_paths
from app.protocol.stats import FinishReason, Statistics
from app.settings.definitions import Settings
from app.store.store import Store, TemporaryStore
from app.util.formatting import size
from app.util.sanitize import sanitize_line

SILENCE_SECONDS = 1.0
"""Seconds without standard input after which a message says that specchat waits for it."""
_EXPECTED = (SkipReason.IGNORED, SkipReason.GENERATED, SkipReason.EMPTY)


def read_inputs(
    paths: Sequence[str], limits: ReadLimits | None = None, questions: Sequence[str] = ()
) -> ReadResults:
    """Read the documents in `paths` for `questions` (see `read`); `-` is standard input. Without
    paths, read standard input if something is piped in. Print what was read and skipped in folders
    to standard error. Raises IngestError."""
    if not paths and _is_piped() and _has_input():
        paths = (STDIN,)
    elif STDIN not in paths and _is_waiting():
        sys.stderr.write("Standard input is not read with -f: add `-f -` to read it too.\n")
    try:
        with ProgressLine() as line:
            inputs = read(
                paths,
                sys.stdin.buffer if sys.stdin else None,
                limits,
                lambda progress: line.show(_progress_text(progress)),
                questions=questions,
            )
    except IngestError as error:
        if error.reason in RECOGNISABLE and not (limits and limits.ocr):
            raise UserError(error.problem, _ocr_advice()) from None
        raise
    for result in inputs.results:
        for text in _report_lines(result):
            sys.stderr.write(sanitize_line(text) + "\n")
    has_pictures = any(each.reason in RECOGNISABLE for each in inputs.skipped)
    if has_pictures and not (limits and limits.ocr):
        sys.stderr.write(f"To read pages without text, {_ocr_advice()}.\n")
    return inputs


def _ocr_advice() -> str:
    if installed_recogniser():
        return "add --ocr"
    return f"{install_advice()}, and add --ocr"


def _is_piped() -> bool:
    """Whether standard input may be a document: not a terminal, and not /dev/null."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # missing, or replaced by a test
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _has_input() -> bool:
    """Wait until standard input has data or ends; return whether it has data. After a second of
    silence, say so: this process may have inherited a pipe into which nothing is ever written."""
    if not select.select([sys.stdin], [], [], SILENCE_SECONDS)[0]:
        sys.stderr.write("Waiting for standard input; add `</dev/null` if there is none.\n")
    return bool(sys.stdin.buffer.peek(1))  # type: ignore[union-attr]


def _is_waiting() -> bool:
    """Whether a pipe on standard input has data."""
    if not _is_piped() or not stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        return False
    count = fcntl.ioctl(sys.stdin.fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(count, sys.byteorder) > 0


def _report_lines(result: ReadResult) -> list[str]:
    lines = [f"Read {result.summary}."] if result.tree is not None else []
    # Files that users expect to be skipped come last.
    skipped = sorted(result.skipped, key=lambda each: (not each.rest, each.reason in _EXPECTED))
    lines += [
        each.sentence if each.is_part else f"Skipped: {each.sentence}"
        for each in skipped[:MAX_LISTED]
    ]
    if len(skipped) > MAX_LISTED:
        lines.append(f"{len(skipped) - MAX_LISTED:,} more were skipped or not read completely.")
    doubtful = [each.sentence for each in result.files if each.doubtful]
    lines += doubtful[:MAX_LISTED]
    if len(doubtful) > MAX_LISTED:
        lines.append(
            f"{len(doubtful) - MAX_LISTED:,} more files have guessed encodings or invalid bytes."
        )
    return lines


def _progress_text(progress: ReadProgress) -> str:
    counts = f"{progress.files:,} files of {progress.entries:,} visited"
    if progress.entries == 1 and progress.page_text:
        counts = ""
    return "Reading: " + ", ".join(filter(None, (counts, progress.page_text)))


NEW = "new"
SAMPLING_OPTIONS = (
    *("max_tokens", "temperature", "seed", "top_p", "top_k", "min_p", "repetition_penalty"),
    *("thinking", "thinking_budget"),
)
ONLY_QUOTES = (
    "This demo model can only quote. For answers in a model's own words, run"
    f" `specchat models pull {first_model().repository}` ({size(first_model().download)}), then ask"
    f" with --target {first_model().repository}.\n"
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = "Defaults come from the settings, which `specchat settings` prints."
    command.add_argument("question", metavar="QUESTION", help="the question to answer")
    command.add_argument(
        "-f",
        "--file",
        dest="files",
        action="append",
        default=[],
        metavar="PATH",
        help="a file or folder to ask about, a part of a file such as report.pdf#5-10, or - for"
        " standard input (also read if there is no -f); can be repeated",
    )
    command.add_argument(
        "--private", action="store_true", help="also read files in folders that may contain secrets"
    )
    command.add_argument("--ignored", action="store_true", help="also read files that git ignores")
    command.add_argument(
        "--ocr", action="store_true", help="recognise the text of PDF pages that are pictures"
    )
    how = command.add_mutually_exclusive_group()
    how.add_argument(
        "--keep",
        type=parse_keep,
        help=f"fraction of the documents to read: 0 to 1, such as {DEFAULT_KEEP_RATIO}, or auto",
    )
    how.add_argument("--full", action="store_true", help="read in full")
    how.add_argument(
        "--auto", action="store_true", help="let auto mode decide between a sparse and a full read"
    )
    command.add_argument(
        "--conversation",
        metavar="ID",
        help="save question and answer in the conversation with this number, in the `last` one, or"
        " in a `new` one",
    )
    add_models(command)
    add_hosts(command)
    add_kv_bits(command)
    command.add_argument(
        "--max-tokens", type=ANSWER, metavar="N", help="maximum tokens of the answer"
    )
    command.add_argument(
        "--temp",
        dest="temperature",
        type=number("temperature", 0, 100),
        metavar="T",
        help="sampling temperature; 0 is greedy",
    )
    command.add_argument(
        "--top-p",
        type=number("top-p", 0.0001, 1),
        metavar="P",
        help="sample only from the most likely tokens that together have this probability",
    )
    command.add_argument(
        "--top-k",
        type=whole("top-k", 0, 1_000_000),
        metavar="K",
        help="sample only from this many of the most likely tokens",
    )
    command.add_argument(
        "--min-p",
        type=number("min-p", 0, 1),
        metavar="P",
        help="sample only from tokens with at least this fraction of the highest probability",
    )
    command.add_argument(
        "--repetition-penalty",
        type=number("repetition penalty", 0.5, 2),
        metavar="R",
        help="a value above 1 makes the last 64 tokens less likely to be repeated",
    )
    command.add_argument(
        "--thinking",
        action=argparse.BooleanOptionalAction,
        help="think before answering, or do not, if the model can think",
    )
    command.add_argument(
        "--thinking-budget",
        type=whole("thinking budget", 0, MAX_ANSWER),
        metavar="N",
        help="maximum thinking tokens (0: unlimited)",
    )
    command.add_argument(
        "--seed", type=whole("seed", 0, 2**64 - 1), metavar="S", help="seed for sampling"
    )
    command.add_argument(
        "--skip-memory-check",
        action="store_true",
        help="answer even if the prompt is predicted not to fit in memory",
    )
    command.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also print phases, tokens, certainty and the reason for how it was read",
    )
    command.add_argument(
        "--no-citations",
        dest="cite",
        action="store_false",
        help="do not print the passages that the answer is from",
    )
    command.add_argument("--json", action="store_true", help="print the events as JSON lines")
    command.add_argument(
        "--map",
        action="store_true",
        help="print the importance of each part, and all selected passages",
    )


def run(options: argparse.Namespace) -> int:
    """Answer `options.question`. Everything is checked before a model is loaded."""
    settings = user_settings()
    question, sampling = _question(options, settings)
    load = requested_load(options, settings, chosen_hosts(options.hosts))
    saves = options.conversation is not None
    with open_store(LOCK_SECONDS, settings) if saves else TemporaryStore() as store:
        id = _conversation(store, options.conversation) if saves else None
        conversation = StoredConversation(store, id, model_pair(load), sampling)
        branch = conversation.conversation.branch
        question = _search_again(question, branch, _limits(options, settings))
        _check_document(load, branch, question)
        explains = load.only_quotes and not any(turn.quotes for turn in branch)
        turn = conversation.ask(_with_overrides(question, conversation.conversation, options))
        if saves:
            title = store.conversation(turn.conversation).title
            sys.stderr.write(f"Conversation {turn.conversation} · {sanitize_line(title)}\n")
            # This process has the lock on the conversations, so no other one saves snapshots now.
            remove_other_snapshots(snapshots_path(), map(str, store.conversation_ids()))
        snapshots = str(snapshots_path()) if saves else None
        policy = settings.cache_policy(snapshots, str(costs_path()))
        policy = dataclasses.replace(policy, background=BackgroundPolicy.OFF)

        def record(event: Event) -> None:
            turn.apply(event)
            turn.wait()

        with EngineSession(MlxEngine(load_spread=load_spread), policy) as session:
            within = settings.reading.first_word_within_s
            command = dataclasses.replace(turn.command, within_seconds=within, cite=options.cite)
            report = _report(turn.turn, conversation.conversation, options, load.only_quotes)
            status = _answer(session, load, command, report, record)
        if explains and not options.json:
            sys.stderr.write(ONLY_QUOTES)
        for event in session.drain():
            if isinstance(event, SnapshotFailed):
                sys.stderr.write(f"{sanitize_line(wording.reason(event.reason))}\n")
        return status


def _answer(
    session: EngineSession,
    load: Load,
    command: Ask,
    report: Report | JsonLines,
    record: Callable[[Event], None],
) -> int:
    """Show the engine's events, and pass each to `record` first."""
    try:
        report.show(session.load(load))
    except EngineError as error:
        record(Failed(0, error.failure))
        raise
    events = session.run(command)
    with cancel_on_sigint(session.cancel):
        for event in events:
            record(event)
            report.show(event)
    if isinstance(event, Failed):
        raise EngineError(event.failure)
    cancelled = isinstance(event, Finished) and event.finish_reason is FinishReason.CANCELLED
    return INTERRUPTED if cancelled else 0


def _report(
    turn: Turn, conversation: Conversation, options: argparse.Namespace, quotes: bool
) -> Report | JsonLines:
    if options.json:
        return JsonLines(turn, conversation)
    full = turn.question.mode is Mode.FULL
    hint = "-v: details" if full else "-v: details, --full: read in full"
    return Report(
        turn,
        conversation,
        options.map,
        verbose=options.verbose,
        hint=hint,
        quotes=quotes,
        cites=options.cite,
    )


def _question(options: argparse.Namespace, settings: Settings) -> tuple[Question, Sampling]:
    """The question and the sampling, from the options, or else from the settings."""
    mode, keep = settings.reading.mode, settings.reading.keep
    if options.full:
        mode = Mode.FULL
    elif options.auto:
        mode = Mode.AUTO
    elif options.keep is not None:
        mode, keep = Mode.SPARSE, options.keep
    sampling = settings.sampling().with_values(**_sampling_options(options))
    question = Question(options.question, (), mode, keep, options.skip_memory_check)
    question.check()
    if options.ocr and not installed_recogniser():
        raise UserError("No text recognition is installed", install_advice())
    gathered = read_inputs(options.files, _limits(options, settings), [options.question])
    if options.json:
        for each in gathered.skipped:
            _print_json(type(each).__name__, dataclasses.asdict(each))
    return dataclasses.replace(question, documents=gathered.documents), sampling


def _limits(options: argparse.Namespace, settings: Settings) -> ReadLimits:
    limits = settings.limits(private=options.private, ignored=options.ignored)
    return dataclasses.replace(limits, ocr=options.ocr)


def _search_again(question: Question, branch: Sequence[Turn], limits: ReadLimits) -> Question:
    """The question with lines of the large files that were searched for earlier ones."""
    attached = searched_paths(question.documents)
    earlier = searched_paths(each for turn in branch for each in turn.question.documents)
    paths = [each for each in earlier if each not in attached and os.path.isfile(each)]
    if not paths:
        return question
    found = read_inputs(paths, limits, [question.text, branch[-1].question.text])
    return dataclasses.replace(question, documents=(*question.documents, *found.documents))


def _check_document(load: Load, turns: Iterable[Turn], question: Question) -> None:
    """Raise UserError if the demo model is asked without a document."""
    if lacks_document(load, turns, question.documents):
        raise UserError(
            "The demo model can only answer questions about documents",
            "add one with -f or on standard input, or choose another model with --target:"
            f" `specchat models pull {first_model().repository}` downloads a small one"
            f" ({size(first_model().download)})",
        )


def _sampling_options(options: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters among the options."""
    values = {name: getattr(options, name) for name in SAMPLING_OPTIONS}
    return {name: value for name, value in values.items() if value is not None}


def _with_overrides(
    question: Question, conversation: Conversation, options: argparse.Namespace
) -> Question:
    """The conversation's overrides take precedence over the settings, and options over both."""
    cleared = {n: None for n in _sampling_options(options) if hasattr(conversation.overrides, n)}
    conversation.overrides = dataclasses.replace(conversation.overrides, **cleared)
    if options.full or options.auto or options.keep is not None:
        return question
    mode, keep = effective_mode(conversation.overrides, question.mode, question.keep)
    return dataclasses.replace(question, mode=mode, keep=keep)


def _conversation(store: Store, name: str) -> int | None:
    """The id of the conversation to continue; None for a new one. Raises UserError."""
    if name == NEW:
        return None
    found = find_conversation(store, name)
    if found.trashed_at is not None:
        raise UserError(
            f"Conversation {found.id} is in the trash",
            f"`specchat conversations restore {found.id}` restores it",
        )
    return found.id


class JsonLines:
    """Prints every event as a JSON object: its class as `event`, its fields, and sentences about
    it. `Cited` also has `footnotes`: where the passages are, and their texts."""

    def __init__(self, turn: Turn, conversation: Conversation) -> None:
        self._turn, self._conversation = turn, conversation

    def show(self, event: Event) -> None:
        event = self._turn.of_whole_files(event)
        fields = _plain(event)
        if isinstance(event, Cited):
            documents = self._conversation.documents_by_message(self._turn)
            fields["footnotes"] = [
                each.to_plain() for each in footnotes(event.citations, documents)
            ]
        _print_json(type(event).__name__, fields)


def _print_json(event: str, fields: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"event": event} | fields) + "\n")
    sys.stdout.flush()


def _plain(event: Event) -> dict[str, Any]:
    fields = dataclasses.asdict(event)
    statistics: Statistics | None = getattr(event, "statistics", None)
    if statistics is not None:
        fields["statistics"] |= {
            "read_fraction": statistics.read_fraction,
            "decode_rate": statistics.decode_rate,
        }
    return fields | wording.in_words(event)
