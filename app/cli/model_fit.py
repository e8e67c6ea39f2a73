"""Memory estimates and drafts for `specchat models`, as lines of text.

They may contain untrusted text, which is sanitised where it is printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from app.cli.conversations import open_store
from app.errors import UserError
from app.models import catalogue, pairs, speedup
from app.models.cache import ModelCache
from app.models.embedded import BUILT_IN, EMBEDDED
from app.models.errors import ModelError
from app.models.fit import Fit, Machine, mac_with, with_kv_bits
from app.models.fit import fit as estimate
from app.models.hub import HubModel
from app.models.model_details import ModelDetails, find_model, known_models
from app.models.pairs import DraftCandidate, MeasuredRatio, embedded_pair
from app.models.text import (
    breakdown_rows,
    facts,
    memory_heading,
    sampling_lines,
    verdict_sentences,
)
from app.paths import config_path, costs_path, data_path
from app.protocol.commands import CachePolicy
from app.protocol.cost_model import AttentionWork, scoring_work
from app.protocol.options import DEFAULT_KEEP_RATIO, BackgroundPolicy
from app.settings.definitions import KvBits
from app.store.records import AnswerStats, StoreError
from app.store.recovery import Paths
from app.util.formatting import size
from app.util.sanitize import sanitize_line


def search(cache: ModelCache, options: argparse.Namespace) -> Iterator[str]:
    """The models in the catalogue with all these words."""
    entries, machine = _entries(), _machine(options.memory)
    words = " ".join(options.words)
    found = catalogue.search(entries, words)
    if not found:
        raise UserError(
            f"No model in the catalogue matches {words!r}",
            "`specchat models search` lists all, and `--hub` searches the hub",
        )
    for entry in found:
        try:
            model = find_model(entry.name, cache, entries)
        except ModelError as error:
            yield _row("", entry.name, str(error))
            continue
        yield _row(
            size(_bytes(model)),
            model.name,
            *facts(model),
            estimate(model.size, None, machine).verdict,
        )
        if entry.measured:
            yield _row("", f"measured speedup {entry.measured}")


def pair(cache: ModelCache, options: argparse.Namespace) -> Iterator[str]:
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
    yield _row(
        f"{speedup.speedup(0.0, keep):.1f}x",
        "the built-in draft",
        "r 0.00",
        "nothing to download",
        alone.verdict,
        *(["the default"] if own is None else []),
    )
    for candidate in found:
        draft = candidate.draft
        yield _row(
            f"{candidate.speedup(keep):.1f}x",
            draft.name,
            f"r {candidate.cost_ratio:.2f} {candidate.source}",
            "installed" if draft.installed else f"{size(draft.download)} to download",
            f"the pair {candidate.fit.verdict}",
            *(["the default"] if candidate is own else []),
        )
        yield _row("", candidate.benefit)
        for note in candidate.notes:
            yield _row("", note)
    if not alone.max_tokens:
        yield (
            f"{target.name} is too large for this machine's {machine.total >> 30} GB, with or"
            " without a draft model."
        )
    if not found:
        yield (
            "No draft model is known: no smaller model with this tokenizer is installed or in the"
            " catalogue. --draft takes any model."
        )
    yield (
        f"Speedup of the first word at keep {keep:.0%}: 1 / (r + keep + {speedup.OVERHEAD:.2f}),"
        " where r is the cost per token of the draft relative to the target."
    )
    if not all(model.installed for model in (target, *(each.draft for each in found))) and found:
        yield "Tokenizers are compared once both models are installed; until then by family."
    if target.entry is not None and target.entry.measured:
        yield f"Published measurements: {target.entry.measured}."


def fit(cache: ModelCache, options: argparse.Namespace) -> Iterator[str]:
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
    yield f"with {draft.name} as its draft" if draft else "with the built-in draft"
    yield from _estimate_rows(found)


def in_short(cache: ModelCache, name: str) -> list[str]:
    """A model's verdict on this machine, for `show`."""
    try:
        target = find_model(name, cache, _entries())
    except ModelError as error:
        return [str(error)]
    verdict = estimate(target.size, None, _machine(None)).verdict
    return [
        ", ".join(facts(target)),
        *sampling_lines(target),
        f"{verdict[0].upper()}{verdict[1:]}: `specchat models fit {name}` shows the estimate.",
    ]


def listing(cache: ModelCache, options: argparse.Namespace) -> list[str]:
    """All installed and catalogued models, with what fits."""
    machine = _machine(options.memory)
    rows = [
        (model, estimate(model.size, None, machine)) for model in known_models(cache, _entries())
    ]
    rows.sort(key=lambda row: (not row[0].installed, row[1].max_tokens == 0))
    if options.json:
        return [json.dumps([_as_json(*row) for row in rows], indent=2)]
    lines = [memory_heading(machine)]
    for model, found in rows:
        state = "installed" if model.installed else "to download"
        lines.append(_row(size(_bytes(model)), model.name, state, found.verdict))
    return [
        *lines,
        f"With the built-in draft, the first word comes {speedup.built_in_speedup():.1f}x as fast"
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


# ------------------------------------------------------------------------------------------ inside


def _estimate_rows(result: Fit) -> Iterator[str]:
    yield from (_row(*row) for row in breakdown_rows(result))
    yield from verdict_sentences(result)


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
    return pairs.draft_candidates(target, models, machine, clock)


def _measure_pairs(
    target: ModelDetails, found: Sequence[DraftCandidate], cache: ModelCache
) -> MeasuredRatio:
    """The measured cost ratio of each installed pair, or else that of earlier answers."""
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
                "close other programs, or choose another pair",
            )
        scoring = costs.draft.seconds(scoring_work(speedup.REFERENCE_TOKENS, 0))
        dense = costs.target.seconds(AttentionWork(speedup.REFERENCE_TOKENS))
        ratios[draft.rpartition("/")[2]] = scoring / dense
    runs = _answer_stats()

    def measured(target: str, draft: str) -> float | None:
        return ratios.get(draft) or speedup.measured_ratio(runs, target, draft)

    return measured


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
    """Bytes in memory of an installed model, or else to download."""
    return model.size.weight_bytes if model.installed else model.download


def _row(amount: str, *parts: str) -> str:
    return f"{amount:>12}  " + " · ".join(parts)
