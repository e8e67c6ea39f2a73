"""Multi-token prediction (MTP): a model's own head that drafts the tokens after the next one.

Qwen3-Next, Qwen3.5 and later come with one more decoder layer, which mlx-lm does not load. From the
target's last hidden state and the embedding of the token chosen there, it predicts the token after
that one, with the target's output layer. Its result also serves as the next hidden state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx.utils import tree_flatten
from mlx_lm.generate import generation_stream
from mlx_lm.models.base import create_attention_mask
from mlx_lm.utils import _get_classes
from numpy.typing import NDArray

from app.engine.backend import memory, mlx_patches
from app.engine.cache.caches import WindowedCache
from app.engine.cache.positions import Positions
from app.estimate.memory import MTP_MODELS, MTP_WINDOW

CATCH_UP = 32
"""The head reads at most this many of the last tokens that were written without it."""
RAW_BELOW = 0.6
"""Mean of the layer's norm weights below which 1 must be added to all norm weights of the head.
Qwen's checkpoints store them around zero (published means are 0.03 to 0.39), and MLX's conversions
around 1 (0.87 to 1.21), but some conversions left those of the head as they were."""
_LAYER_NORMS = ("layers.0.input_layernorm.weight", "layers.0.post_attention_layernorm.weight")
_QUANTISED = (".scales", ".biases")

Weights = dict[str, mx.array]
_log = logging.getLogger(__name__)


class MTPHead(Module):
    """The head, with the names of Qwen's checkpoints; `layer_class` is mlx-lm's decoder layer."""

    def __init__(self, args: Any, layer_class: Callable[[Any, int], Module]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        size, eps = args.hidden_size, args.rms_norm_eps
        self.pre_fc_norm_embedding = RMSNorm(size, eps)
        self.pre_fc_norm_hidden = RMSNorm(size, eps)
        self.fc = Linear(2 * size, size, bias=False)
        # The index of a layer with full attention.
        self.layers = [layer_class(args, args.full_attention_interval - 1)]
        self.norm = RMSNorm(size, eps)

    def __call__(self, embeddings: mx.array, hidden: mx.array, cache: Any) -> mx.array:
        """Hidden states (1, n, size) after the tokens with these embeddings (1, n, size); `hidden`
        (1, n, size) are those before."""
        normed = [self.pre_fc_norm_embedding(embeddings), self.pre_fc_norm_hidden(hidden)]
        joined = self.fc(mx.concatenate(normed, axis=-1))
        mask = create_attention_mask(joined, cache)
        result: mx.array = self.norm(self.layers[0](joined, mask, cache))
        return result


def head_of(model: Any) -> MTPHead | None:
    """The head that was loaded with `model`, or None."""
    return model.get("mtp") if isinstance(model, Module) else None


# -------------------------------------------------------------------------------- loading


def model_classes(config: dict[str, Any]) -> tuple[Callable[[Any], Any], Any]:
    """For mlx-lm's `load_model`: how to build the model of a configuration, and the class of its
    arguments. If the weights have an MTP head, the model gets it as its module `mtp`."""
    model_class, args_class = _get_classes(config)
    if config.get("model_type") not in MTP_MODELS:
        return model_class, args_class

    def build(args: Any) -> Any:
        model = model_class(args)
        model.sanitize = partial(_sanitize, model, model.sanitize)
        return model

    return build, args_class


def _sanitize(model: Any, sanitize: Callable[[Weights], Weights], weights: Weights) -> Weights:
    """Convert a checkpoint's weights to the model's, as mlx-lm's `sanitize` does, which must not
    see the head's: it drops them, or fails to."""
    del model.sanitize
    is_raw = any("conv1d.weight" in name and w.shape[-1] != 1 for name, w in weights.items())
    names = {name: own for name in weights if (own := _own_name(name)) is not None}
    converted = sanitize({name: w for name, w in weights.items() if name not in names})
    if not names:
        return converted
    head = MTPHead(_text_model(model).args, type(model.layers[0]))
    found = _stack_experts({own: weights[name] for name, own in names.items()})
    if not _fits(head, found):
        _log.info("The checkpoint's MTP head has other weights than expected and is not used")
        return converted
    model.mtp = head
    return converted | {f"mtp.{name}": w for name, w in _shift_norms(found, is_raw).items()}


def _own_name(name: str) -> str | None:
    """The name of one of the head's weights within the head, or None."""
    parts = name.split(".")
    return ".".join(parts[parts.index("mtp") + 1 :]) if "mtp" in parts[:3] else None


def _text_model(model: Any) -> Any:
    return getattr(model, "language_model", model)


def _stack_experts(weights: Weights) -> Weights:
    """Put experts into one array for each projection, as mlx-lm stores them. Checkpoints have one
    array for each expert, or gate and up joined."""
    stacked = dict(weights)
    experts, mlx_name = "layers.0.mlp.experts.", "layers.0.mlp.switch_mlp.{}.weight"
    if f"{experts}gate_up_proj" in stacked:
        gate, up = mx.split(stacked.pop(f"{experts}gate_up_proj"), 2, axis=-2)
        down = stacked.pop(f"{experts}down_proj")
        for name, joined in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
            stacked[mlx_name.format(name)] = joined
    for name in ("gate_proj", "up_proj", "down_proj"):
        each: list[mx.array] = []
        while f"{experts}{len(each)}.{name}.weight" in stacked:
            each.append(stacked.pop(f"{experts}{len(each)}.{name}.weight"))
        if each:
            stacked[mlx_name.format(name)] = mx.stack(each)
    return stacked


def _fits(head: MTPHead, weights: Weights) -> bool:
    """Whether these are the head's weights, quantised or not."""
    flat: list[tuple[str, mx.array]] = tree_flatten(head.parameters())  # type: ignore[assignment, no-untyped-call]
    expected = dict(flat)
    if {name for name in weights if not name.endswith(_QUANTISED)} != set(expected):
        return False
    for name, array in expected.items():
        packed = f"{name.removesuffix('.weight')}.scales" in weights
        dimensions = slice(-1 if packed else None)
        if weights[name].shape[dimensions] != array.shape[dimensions]:
            return False
    return True


def _shift_norms(weights: Weights, is_raw: bool) -> Weights:
    """Add 1 to norm weights that are stored around zero: those of a raw checkpoint (`is_raw`), and
    those of a head that was added to a converted model as it was."""
    if not is_raw:
        layer_norms = mx.concatenate([weights[name] for name in _LAYER_NORMS])
        is_raw = float(layer_norms.astype(mx.float32).mean()) < RAW_BELOW
    if not is_raw:
        return weights
    return {name: w + 1.0 if "norm" in name else w for name, w in weights.items()}


# ------------------------------------------------------------------------------ proposing


class MTPProposals:
    """Speculative tokens from the MTP head of a target, for one answer to the `prompt` (M,).

    `forward` computes the target's logits and remembers its hidden states; the head reads the
    answer only when asked for a proposal. It attends to the last `MTP_WINDOW` tokens, as far as it
    has read them: of the prompt only those that were read in this turn.
    """

    def __init__(self, model: Any, head: MTPHead, prompt: NDArray[np.int32]) -> None:
        text = _text_model(model)
        self._model, self._head, self._prompt = model, head, prompt
        self._embed = text.model.embed_tokens
        self._output = self._embed.as_linear if text.args.tie_word_embeddings else text.lm_head
        self._cache = WindowedCache(MTP_WINDOW)
        self._read = 0
        """Number of the answer's tokens that the head has read or skipped."""
        self._hidden: dict[int, tuple[mx.array, int]] = {}
        """By index in the answer, for its last tokens (-1: the prompt's last): the hidden states
        of a step, (1, n, size), and the token's row in them."""
        self.failed = False

    @property
    def cost_guess(self) -> float:
        """Estimated cost of a token, in plain steps: the head's layer and the output layer."""
        return 2 / len(self._model.layers)

    def observe(self, positions: Positions) -> Callable[[mx.array], None] | None:
        """A function that reads the hidden states (1, n, size) of a prefill step of the target with
        the prompt's tokens at these `positions` (n,); None if the head will not attend to them."""
        first = len(self._prompt) - MTP_WINDOW
        if self.failed or int(positions[-1]) < first:
            return None
        rows = int(np.searchsorted(positions, first))
        return lambda hidden: self._read_prompt(positions[rows:], hidden[:, rows:])

    def _read_prompt(self, positions: Positions, hidden: mx.array) -> None:
        """Read the tokens after those at `positions`, which have these hidden states."""
        following = positions + 1
        if self._cache.positions.end > int(following[0]):  # the prompt is read again
            self._cache = WindowedCache(MTP_WINDOW)
        self._cache.set_next_positions(following)
        try:
            with mlx_patches.explicit_positions(mx.array(following)):
                embeddings = self._embed(mx.array(self._prompt[following])[None])
                self._head(embeddings, hidden, self._cache)
            mx.eval(self._cache.state)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """The target continues without the head, for example after it ran out of memory."""
        memory.reraise_gpu_lost(error)
        self._cache, self.failed = WindowedCache(MTP_WINDOW), True

    def forward(self, ids: mx.array, cache: Any, first: int, skipped: int) -> mx.array:
        """Feed token ids (n,) to the target. Returns the logits (n - skipped, vocabulary) of all
        but the first `skipped`. The first of these is at index `first` of the answer."""
        hidden = self._model.model(ids[None], cache=cache)[:, skipped:]
        for row in range(hidden.shape[1]):
            self._hidden[first + row] = (hidden, row)
            self._hidden.pop(first + row - CATCH_UP, None)
        logits: mx.array = self._output(hidden)[0]
        return logits

    def after(self, answer: Sequence[int], count: int) -> tuple[int, ...]:
        """`count` greedy tokens after the `answer` so far, whose last token was not fed yet; none
        once the head has `failed`."""
        try:
            return self._draft(answer, count)
        except Exception as error:
            self._fail(error)
            return ()

    def _draft(self, answer: Sequence[int], count: int) -> tuple[int, ...]:
        # A token is read together with the hidden state of the one before it.
        first = max(self._read, min(self._hidden) + 1)
        states = [self._hidden[index] for index in range(first - 1, len(answer) - 1)]
        drafted: list[mx.array] = []
        self._cache.set_next_position(len(self._prompt) + first)
        with mx.stream(generation_stream):
            hidden = mx.concatenate([rows[:, row : row + 1] for rows, row in states], axis=1)
            following = mx.array(list(answer[first:]))
            for _ in range(count):
                hidden = self._head(self._embed(following[None]), hidden, self._cache)[:, -1:]
                following = mx.argmax(self._output(hidden)[0], axis=-1)
                drafted.append(following)
            ids: list[int] = mx.concatenate(drafted).tolist()  # type: ignore[assignment]
        self._cache.trim(count - 1)
        self._read = len(answer)
        return tuple(ids)
