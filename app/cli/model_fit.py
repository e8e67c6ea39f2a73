"""Which models fit, and which go together, for a shell: the lines of `specchat models` about that.

What comes from catalogues, folders and the hub is made harmless where it is printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from app.cli.open_store import open_store
from app.cli.parsing import parse_tokens
from app.errors import UserError
from app.models import catalogue, draft_selection, speedup
from app.models.cache import ModelCache
from app.models.draft_selection import DraftCandidate, MeasuredRatio
from app.models.embedded import EMBEDDED
from app.models.errors import ModelError
from app.models.fit import DEFAULT_KEEP, Fit, Machine, mac_with, parse_memory, with_kv_bits
from app.models.fit import fit as reckon
from app.models.hub_info import HubModel
from app.models.model_details import ModelDetails, find_model, known_models
from app.models.overview import ModelOverview, overview
from app.models.text import breakdown_rows, facts, gigabytes, memory_heading, verdict_sentences
from app.paths import config_path, costs_path, data_path
from app.protocol.commands import CachePolicy
from app.protocol.cost_model import AttentionWork, scoring_work
from app.protocol.options import BackgroundPolicy
from app.sessions.errors import StoreError
from app.sessions.records import AnswerStats
from app.sessions.startup import Paths
from app.settings.values import KvBits
from app.util.sanitize import sanitize_line


def search(cache: ModelCache, options: argparse.Namespace) -> Iterator[str]:
    """The catalogue's models with all these words."""
    entries, machine = _entries(), _machine(options.memory)
    words = " ".join(options.words)
    found = catalogue.search(entries, words)
    if not found:
        raise UserError(
            f"No model in the catalogue mentions {words!r}",
            "`specchat models search` lists all, and any other may be named as organisation/name",
        )
    for entry in found:
        try:
            model = find_model(entry.name, cache, entries)
        except ModelError as error:
            yield _row("", entry.name, str(error))
            continue
        yield _row(
            gigabytes(model.size.weight_bytes),
            model.name,
            *facts(model),
            reckon(model.size, None, machine).verdict,
        )
        if entry.measured:
            yield _row("", f"read sparsely {entry.measured}")


def pair(cache: ModelCache, options: argparse.Namespace) -> Iterator[str]:
    """The drafts for a target, the one that would be taken first."""
    keep, machine, entries = _keep(options.keep), _machine(options.memory), _entries()
    target = find_model(options.name, cache, entries, _look)
    found = _candidates(target, cache, entries, machine)
    if not found:
        raise UserError(
            f"No draft is known for {target.name}: none here and none in the catalogue is smaller"
            " and has its tokenizer",
            "name one with --draft all the same, or let it read everything",
        )
    if options.measure:
        clock = _timed(target, found, cache)
        found = _candidates(target, cache, entries, machine, clock)
    taken = draft_selection.best_draft(found)
    yield f"{target.name} · {', '.join(facts(target))}"
    for candidate in found:
        yield _row(
            f"{candidate.speedup(keep):.1f} times",
            candidate.draft.name,
            f"r {candidate.cost_ratio:.2f}" + (" by the clock" if candidate.measured else ""),
            gigabytes(candidate.draft.size.weight_bytes),
            "here" if candidate.draft.installed else "to download",
            f"together {candidate.fit.verdict}",
            *(["the one to take"] if candidate is taken else []),
        )
        for note in candidate.notes:
            yield _row("", note)
    yield (
        f"How much sooner the first word comes at keep {keep:.0%}: 1 / (r + keep +"
        f" {speedup.OVERHEAD:.2f}), where r is what the draft costs of the target for each token."
    )
    if not all(model.installed for model in (target, *(each.draft for each in found))):
        yield "Tokenizers are compared once both models are here; until then families count."
    if target.entry is not None and target.entry.measured:
        yield f"Measured elsewhere {target.entry.measured}."
    if taken is None:
        yield "None of them makes reading enough faster: it would read everything."


def fit(cache: ModelCache, options: argparse.Namespace) -> Iterator[str]:
    """The sum for one model and its draft, line by line."""
    machine, entries = _machine(options.memory), _entries()
    target = find_model(options.name, cache, entries, _look)
    named = options.draft or (EMBEDDED if options.name == EMBEDDED else None)
    if named:
        draft: ModelDetails | None = find_model(named, cache, entries, _look, draft=True)
    else:
        draft = _taken(target, cache, entries, machine)
    tokens = _length(options.length) if options.length else None
    bits = KvBits(options.kv_bits or KvBits.FULL).bits
    sized = replace(target.size, architecture=with_kv_bits(target.size.architecture, bits))
    found = reckon(sized, draft.size if draft else None, machine, tokens)
    yield f"{target.name} · {', '.join(facts(target))}"
    yield f"with {draft.name} as its draft" if draft else "without a draft, so that it reads all"
    yield from _sum(found)


def in_short(cache: ModelCache, name: str) -> list[str]:
    """One model's verdict on this machine, for `show`; nothing when it cannot be told."""
    try:
        entries = _entries()
        target, machine = find_model(name, cache, entries), _machine(None)
        draft = _taken(target, cache, entries, machine)
    except ModelError as error:
        return [str(error)]
    found = reckon(target.size, draft.size if draft else None, machine)
    with_draft = f" with {draft.name}" if draft else ""
    return [
        ", ".join(facts(target)),
        f"{found.verdict[0].upper()}{found.verdict[1:]}{with_draft}:"
        f" `specchat models fit {name}` shows the sum.",
    ]


def listing(cache: ModelCache, options: argparse.Namespace) -> list[str]:
    """Every model here and in the catalogue with what fits, and the pair that it would be."""
    machine, entries = _machine(options.memory), _entries()
    measured = partial(speedup.measured_ratio, _answer_stats())
    rows = overview(known_models(cache, entries), machine, measured)
    rows.sort(key=lambda row: (not row.model.installed, row.fit.max_tokens == 0))
    if options.json:
        return [json.dumps([_as_json(row) for row in rows], indent=2)]
    lines = [memory_heading(machine)]
    for row in rows:
        target, taken = row.model, row.best_draft
        told = [target.name, "here" if target.installed else "to download", row.fit.verdict]
        if taken is not None:
            told += [f"with {taken.draft.name}", f"{taken.speedup():.1f} times sooner"]
        lines.append(_row(gigabytes(target.size.weight_bytes), *told))
    return [
        *lines,
        f"Sooner: the first word, at keep {DEFAULT_KEEP:.0%}, by what is known of both models.",
    ]


def _as_json(row: ModelOverview) -> dict[str, object]:
    target, taken = row.model, row.best_draft
    return {
        "name": target.name,
        "here": target.installed,
        "weights": target.size.weight_bytes,
        "fits": row.fit.max_tokens,
        "fits_sparse": row.fit.max_sparse_tokens,
        "draft": taken.draft.name if taken else None,
        "speedup": round(taken.speedup(), 2) if taken else None,
    }


# ------------------------------------------------------------------------------------------ inside


def _sum(found: Fit) -> Iterator[str]:
    yield from (_row(*row) for row in breakdown_rows(found))
    yield from verdict_sentences(found)


def _entries() -> tuple[catalogue.Entry, ...]:
    return catalogue.catalogue(config_path())


def _candidates(
    target: ModelDetails,
    cache: ModelCache,
    entries: tuple[catalogue.Entry, ...],
    machine: Machine,
    measured: MeasuredRatio | None = None,
) -> list[DraftCandidate]:
    models = known_models(cache, entries)
    clock = measured or partial(speedup.measured_ratio, _answer_stats())
    return draft_selection.draft_candidates(target, models, machine, clock)


def _timed(
    target: ModelDetails, found: Sequence[DraftCandidate], cache: ModelCache
) -> MeasuredRatio:
    """What the clock says of each pair that is here, and at last of answers that were given."""
    from app.chat.engine_session import EngineSession
    from app.chat.model_pairs import resolve_pair as load_of

    ratios: dict[str, float] = {}
    upkeep = CachePolicy(BackgroundPolicy.OFF, costs_folder=str(costs_path()))
    drafts = [each.draft.name for each in found if each.draft.installed and target.installed]
    if not drafts:
        raise UserError(
            f"Nothing can be timed: {target.name} and a draft for it must both be here",
            "download them with `specchat models pull`",
        )
    for draft in drafts:
        sys.stderr.write(sanitize_line(f"Timing {target.name} with {draft}…") + "\n")
        with EngineSession(upkeep=upkeep) as session:
            session.load(load_of(target.name, draft, cache))
            costs = session.calibrate()
        if costs.target is None or costs.draft is None:
            raise UserError(
                f"{target.name} with {draft} could not be timed: they do not read sparsely here, or"
                " there is not enough memory",
                "close other programs, or name another pair",
            )
        skim, read = (
            scoring_work(speedup.REFERENCE_TOKENS, 0),
            AttentionWork(speedup.REFERENCE_TOKENS),
        )
        ratios[draft.rpartition("/")[2]] = costs.draft.seconds(skim) / costs.target.seconds(read)
    runs = _answer_stats()

    def measured(target: str, draft: str) -> float | None:
        return ratios.get(draft) or speedup.measured_ratio(runs, target, draft)

    return measured


def _taken(
    target: ModelDetails, cache: ModelCache, entries: tuple[catalogue.Entry, ...], machine: Machine
) -> ModelDetails | None:
    taken = draft_selection.best_draft(_candidates(target, cache, entries, machine))
    return taken.draft if taken else None


def _answer_stats() -> Sequence[AnswerStats]:
    """Statistics of the stored answers; none when there are no conversations."""
    if not Paths(data_path()).database.exists():
        return ()
    try:
        with open_store() as store:
            return store.answer_stats()
    except StoreError:
        return ()


def _look(repository: str) -> HubModel:
    from app.models.hub_info import fetch_hub_model
    from app.models.pull import default_hub_settings

    return fetch_hub_model(repository, default_hub_settings())


def _machine(memory: str | None) -> Machine:
    """The Mac asked for, or this machine with what its device recommends."""
    if memory:
        return mac_with(parse_memory(memory))
    import psutil

    from app.engine.memory_probes import ceiling

    return Machine(psutil.virtual_memory().total, ceiling())


def _keep(keep: float) -> float:
    if not 0 < keep <= 1:
        raise UserError(f"{keep} is no fraction to keep", "give one above 0 and up to 1")
    return keep


def _length(text: str) -> int:
    tokens = parse_tokens(text.strip())
    if tokens is None or not 0 < tokens < 1 << 30:
        raise UserError(f"{text!r} is no length", "give tokens, such as 40000 or 64k")
    return tokens


def _row(amount: str, *parts: str) -> str:
    return f"{amount:>12}  " + " · ".join(parts)
