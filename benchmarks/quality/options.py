"""The options of the `quality` command: what they mean, and which values are refused."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import product

from app.cli.options import parse_fraction, parse_keep, parse_prompt_length, whole
from app.errors import UserError
from app.models.embedded import BUILT_IN, EMBEDDED
from app.protocol.options import DEFAULT_TUNING, Tuning
from benchmarks.harness import parse_list
from benchmarks.quality.settings import Scoring, Settings
from benchmarks.quality.suites import ANSWERED, DEV, GROUPS, HELD_OUT, NEED_FILES, SUITES, TUNED_ON


def settings_of(options: argparse.Namespace, default: Scoring = Scoring.BUILT_IN) -> Settings:
    """The settings, with the scoring `default` if none is named, without files and items. Opens no
    file and loads no model. Raises UserError for invalid options."""
    suites = _suites(options.suite)
    about_files = [name for name in suites if name in NEED_FILES]
    if about_files and not options.files and not options.saved:
        raise UserError(f"The {about_files[0]} suite asks about files", "name them with --file")
    if options.files and not about_files:
        known = _names(name for name in SUITES if name in NEED_FILES)
        raise UserError("No chosen suite asks about files", f"leave --file out, or add {known}")
    lengths = parse_list(options.length, parse_prompt_length)
    keeps = parse_list(options.keep, parse_keep)
    scorings = parse_list(options.scoring or default, _scoring)
    if options.sparse_only and options.auto:
        raise UserError(
            "--auto is compared with a full prefill, which --sparse-only skips",
            "give one of the two",
        )
    tunings = _tunings(options.tune, options.ablate)
    target, draft = pair_of(options)
    if not options.saved and (draft == BUILT_IN or (draft is None and target != EMBEDDED)):
        check_draft(scorings)
    order = list(Scoring)
    return Settings(
        suites,
        tuple(sorted(lengths)),
        tuple(sorted(keeps)),
        tuple(sorted(scorings, key=order.index)),
        options.n,
        options.seed,
        options.held_out,
        options.auto,
        tunings,
        sparse_only=options.sparse_only,
        default=default,
    )


def pair_of(options: argparse.Namespace) -> tuple[str, str | None]:
    """The names of target and draft."""
    target, draft = options.target, options.draft
    if options.pair:
        if target or draft:
            raise UserError("The pair was given twice", "give --pair, or --target and --draft")
        if len(options.pair) > 2:
            raise UserError(
                f"A pair has two models, not {len(options.pair)}", "give --pair TARGET DRAFT"
            )
        target, draft = [*options.pair, None][:2]
    return target or EMBEDDED, draft


def check_draft(scorings: Iterable[Scoring]) -> None:
    """Raises UserError if one of them needs a draft model, for a pair without one."""
    needed = [scoring for scoring in scorings if scoring.needs_draft]
    if needed:
        free = ",".join(s for s in Scoring if not s.needs_draft)
        raise UserError(
            f"The scoring {str(needed[0])!r} needs a draft model",
            f"name one with --draft, or choose --scoring {free}",
        )


def _suites(names: Sequence[str]) -> tuple[str, ...]:
    chosen: set[str] = set()
    for name in ",".join(names or ["all"]).split(","):
        if name not in GROUPS and name not in SUITES:
            raise UserError(
                f"There is no suite {name!r}", f"choose from {_names([*GROUPS, *SUITES])}"
            )
        chosen.update(GROUPS.get(name, (name,)))
    return tuple(name for name in SUITES if name in chosen)


def _names(suites: Iterable[str]) -> str:
    """The names, with the name of the group instead of its many suites."""
    groups = dict.fromkeys(ANSWERED, "answers") | dict.fromkeys(HELD_OUT, "passages")
    groups |= dict.fromkeys(TUNED_ON, DEV)
    return ", ".join(dict.fromkeys(groups.get(suite, suite) for suite in suites))


def _scoring(text: str) -> Scoring:
    if text not in list(Scoring):
        raise UserError(f"There is no scoring {text!r}", f"choose from {', '.join(Scoring)}")
    return Scoring(text)


def _tunings(combined: Sequence[str], alone: Sequence[str]) -> tuple[Tuning, ...]:
    """All combinations of the values in `combined`, then the first one of them with each of the
    values in `alone`."""
    values = _tuning_values(combined)
    chosen = [dict(zip(values, choice, strict=True)) for choice in product(*values.values())]
    tunings = [replace(DEFAULT_TUNING, **choice) for choice in chosen]  # type: ignore[arg-type]
    for name, others in _tuning_values(alone).items():
        tunings += [replace(tunings[0], **{name: value}) for value in others]  # type: ignore[arg-type]
    return tuple(dict.fromkeys(tunings))


def _tuning_values(pairs: Sequence[str]) -> dict[str, tuple[object, ...]]:
    """The values of each NAME=VALUE,VALUE; a repeated name replaces the earlier values."""
    known = {field.name: getattr(DEFAULT_TUNING, field.name) for field in fields(Tuning)}
    values: dict[str, tuple[object, ...]] = {}
    for text in pairs:
        name, separator, value = text.partition("=")
        if name == "scoring":
            raise UserError("The scoring is not a tuning parameter", "choose it with --scoring")
        if name not in known or not separator:
            names = ", ".join(known)
            raise UserError(
                f"There is no tuning parameter {text!r}", f"give NAME=VALUE, NAME from {names}"
            )
        values[name] = parse_list(value, partial(_tuned, name, default=known[name]))
    return values


def _tuned(name: str, text: str, default: object) -> object:
    """Parse the value of a field of Tuning by the type of its default."""
    if isinstance(default, float):
        return parse_fraction(text, name)
    return whole(name, 1 if name == "chunk" else 0, 999_999_999)(text)
