"""The `quality` command: measures whether sparse reading gives the same answers as dense."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from app import paths
from app.chat import wording
from app.chat.engine_session import EngineSession
from app.chat.model_pairs import find_pair, resolve_pair
from app.cli.ask import read_inputs
from app.cli.status import INTERRUPTED
from app.cli.terminal import ProgressLine, cancel_on_sigint
from app.engine.engine import MlxEngine
from app.errors import UserError
from app.models.embedded import BUILT_IN, EMBEDDED
from app.protocol.commands import CachePolicy, Load
from app.protocol.options import BackgroundPolicy
from app.settings.definitions import KvBits
from app.util import formatting
from app.util.atomic_files import write_durably
from app.util.sanitize import sanitize
from benchmarks.quality.options import check_draft, pair_of, settings_of
from benchmarks.quality.real_documents import Corpus
from benchmarks.quality.report import Study, as_json, markdown, table
from benchmarks.quality.results_log import Origin, Record, ResultsLog
from benchmarks.quality.runner import Outcome, Runner, Status, item_keys, results_name
from benchmarks.quality.settings import Scoring, ScoringSwitch, Settings
from benchmarks.quality.suites import (
    ABOUT_PASSAGES,
)
from benchmarks.quality.tokens import FolderTokens, Tokens


def evaluate(options: argparse.Namespace) -> int:
    """Measure what is not in the results log, print the table and write the files. Returns the exit
    status. Checks all options before a model is loaded."""
    default = _default_scoring(options)
    options.scoring = options.scoring or default
    settings = _settings(options, default)
    outputs = _outputs(options, settings)
    if options.saved:
        study = _saved_study(options, settings)
        sys.stdout.write(sanitize(table(study)))
        for path, text in outputs.items():
            _write(path, text(study))
        return 0
    load = _load(options, settings)
    tokens = FolderTokens(Path(load.target))
    _check_files(settings, tokens)
    name = results_name(load, settings)
    log = ResultsLog(paths.cache_path() / "eval" / name, options.fresh)
    outcome = _measure(load, settings, log, tokens)
    for note in () if outcome.records else outcome.skipped:
        sys.stderr.write(sanitize(note) + "\n")
    if outcome.complete and not outcome.records:
        raise UserError("Nothing was measured", "choose another --length or --suite")
    study = _study(options, settings, log.origin, outcome.records, outcome.skipped, outcome.stale)
    sys.stdout.write(sanitize(table(study)) if outcome.records else "Nothing was measured yet.\n")
    sys.stdout.flush()
    if not outcome.complete:
        written = " Nothing was written yet." if outputs else ""
        done = f"{outcome.done:,} of {outcome.total:,} runs"
        sys.stderr.write(f"Stopped after {done}; the same command continues from there.{written}\n")
        return INTERRUPTED
    for path, text in outputs.items():
        _write(path, text(study))
    return 0


def _measure(load: Load, settings: Settings, log: ResultsLog, tokens: Tokens) -> Outcome:
    # Skipped tokens must stay skipped, and an item must not reuse another item's cache.
    upkeep = CachePolicy(BackgroundPolicy.OFF, share_prefixes=False)
    switch = ScoringSwitch()
    with EngineSession(MlxEngine(choose_scorer=switch), upkeep) as session:
        loaded = session.load(load)
        if loaded.dense_only is not None:
            why = wording.reason(loaded.dense_only).rstrip(".")
            raise UserError(why, "there is nothing to compare")
        log.origin = _origin(load)
        runner = Runner(session, settings, log, tokens, switch, loaded.target.context_length)
        line = ProgressLine()
        try:
            with cancel_on_sigint(runner.cancel):
                return runner.run(lambda status: line.show(_progress_text(status)))
        finally:
            line.clear()


def _origin(load: Load) -> Origin:
    from app.cli.bench import machine

    target, draft = load.names
    target = f"{target}, cache in {load.kv_bits} bits" if load.kv_bits else target
    return Origin(target, draft, version("specchat"), machine())


def _study(
    options: argparse.Namespace,
    settings: Settings,
    origin: Origin | None,
    records: tuple[Record, ...],
    skipped: tuple[str, ...],
    stale: int = 0,
) -> Study:
    origin = origin or Origin("unknown models", None, "", "an unknown machine")
    pair = (origin.target, origin.draft)
    about = (pair, origin.version, origin.machine, _command(options))
    return Study(settings, *about, records, skipped, stale)


def _saved_study(options: argparse.Namespace, settings: Settings) -> Study:
    """The results in logs, without the models that made them. Raises UserError."""
    logs = [_log(name) for name in options.saved]
    runs = [(key.id, how) for key in item_keys(settings) for how in settings.configs(key.suite)]
    results = (next(filter(None, (log.find(*run) for log in logs)), None) for run in runs)
    found = tuple(record for record in results if record is not None)
    if not found:
        names = ", ".join(options.saved)
        raise UserError(f"'{names}' has no results of these suites", "choose others with --suite")
    missing = f"{len(runs) - len(found):,} of {len(runs):,} runs were not measured."
    origin = _joined([log.origin for log in logs if log.origin is not None])
    return _study(options, settings, origin, found, (missing,) * (len(found) < len(runs)))


def _log(name: str) -> ResultsLog:
    """Raises UserError if there is none."""
    if not Path(name).is_file():
        raise UserError(f"There are no results in '{name}'", "name a results log")
    return ResultsLog(Path(name))


def _joined(origins: Sequence[Origin]) -> Origin | None:
    """One origin that names all of these targets and machines."""
    if not origins:
        return None
    target, machine = (
        "; ".join(dict.fromkeys(getattr(origin, name) for origin in origins))
        for name in ("target", "machine")
    )
    return replace(origins[0], target=target, machine=machine)


def _command(options: argparse.Namespace) -> str:
    """The command that reproduces this result, with all defaults."""
    parts = ["python", "-m", "benchmarks", "quality"]
    for suite in options.suite or ["all"]:
        parts += ["--suite", suite]
    if options.pair:
        parts += ["--pair", *options.pair]
    elif options.target or options.draft:
        parts += ["--target", options.target or EMBEDDED]
        parts += ["--draft", options.draft] if options.draft else []
    for name in ("length", "keep", "scoring", "n", "seed"):
        parts += [f"--{name}", str(getattr(options, name))]
    parts += ["--kv-bits", options.kv_bits] if options.kv_bits else []
    parts += ["--held-out"] if options.held_out else []
    parts += ["--auto"] if options.auto else []
    parts += ["--sparse-only"] if options.sparse_only else []
    for name, values in (
        ("tune", options.tune),
        ("ablate", options.ablate),
        ("file", options.files),
        ("saved", options.saved),
    ):
        parts += [part for value in values for part in (f"--{name}", value)]
    for name in ("right_in", "json", "report"):
        if value := getattr(options, name):
            parts += [f"--{name.replace('_', '-')}", value]
    return shlex.join(parts)


# -------------------------------------------------------------------------------- the options


def _settings(options: argparse.Namespace, default: Scoring) -> Settings:
    """With the files and the items. Raises UserError for invalid options."""
    settings = settings_of(options, default)
    inputs = read_inputs(options.files).results
    only = _log(options.right_in).right_in_full() if options.right_in else None
    texts = {document.text: document for result in inputs for document in result.texts}
    return replace(settings, files=tuple(texts.values()), only=only)


def _default_scoring(options: argparse.Namespace) -> Scoring:
    """The scoring that the engine would choose."""
    target, draft = pair_of(options)
    if draft is None and target == EMBEDDED:
        draft = EMBEDDED
    if draft is None or draft == BUILT_IN:
        return Scoring.BUILT_IN
    if find_pair(target, draft).draft_is_encoder:
        return Scoring.BUILT_IN
    return Scoring.BOTH if draft == EMBEDDED else Scoring.JOINED


def _load(options: argparse.Namespace, settings: Settings) -> Load:
    load = resolve_pair(*pair_of(options), kv_bits=KvBits(options.kv_bits or KvBits.FULL).bits)
    load = replace(load, only_quotes=False)  # measure the model's own answers
    if load.draft is None or load.draft_is_encoder:
        check_draft(settings.scorings)
    return load


def _check_files(settings: Settings, tokens: Tokens) -> None:
    about_passages = [name for name in settings.suites if name in ABOUT_PASSAGES]
    Corpus(settings.files, tokens).check(about_passages)


# -------------------------------------------------------------------------------- the outputs


def _outputs(options: argparse.Namespace, settings: Settings) -> dict[Path, Callable[[Study], str]]:
    """The files to write. Raises UserError if one is not writable."""
    outputs: dict[Path, Callable[[Study], str]] = {}
    if options.report:
        report = Path(options.report)
        outputs[report] = markdown
    if options.json:
        if Path(options.json) in outputs:
            raise UserError("--json and --report name the same file", "give two names")
        outputs[Path(options.json)] = as_json
    for path in outputs:
        _check_writable(path)
    return outputs


def _check_writable(path: Path) -> None:
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"'{path}' cannot be written ({reason})",
            "name a file in a folder that you may write to",
        ) from None


def _write(path: Path, text: str) -> None:
    """Replace the file atomically. Raises UserError."""
    try:
        write_durably(path, text.encode())
    except OSError as error:
        raise UserError(
            f"'{path}' could not be written ({error.strerror})",
            "the same command tries again, without measuring again",
        ) from None


def _progress_text(status: Status) -> str:
    key = status.key
    eta = "" if status.eta is None else f" · ETA {formatting.seconds(status.eta)}"
    runs = f"{status.done:,}/{status.total:,} runs{eta}"
    return f"{key.suite} {key.length:,} · item {key.index + 1} · {runs}"
