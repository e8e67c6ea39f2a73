"""Writes down what every token that a target reads or writes could see, and computes it again.

A row is what the caches store of one token. It is recognised by its bytes, wherever the engine
copies it: into another conversation, onto the disk and back. So nothing here depends on how caches
are shared, saved, cut or grown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from numpy.typing import NDArray

from app.engine.backend import mlx_patches
from app.engine.cache.caches import PositionedCache, QuantisedCache, WindowedCache, flatten
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.memory.conversation_cache import ConversationCache

Layers = tuple[NDArray[np.float32], ...]
"""Of each layer, keys and values of rows, (rows, heads, widths of both)."""


@dataclass(slots=True)
class Row:
    """A token as it was read: at `position`, seeing the rows `seen`, by number, and itself."""

    token: int
    position: int
    seen: NDArray[np.int64]
    logits: NDArray[np.float32] | None
    """After it, (vocabulary,), where they were computed."""


class Witness:
    """Of one target model. `problems` says what went wrong, in order."""

    def __init__(self) -> None:
        self.model: Any = None
        self.layers_like: list[Any] = []
        """A cache as the engine makes it, for the kinds of its layers."""
        self.clear()

    def clear(self) -> None:
        self.rows: list[Row] = []
        self.layers: list[Layers] = []
        """Of each row."""
        self.problems: list[str] = []
        self._numbers: dict[bytes, int] = {}
        self._last: dict[int, int] = {}
        """By position, the row that the running turn has computed last."""

    @contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Inside, what `model` is called with is written down. It may be loaded again later: what
        earlier loads wrote stays known."""
        self.model, witness = model, self
        kind: Any = type(model)
        original = kind.__call__

        def call(model: Any, inputs: Any, cache: Any = None, **arguments: Any) -> Any:
            if model is not witness.model or cache is None:
                return original(model, inputs, cache=cache, **arguments)
            step = _Step(witness, inputs, cache)
            logits = None
            try:
                logits = original(model, inputs, cache=cache, **arguments)
                return logits
            finally:  # an early exit is one of MLX's patches, not an error
                step.end(logits)

        kind.__call__ = call
        try:
            yield
        finally:
            kind.__call__ = original

    def numbers(self, layer: PositionedCache) -> NDArray[np.int64]:
        """Of the rows that a layer stores, in its order, (stored,); -1 where nobody wrote one."""
        rows = _stored(layer, packed=True)[0]
        flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
        known = (self._numbers.get(row.tobytes(), -1) for row in flat)
        return np.fromiter(known, np.int64, len(rows))

    def add(self, row: Row, layers: Layers, key: bytes) -> None:
        self._last[row.position] = self._numbers[key] = len(self.rows)
        self.rows.append(row)
        self.layers.append(layers)

    # ------------------------------------------------------------------ after a turn

    def check_answer(self, start: int, ids: tuple[int, ...]) -> None:
        """A greedy answer whose first token is at position `start`: each is the likeliest."""
        for position, token in enumerate(ids, start):
            number = self._last.get(position - 1)
            logits = None if number is None else self.rows[number].logits
            if logits is None:
                self.problems.append(f"nothing was computed before position {position}")
            elif logits[token] < logits.max() - 1e-5:
                self.problems.append(f"token {token} at {position} is not the likeliest")
        self._last.clear()

    def check_caches(self, caches: Mapping[str, ConversationCache]) -> None:
        """Every row that is stored is of the token for which it stands, and saw only tokens of its
        own conversation."""
        for name, cache in caches.items():
            if problem := self._problem_of(cache.target):
                self.problems.append(f"{name}: {problem}")

    def _problem_of(self, prefix: PrefixCache) -> str | None:
        layer = _full_layer(prefix.cache)
        if layer is None or layer.inner.keys is None:
            return None
        numbers, positions = self.numbers(layer), layer.positions.array()
        positions = positions[~prefix.absent[positions]]  # another cache holds those rows
        if (numbers < 0).any():
            return f"rows from nowhere at {positions[numbers < 0].tolist()[:9]}"
        held = np.flatnonzero(prefix.cached & ~prefix.absent)
        if not np.array_equal(held, np.sort(positions)):
            more, fewer = np.setdiff1d(positions, held), np.setdiff1d(held, positions)
            return f"has rows at {more.tolist()[:9]}, and none at {fewer.tolist()[:9]}"
        for number, position in zip(numbers, positions, strict=True):
            row = self.rows[number]
            if (row.token, row.position) != (int(prefix.ids[position]), int(position)):
                return f"the row at {position} is of token {row.token} at {row.position}"
            seen = [(self.rows[n].token, self.rows[n].position) for n in row.seen]
            wrong = [p for token, p in seen if int(prefix.ids[p]) != token]
            if wrong:
                return f"the row at {position} saw other tokens at {wrong[:9]}"
        return None

    # ------------------------------------------------------------------ computed again

    def error(self) -> tuple[float, float]:
        """How far rows and logits are from those of one pass of plain attention over all rows, in
        which each sees what it saw: the greatest differences."""
        count = len(self.rows)
        seen = np.eye(count, dtype=bool)
        for number, row in enumerate(self.rows):
            seen[number, row.seen] = True
        positions = np.array([row.position for row in self.rows], np.int32)
        ids = mx.array([row.token for row in self.rows])
        kinds = _layer_kinds(self.layers_like)
        with _plain_attention(seen, positions, kinds) as computed:
            with mlx_patches.explicit_positions(mx.array(positions)):
                logits = self.model(ids[None])[0]
            mx.eval(logits, computed)
        rows = 0.0
        for layer, (keys, values) in enumerate(computed):
            for part, found in enumerate((keys, values)):
                ours = np.stack([each[2 * layer + part] for each in self.layers])
                rows = max(rows, float(np.abs(ours - _rows_first(found)).max()))
        known = [n for n, row in enumerate(self.rows) if row.logits is not None]
        ours = np.stack([self.rows[n].logits for n in known])  # type: ignore[misc]
        return rows, float(np.abs(ours - np.array(logits.astype(mx.float32))[known]).max())


class _Step:
    """One call of the model."""

    def __init__(self, witness: Witness, inputs: Any, cache: Any) -> None:
        self._witness, self._layers = witness, flatten(cache)
        witness.layers_like = self._layers
        self._ids = np.array(inputs).reshape(-1)
        layer = _full_layer(cache)
        assert layer is not None, "the target reads in full only"
        self._full, count = layer, len(self._ids)
        self._stored = witness.numbers(layer) if layer.size() else np.zeros(0, np.int64)
        self._at = layer.positions.array() if layer.size() else np.zeros(0, np.int32)
        self._next = layer.positions_of_next(count)
        if (self._stored < 0).any():
            witness.problems.append("a step sees rows from nowhere")

    def end(self, logits: Any) -> None:
        """Write down the new rows; those that were not stored, after an error, are omitted."""
        count, witness = len(self._ids), self._witness
        if self._full.size() != len(self._stored) + count:
            return
        keys = _stored(self._full, packed=True)[0][-count:]
        of_layers = [part[-count:] for layer in self._layers for part in _stored(layer)]
        found = None if logits is None else np.array(logits[0].astype(mx.float32))
        first = len(witness.rows)
        for index, (token, position) in enumerate(zip(self._ids, self._next, strict=True)):
            before = self._stored[(self._at <= position) & (self._stored >= 0)]
            own = first + np.flatnonzero(self._next[:index] <= position)
            row = Row(int(token), int(position), np.append(before, own), None)
            if found is not None:
                row.logits = found[index]
            key = np.ascontiguousarray(keys[index]).tobytes()
            witness.add(row, tuple(part[index] for part in of_layers), key)


def _full_layer(cache: Any) -> PositionedCache | None:
    """The last layer that stores every row: what it stores depends on everything before."""
    layers = [c for c in flatten(cache) if isinstance(c, PositionedCache)]
    return next((c for c in reversed(layers) if not isinstance(c, WindowedCache)), None)


def _rows_first(array: mx.array) -> NDArray[Any]:
    return np.array(array.astype(mx.float32))[0].swapaxes(0, 1)


def _stored(layer: PositionedCache, packed: bool = False) -> list[NDArray[Any]]:
    """Keys and values that it stores, each (stored, heads, width); `packed` as they are."""
    parts = []
    for array in (layer.inner.keys, layer.inner.values):
        if isinstance(layer, QuantisedCache):
            array = tree_map(lambda a: a[..., : layer.size(), :], array)
            if packed:
                parts.append(np.array(array[0])[0].swapaxes(0, 1))
                continue
            array = mx.dequantize(*array, layer.inner.group_size, layer.inner.bits)
        parts.append(_rows_first(array[..., : layer.size(), :]))
    return parts


def _layer_kinds(layers: list[Any]) -> list[tuple[int | None, tuple[int, int] | None]]:
    """Of each: its window, and group size and bits."""
    return [
        (
            layer.window if isinstance(layer, WindowedCache) else None,
            (layer.inner.group_size, layer.inner.bits)
            if isinstance(layer, QuantisedCache)
            else None,
        )
        for layer in layers
    ]


@contextmanager
def _plain_attention(
    seen: NDArray[np.bool_],
    positions: NDArray[np.int32],
    kinds: list[tuple[int | None, tuple[int, int] | None]],
) -> Iterator[list[tuple[mx.array, mx.array]]]:
    """Inside, each layer attends from query i to key j where `seen[i, j]` and its window reaches.
    Gives the keys and values of each."""
    computed: list[tuple[mx.array, mx.array]] = []
    attention = mx.fast.scaled_dot_product_attention
    distance = positions[:, None] - positions[None]

    def plain(q: mx.array, k: mx.array, v: mx.array, *, mask: Any = None, **kw: Any) -> mx.array:
        window, bits = kinds[len(computed)]
        if bits is not None:
            k, v = (mx.dequantize(*mx.quantize(each, *bits), *bits) for each in (k, v))
        computed.append((k, v))
        visible = seen if window is None else seen & (distance < window)
        return attention(q, k, v, mask=mx.array(visible), **kw)

    mx.fast.scaled_dot_product_attention = plain
    try:
        yield computed
    finally:
        mx.fast.scaled_dot_product_attention = attention
