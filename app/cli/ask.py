"""`specchat ask`: answers one question on the command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from app.chat import wording
from app.chat.conversation import Conversation, Question, Turn, check_sampling, effective_mode
from app.chat.engine_session import EngineError, EngineSession
from app.chat.model_pairs import lacks_document, model_pair, resolve_pair
from app.chat.stored_conversation import StoredConversation
from app.cli.exit_codes import INTERRUPTED
from app.cli.hosts import chosen_hosts, connect
from app.cli.inputs import read_inputs
from app.cli.open_store import LOCK_SECONDS, find_conversation, open_store
from app.cli.report import Report
from app.cli.settings import requested_pair, user_settings
from app.cli.sigint import cancel_on_sigint
from app.engine.cache.snapshot_folder import remove_other_snapshots
from app.engine.engine import MlxEngine
from app.errors import UserError
from app.models.packaged import SMOLLM2
from app.paths import costs_path, snapshots_path
from app.protocol.commands import Ask, Load
from app.protocol.events import Event, Failed, Finished, SnapshotFailed
from app.protocol.options import BackgroundPolicy, Mode, Sampling
from app.protocol.stats import FinishReason, Statistics
from app.settings.definitions import KvBits, Settings
from app.store.store import Store, TemporaryStore
from app.util.formatting import size
from app.util.sanitize import sanitize_line

NEW = "new"
ONLY_QUOTES = (
    f"This demo model only quotes. `specchat models pull {SMOLLM2.repository}`"
    f" ({size(SMOLLM2.download)}) gets a small model that answers in its own words, with --target"
    f" {SMOLLM2.repository}.\n"
)


def ask(options: argparse.Namespace) -> int:
    """Answer `options.question`. Everything is checked before a model is loaded."""
    settings = user_settings()
    question, sampling = _question(options, settings)
    kv = KvBits(options.kv_bits) if options.kv_bits else settings.reading.kv_bits
    pair = requested_pair(options.target, options.draft, settings)
    load = resolve_pair(*pair, kv_bits=kv.bits, hosts=chosen_hosts(options.hosts, options.split))
    saves = options.conversation is not None
    with open_store(LOCK_SECONDS, settings) if saves else TemporaryStore() as store:
        id = _conversation(store, options.conversation) if saves else None
        conversation = StoredConversation(store, id, model_pair(load), sampling)
        branch = conversation.conversation.branch
        _check_document(load, branch, question)
        explains = load.only_quotes and not any(turn.quotes for turn in branch)
        turn = conversation.ask(_with_overrides(question, conversation.conversation, options))
        if saves:
            title = store.conversation(turn.conversation).title
            sys.stderr.write(f"Conversation {turn.conversation} · {sanitize_line(title)}\n")
            # No other program saves any now: this one has the lock on the conversations.
            remove_other_snapshots(snapshots_path(), map(str, store.conversation_ids()))
        snapshots = str(snapshots_path()) if saves else None
        policy = settings.cache_policy(snapshots, str(costs_path()))
        policy = dataclasses.replace(policy, background=BackgroundPolicy.OFF)

        def record(event: Event) -> None:
            turn.apply(event)
            turn.wait()

        with EngineSession(MlxEngine(connect=connect), policy) as session:
            within = settings.reading.first_word_within
            command = dataclasses.replace(turn.command, within_seconds=within)
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
        record(Failed(None, error.failure))
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
        return JsonLines()
    full = turn.question.mode is Mode.FULL
    hint = "-v: details" if full else "-v: details, --full: everything"
    return Report(
        turn, conversation, options.map, verbose=options.verbose, hint=hint, quotes=quotes
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
    check_sampling(sampling)
    question = Question(options.question, (), mode, keep, options.skip_memory_check)
    question.check()
    limits = settings.limits(private=options.private, ignored=options.ignored)
    gathered = read_inputs(options.files, limits)
    return dataclasses.replace(question, documents=gathered.documents), sampling


def _check_document(load: Load, turns: Iterable[Turn], question: Question) -> None:
    """UserError when the embedded pair is asked without a document."""
    if lacks_document(load, turns, question.documents):
        raise UserError(
            "The embedded pair answers questions about documents",
            "add one with -f or on standard input, or choose another pair with --target:"
            f" `specchat models pull {SMOLLM2.repository}` downloads a small one (93 MB)",
        )


def _sampling_options(options: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters among the options."""
    values = {"max_tokens": options.max_tokens, "temperature": options.temp, "seed": options.seed}
    values |= {"top_p": options.top_p, "top_k": options.top_k, "min_p": options.min_p}
    values |= {"repetition_penalty": options.repetition_penalty}
    values |= {"thinking": options.thinking, "thinking_budget": options.thinking_budget}
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
    """Prints every event as a JSON object: its class as `event`, its fields, and its sentences."""

    def show(self, event: Event) -> None:
        sys.stdout.write(json.dumps({"event": type(event).__name__} | _plain(event)) + "\n")
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
