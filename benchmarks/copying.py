"""Speed of answers with speculative decoding.

*Steps*: the cost of a step of n tokens relative to one of a single token, on random models after a
prompt of some length. The gain at any acceptance rate follows from it. *Forced*: these models are
made to write a part of the prompt, a part with every `EDITED`th token changed, or a text that is
not in the prompt, with and without proposals, alternately. *Answers*: a real model writes the same
answers with and without proposals about a text in its cache (the embedded model has a fifth of it,
as in the demo). The answers must be identical.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from app.chat.sample import QUESTION, sample
from app.models.embedded import EMBEDDED
from app.protocol.commands import Ask
from app.protocol.events import Finished
from app.protocol.options import DEFAULT_KEEP_RATIO, Mode, Sampling
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import Statistics
from app.util.assets import assets_path
from benchmarks.harness import Bench, Column, Goal, Options, Progress, Result, Row, Run, columns
from benchmarks.shapes import random_pair, shapes

if TYPE_CHECKING:
    from app.chat.engine_session import EngineSession

HYBRID, TASKS, TASK_TOKENS = "hybrid", 6, 1024
"""The name of the folder of the test model with recurrent layers; tasks of each kind for it."""
LONG_SENTENCE, AROUND = range(35, 70), 1500
"""Words of a sentence to quote; characters of the text before and after it."""
STEP = 512
SIZES = (1, 2, 4, 8, 16)
REPEATS = 12
"""Steps per size; the median counts."""
SHARES = (0.5, 0.9)
CHARACTERS = 6000
FORCED, EDITED, VOCABULARY = ("quoting", "editing", "free text"), 12, 4000
MIN_SPEEDUP, MIN_QUOTING_SPEEDUP, MIN_EMBEDDED_SPEEDUP = 0.98, 1.3, 2.5
Question = tuple[Document, str]


def tasks(target: str) -> dict[str, list[Question]]:
    """Questions by kind. The embedded model only quotes; that of `assets/hybrid` was trained for a
    few tasks."""
    if Path(target).name == HYBRID:
        from benchmarks.quality.suites import SUITES, make
        from benchmarks.quality.tokens import FolderTokens

        tokens = FolderTokens(Path(target)).count
        items = {
            suite: [make(SUITES[suite], index, TASK_TOKENS, 0, tokens) for index in range(TASKS)]
            for suite in ("lookup", "track")
        }
        return {"quoting": list(islice(_long_quotations(), TASKS))} | {
            suite: [(item.document, item.question) for item in found]
            for suite, found in items.items()
        }
    licence = Document("gpl-3.0.txt", sample().text[:CHARACTERS])
    if target == EMBEDDED:
        return {"quoting": [(sample(), QUESTION)]}
    code = (assets_path() / "guard" / "train.py").read_text(encoding="utf-8")[:CHARACTERS]
    quoting = (
        "Repeat the first two paragraphs of the text word by word.",
        'Quote the text from "The GNU General Public License is" on.',
        "What does the text say about developers that use the GNU GPL? Quote it.",
        'Write down the section "Definitions" of the text.',
    )
    editing = (
        "Repeat the first function with a docstring added, and change nothing else.",
        "Rename every constant in this module to lower case, and write down the whole module.",
        "Write down the module's imports and constants with a comment behind each of them.",
        "Write a unit test of the first function.",
    )
    chat = (
        "Summarise the text in a few sentences.",
        "For whom is this licence a good choice, and for whom is it not?",
        "Explain to a beginner what a copyright is, and what the text does with it.",
        "Write an email to a colleague about what this text means for our product.",
    )
    free = (
        "Forget the text. Tell me a story about a lighthouse.",
        "Forget the text. Plan a week of dinners for a family of four.",
    )
    return {
        "quoting": [(licence, question) for question in quoting],
        "editing code": [(Document("train.py", code), question) for question in editing],
        "chat": [(licence, question) for question in chat],
        "free text": [(licence, question) for question in free],
    }


def _long_quotations() -> Iterator[Question]:
    """Questions for a long sentence of the sample text, with the text around it."""
    text = sample().text
    for found in re.finditer(r"(?<=\.\s)[A-Z][^.:\"]*\.", text):
        if len(words := found[0].split()) in LONG_SENTENCE:
            around = text[max(found.start() - AROUND, 0) : found.end() + AROUND]
            quoted = " ".join(words[:5])
            yield Document("gpl-3.0.txt", around), f'Quote the sentence with "{quoted}" to its end.'


def measure(options: Options, progress: Progress) -> Iterator[Row]:
    """Raises UserError for an unknown shape or model."""
    from app.engine.cache.prefill import device_backend
    from app.engine.model.findings import Speed
    from app.engine.model.speculation import SLOPE, Gate

    for shape in options.shapes:
        target, _ = random_pair(shape)
        vocabulary = shapes()[shape]["target"]["vocab_size"]
        for length in options.lengths:
            runs = progress.repeat(
                f"{shape}, {length:,} tokens", partial(steps, target, vocabulary, length)
            )
            yield Row({"model": shape, "length": length, "what": "steps"}, runs)
            for what in FORCED:
                speed = Speed.of(target, target, device_backend())
                gate = Gate(max(SLOPE, speed.per_token / speed.step))
                order = count()
                both = partial(_forced, target, what, length, options.tokens, gate, order)
                runs = progress.repeat(f"{shape}, {what}", both)
                yield Row({"model": shape, "length": length, "what": what}, runs)
    from app.chat.engine_session import EngineSession
    from app.chat.model_pairs import resolve_pair

    name = options.target or EMBEDDED
    with EngineSession() as session:
        loaded = session.load(resolve_pair(name))
        for what, questions in tasks(name).items():
            both = partial(_both, session, questions, options.tokens, name == EMBEDDED, count())
            runs = progress.repeat(f"{loaded.target.name}, {what}", both)
            yield Row({"model": loaded.target.name, "what": what}, runs)


def steps(model: Any, vocabulary: int, length: int) -> Run:
    """The cost of each of SIZES in plain steps, the expected gain at each of SHARES, and plain
    steps a second."""
    import mlx.core as mx

    from app.engine.cache.caches import step_undo
    from app.engine.cache.prefill import StepSize, forward, make_positioned_cache, prefill
    from app.engine.model.speculation import expected

    ids = np.random.default_rng(0).integers(3, vocabulary, length).astype(np.int32)
    cache = make_positioned_cache(model)
    prefill(model, cache, ids, None, StepSize(STEP), lambda done: None)
    seconds: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(REPEATS + 1):
        for size in SIZES:
            undo = step_undo(cache)
            assert undo is not None
            started = time.perf_counter()
            mx.eval(mx.argmax(forward(model, cache, ids[:size]), axis=-1))
            seconds[size].append(time.perf_counter() - started)
            undo(size)
    medians = {size: float(np.median(times[1:])) for size, times in seconds.items()}
    costs = {size: medians[size] / medians[1] for size in SIZES}
    best = {
        share: max((1 + expected(share, size - 1)) / costs[size] for size in SIZES)
        for share in SHARES
    }
    gains = {f"gain_{share:g}": gain for share, gain in best.items()}
    relative = {f"cost_{size}": costs[size] for size in SIZES[1:]}
    return relative | gains | {"a_second": 1 / medians[1]}


def _forced(model: Any, what: str, length: int, tokens: int, gate: Any, runs: Iterator[int]) -> Run:
    """Tokens per second of a text that the model is made to write, with and without proposals. Its
    tokens, like the prompt's, are words and signs of the sample text."""
    from app.engine.cache.prefill import StepSize, make_positioned_cache, prefill
    from app.engine.cache.prefix_cache import PrefixCache
    from app.engine.model.token_stream import CopyIndex, Speculation, TokenStream
    from app.engine.turn.decode import only

    words, tokens = _words(), min(tokens, length // 2)
    written, prompt = words[:tokens], np.resize(words[tokens:], length)
    if what != "free text":
        written = prompt[length // 2 : length // 2 + tokens].copy()
        prompt[-1] = prompt[length // 2 - 1]
    if what == "editing":
        written[EDITED - 1 :: EDITED] += 1

    run = next(runs)
    rates, streams, ids = {}, {}, {}
    for fast in (False, True) if run % 2 else (True, False):
        cache = make_positioned_cache(model)
        prefill(model, cache, prompt[:-1], None, StepSize(STEP), lambda done: None)
        index = CopyIndex(prompt) if fast else None
        prefix = PrefixCache(partial(list, cache))
        stream = TokenStream(
            model, prefix, Speculation(gate, index), None, [only(written.tolist())]
        )
        found = [(token, time.perf_counter()) for token in stream.tokens(int(prompt[-1]), tokens)]
        rates[fast] = (tokens - 1) / (found[-1][1] - found[0][1])
        streams[fast], ids[fast] = stream, [token for token, _ in found]
    proposed, accepted = streams[True].proposed, streams[True].accepted
    return {
        "plain": rates[False],
        "fast": rates[True],
        "faster": rates[True] / rates[False],
        "proposed": proposed,
        "accepted": accepted / proposed if proposed else None,
        "run": accepted / max(streams[True].verified_steps, 1),
        "same": float(ids[False] == ids[True]),
    }


def _words() -> NDArray[np.int32]:
    """The words and signs of the sample text as token ids below `VOCABULARY`."""
    words = re.findall(r"\w+|[^\w\s]", sample().text)
    ranks = {word: rank for rank, (word, _) in enumerate(Counter(words).most_common(VOCABULARY))}
    return np.array([ranks.get(word, 0) for word in words], np.int32)


def _both(
    session: EngineSession,
    questions: Sequence[Question],
    tokens: int,
    sparse: bool,
    runs: Iterator[int],
) -> Run:
    """Compare answers with and without proposals, in alternating order. Times start at the first
    token."""
    run = next(runs)
    found = {}
    for speculate in (False, True) if run % 2 else (True, False):
        sampling = Sampling(max_tokens=tokens, speculate=speculate)
        found[speculate] = [_answer(session, question, sampling, sparse) for question in questions]
    plain, fast = found[False], found[True]
    proposed = sum(_statistics(a).proposed_tokens for a in fast)
    accepted = sum(_statistics(a).accepted_tokens for a in fast)
    return {
        "length": _statistics(fast[0]).prompt_tokens,
        "plain": _rate(plain),
        "fast": _rate(fast),
        "faster": _rate(fast) / _rate(plain),
        "proposed": proposed,
        "accepted": accepted / proposed if proposed else None,
        "run": accepted / max(sum(_statistics(a).verified_steps for a in fast), 1),
        "same": float([a.generated_ids for a in plain] == [a.generated_ids for a in fast]),
    }


def _answer(
    session: EngineSession, question: Question, sampling: Sampling, sparse: bool
) -> Finished:
    """Answer a question; everything is cached after the first time."""
    document, text = question
    message = Message(Role.USER, text, (document,))
    mode = Mode.SPARSE if sparse else Mode.FULL
    *_, finished = session.run(
        Ask((message,), mode, DEFAULT_KEEP_RATIO, sampling, conversation=text)
    )
    assert isinstance(finished, Finished)
    return finished


def _statistics(answer: Finished) -> Statistics:
    assert answer.statistics is not None
    return answer.statistics


def _rate(answers: Sequence[Finished]) -> float:
    """Tokens per second after the first token of each answer."""
    tokens = sum(len(answer.generated_ids) - 1 for answer in answers)
    return tokens / sum(_statistics(answer).decode_seconds for answer in answers)


def about(result: Result) -> str:
    return (
        "*Steps*: what a step of 2 to 16 tokens costs, in steps of one token, on random weights;"
        " and how many times faster answers can then be by the share of proposed tokens that are"
        " right. *Quoting, editing, free text* on random weights: the model is made to write a part"
        " of its prompt, a part with changes, or another text. *Answers*: tokens a second one at a"
        " time, and with copies, and what a draft with the target's tokenizer would write, verified"
        " several at a time; how much of what was proposed was right."
    )


def goals(result: Result) -> Iterator[Goal]:
    for row in result.rows:
        if row["what"] == "steps":
            continue
        faster, minimum = row.spread("faster"), MIN_SPEEDUP
        if row["what"] == "quoting":
            minimum = MIN_EMBEDDED_SPEEDUP if row["model"] == EMBEDDED else MIN_QUOTING_SPEEDUP
        goal = f"{row['model']}, {row['what']}: at least {minimum:g} times as fast"
        yield Goal(goal, faster.text(), faster.median >= minimum)
        share = row.median("same")
        yield Goal(f"{row['model']}, {row['what']}: the same answer", f"{share:.0%}", share == 1)


BENCH = Bench(
    "copying",
    "speed of answers that copy",
    "Answers that are verified several tokens at a time",
    measure,
    about,
    columns(
        Column("model", "model"),
        Column("prompt", "length", ","),
        Column("", "what"),
        *(Column(f"step of {size}", f"cost_{size}") for size in SIZES[1:]),
        Column("gain at 50 %", "gain_0.5"),
        Column("at 90 %", "gain_0.9"),
        Column("plain, tokens/s", "plain", ".1f"),
        Column("several at once", "fast", ".1f"),
        Column("faster", "faster", spread=True),
        Column("right", "accepted", ".0%"),
        Column("right a step", "run", ".1f"),
    ),
    goals,
    report_args="--runs 3",
    quick_args="--shape quick --length 256 --tokens 8 --runs 1",
    flags={"target": None, "tokens": "128", "shape": "small,windowed", "length": "4k", "runs": "5"},
)
