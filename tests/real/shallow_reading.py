"""Would it help to read skipped tokens with the first layers of the target only?

After SPEED (arXiv 2605.06105): every token goes through the first layers, the selected ones through
all of them. `python -m tests.real.shallow_reading` measures it with SmolLM2 on the real documents,
and writes benchmarks/results/real-models/shallow-reading.md. It is not part of the engine:
benchmarks/results/real-models.md says why.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.backend.blas import load_openblas

load_openblas()

import mlx.core as mx  # noqa: E402
from mlx_lm.models.base import create_attention_mask  # noqa: E402
from mlx_lm.models.cache import KVCache  # noqa: E402

from app.engine.backend import mlx_patches  # noqa: E402
from app.engine.cache.prefill import make_stock_cache  # noqa: E402
from app.engine.cache.prefix_cache import PrefixCache  # noqa: E402
from app.engine.model.loader import ModelPair  # noqa: E402
from app.engine.pair_loader import load_pair  # noqa: E402
from app.engine.scorers.attention import score_by_attention  # noqa: E402
from app.engine.scorers.selection import select  # noqa: E402
from app.protocol.commands import Load  # noqa: E402
from app.protocol.prompt import Document  # noqa: E402
from app.util.tables import TextTable  # noqa: E402
from benchmarks.quality.real_documents import Corpus  # noqa: E402
from benchmarks.quality.suites import REAL, REWORDED, Item  # noqa: E402
from benchmarks.quality.tokens import FolderTokens  # noqa: E402
from tests.real.documents import fetch_documents  # noqa: E402
from tests.real.packages import ROOT, SMOLLM2, fetch  # noqa: E402

REPORT = ROOT / "benchmarks" / "results" / "real-models" / "shallow-reading.md"
LENGTH, ITEMS, KEEPS, STEP = 1024, 8, (0.1, 0.2), 256
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Of the layers, how many read everything."""

Ids = NDArray[np.int32]
Key = tuple[str, float, float, bool]
"""Suite, keep, share of shallow layers, and whether the first token is selected."""


class Reading:
    """A target's cache of a prompt that was read in this way, except for its last token."""

    def __init__(self, model: Any, ids: Ids, selected: NDArray[np.bool_], shallow: int) -> None:
        self._model, self._ids = model, ids
        self._cache = [KVCache() for _ in model.layers]
        for start in range(0, len(ids) - 1, STEP):
            rows = np.arange(start, min(start + STEP, len(ids) - 1), dtype=np.int32)
            deep = rows[selected[rows]]
            fed = rows if shallow else deep
            if not len(fed):
                continue
            x = model.model.embed_tokens(mx.array(ids[fed])[None])
            x = self._through(slice(shallow), x, fed)
            if len(deep):
                self._through(
                    slice(shallow, None), x[:, mx.array(np.isin(fed, deep).nonzero()[0])], deep
                )
            mx.eval([cache.state for cache in self._cache if cache.keys is not None])

    def _through(self, layers: slice, x: mx.array, positions: Ids) -> mx.array:
        with mlx_patches.explicit_positions(mx.array(positions)), mlx_patches.blocked_attention(64):
            for layer, cache in zip(self._model.layers[layers], self._cache[layers], strict=True):
                x = layer(x, create_attention_mask(x, cache), cache)
        return x

    def loss(self, answer: Ids) -> float:
        """Of this continuation, nats a token."""
        fed = np.concatenate([self._ids[-1:], answer[:-1]])
        positions = np.arange(len(self._ids) - 1, len(self._ids) - 1 + len(fed), dtype=np.int32)
        x = self._through(
            slice(None), self._model.model.embed_tokens(mx.array(fed)[None]), positions
        )
        logits = self._model.model.embed_tokens.as_linear(self._model.model.norm(x))[0]
        logits -= mx.logsumexp(logits, axis=-1, keepdims=True)
        return -float(mx.take_along_axis(logits, mx.array(answer)[:, None], axis=-1).mean())


def changes(pair: ModelPair, item: Item) -> Iterator[tuple[Key, float]]:
    """How much less likely the right answer is than after a full reading, nats a token."""
    target = pair.target
    prompt = pair.prompts.build(item.messages)
    answer = np.array(target.tokenizer.encode(item.answer, add_special_tokens=False), np.int32)
    prefix = PrefixCache(lambda: make_stock_cache(target.model))
    nothing: Any = lambda *_: None  # noqa: E731
    importance = score_by_attention(
        target.model,
        prefix,
        prompt.ids,
        prompt.question_start,
        target.tokenizer.eos_token_ids,
        target.step,
        nothing,
        nothing,
    )
    everything = np.ones(len(prompt.ids), bool)
    dense = Reading(target.model, prompt.ids, everything, 0).loss(answer)
    for keep in KEEPS:
        selection = select(importance, prompt.pinned, keep)
        for anchored in (True, False):
            selected = np.zeros(len(prompt.ids), bool)
            selected[selection.positions] = True
            selected[0] = anchored
            for share in SHARES:
                shallow = round(share * len(target.model.layers))
                read = Reading(target.model, prompt.ids, selected, shallow)
                yield (item.suite, keep, share, anchored), read.loss(answer) - dense


def report(found: dict[Key, list[float]]) -> str:
    head = ["suite", "keep", "first token"]
    head += [f"{share:.0%} of the layers" if share else "none" for share in SHARES]
    body = []
    for suite, keep, anchored in dict.fromkeys((s, k, a) for s, k, _, a in found):
        row = [suite, f"{keep:g}", "selected" if anchored else "not selected"]
        cells = (found[suite, keep, share, anchored] for share in SHARES)
        body.append(row + [_mean(values) for values in cells])
    return TEXT.format(table=TextTable(head, body, texts=3).markdown(), length=LENGTH, items=ITEMS)


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):+.2f} ± {1.96 * stdev(values) / math.sqrt(len(values)):.2f}"


TEXT = """# Reading skipped tokens with the first layers only

```sh
python -m tests.real.shallow_reading
```

SmolLM2 135M, {length:,} tokens, {items} questions a suite, selected by its own attention. By how
many nats a token the right answer is less likely than after a full reading (with its 95 %
interval), if the tokens that are not selected go through this share of the layers:

{table}
"""


def main() -> None:
    mlx_patches.install()
    folder = str(fetch(SMOLLM2))
    pair = load_pair(Load(folder, folder))
    files = [Document(path.name, path.read_text("utf-8")) for path in fetch_documents().iterdir()]
    corpus = Corpus(sorted(files, key=lambda file: file.name), FolderTokens(Path(folder)))
    found: dict[Key, list[float]] = defaultdict(list)
    for index in range(ITEMS):
        for suite in (REAL, REAL + REWORDED):
            for key, change in changes(pair, corpus.item(suite, index, LENGTH, 0)):
                found[key].append(change)
        print(f"{index + 1} of {ITEMS}", flush=True)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(report(found), encoding="utf-8")


if __name__ == "__main__":
    main()
