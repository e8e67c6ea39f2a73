"""Loads models from their folders; the loaded model and model pair."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_config, load_model, load_tokenizer
from transformers.utils import logging as transformers_logging

from app.engine.backend import memory, mlx_patches
from app.engine.backend.device import Backend
from app.engine.cache.caches import Cache
from app.engine.cache.kv_quantisation import (
    NotQuantisable,
    Quantisation,
    TooFewBits,
    find_group_size,
    find_quantisation,
    quantise_cache,
)
from app.engine.cache.prefill import StepSize, forward, make_positioned_cache, make_stock_cache
from app.engine.cache.prefix_cache import PrefixCache, find_mismatch
from app.engine.cache.sizes import NO_TRANSIENT, CacheSize, Transient, attention_cost_ratio
from app.engine.cache.snapshot import Snapshots
from app.engine.model.embeddings import EmbeddingSpace, NoEmbeddings
from app.engine.model.findings import (
    Findings,
    Speed,
    compute_dtype,
    findings_record,
    parse_findings,
    plain_findings,
    probe,
    weight_arrays,
)
from app.engine.model.mtp import model_classes
from app.engine.model.prompt import PairPrompts, Prompts
from app.engine.model.rotary import ROTARY_FORMAT, correct_rotary
from app.engine.model.speculation import SLOPE, Gate
from app.engine.model.text_encoder import ENCODER_OPERATIONS, TextEncoder
from app.engine.progress import LoadError, LoadStopped
from app.engine.recovery import Recovery
from app.protocol.events import ModelInfo
from app.protocol.generation_config import read_generation_config
from app.protocol.prompt import TemplateRule
from app.protocol.reasons import FailureKind, Reason
from app.sandbox.process import TextError, TextProcess
from app.sandbox.shapes import MissingValues, build_model, ignored_window
from app.util.formatting import one_line
from app.util.model_config import for_mlx_lm, short_factors_below, text_part
from app.util.regular_files import open_file, read_file
from app.util.weight_files import weight_files

Stopped = Callable[[], bool]
"""Whether to stop loading, because another pair was requested."""

WEIGHT_BATCH_BYTES = 256_000_000
"""Bytes of weights read between two checks; about 0.2 s from a fast disk."""
_SAMPLES, _SAMPLE_BYTES = 16, 1 << 14
"""Samples of each file of weights in a fingerprint; the first is of its header."""


class CacheMaker:
    """Makes a model's empty caches, also while the model is unloaded."""

    def __init__(self, model: Any, quantisation: Quantisation | None = None) -> None:
        stock = make_stock_cache(model)
        self._stock = stock if quantisation is None else quantise_cache(stock, quantisation)

    def make_cache(self) -> Cache:
        return copy.deepcopy(self._stock)


@dataclass(eq=False, slots=True)
class LoadedModel:
    """A draft, or a target in this process. `ShardedTarget` (an extra) is a target in
    several processes."""

    model: Any
    """The mlx-lm model; None while unloaded."""
    tokenizer: Any
    info: ModelInfo
    cache_size: CacheSize
    step: StepSize
    """Prefill step size, adapted from turn to turn."""
    fingerprint: str = ""
    """Identifies everything in the folder that a cache depends on."""
    folder: Path | None = None
    transient: Transient = NO_TRANSIENT
    quantisation: Quantisation | None = None
    vocab_size: int = 0
    """0 if its config does not say."""
    attention_cost_ratio: float = 0.0
    """See `sizes.attention_cost_ratio`; 0 if unknown."""
    gate: Gate = field(default_factory=Gate)
    """Decides on speculative tokens, adapted from answer to answer."""
    caches: CacheMaker = field(init=False)
    _space: EmbeddingSpace | None = None
    speed: Speed | None = None
    """Measured while loading; None for a shard."""
    dense_only: Reason | None = None
    """Why it can only be read densely; None if it passed the sparse probe or was not probed."""

    def __post_init__(self) -> None:
        self.caches = CacheMaker(self.model, self.quantisation)
        if self.speed is not None:
            self.gate.slope = max(SLOPE, self.speed.per_token / self.speed.step)

    @property
    def embedding_space(self) -> EmbeddingSpace | None:
        """Computed on first use, while the weights are loaded; None if the input embeddings are
        not found."""
        if self._space is None:
            with suppress(NoEmbeddings):
                self._space = EmbeddingSpace.of(self.model)
        return self._space

    @property
    def is_loaded(self) -> bool:
        return self.model is not None

    def unload(self) -> None:
        """Drop the weights. They are freed once nothing refers to them."""
        if self.folder is not None:
            self.model = None

    def reload(self) -> None:
        """Load the weights again. Raises LoadError, also if the folder has other files now: the
        caches belong to the earlier ones."""
        if self.model is None and self.folder is not None:
            model = _load_weights(self.folder)
            if fingerprint(self.folder) != self.fingerprint.partition("/")[0]:
                raise LoadError(FailureKind.MODEL_CHANGED, {"model": self.info.name})
            self.model = model

    # ----------------------------------- overridden by targets in several processes

    def make_prefix(self, positioned: bool) -> PrefixCache:
        """An empty cache, with `positioned` one that supports gaps. Raises UnsupportedCache."""
        return PrefixCache(self.layer_maker(positioned))

    def layer_maker(self, positioned: bool) -> Callable[[], Cache]:
        """A function that makes the layers of such a cache."""
        return partial(make_positioned_cache if positioned else make_stock_cache, self.caches)

    def free_memory(self, share: float | None = None) -> float:
        """Bytes available for its caches and steps: as plans may use them, or up to this share of
        the memory ceiling. For a sharded model, on each machine."""
        return memory.free() if share is None else memory.free_within(share)

    def find_mismatch(self, prefix: PrefixCache) -> str | None:
        """See `prefix_cache.find_mismatch`."""
        return find_mismatch(prefix)

    def make_snapshots(self, folder: Path, budget: int, identity: dict[str, str]) -> Snapshots:
        return Snapshots(folder, budget, identity)

    def delete_snapshots_elsewhere(self, conversation: str) -> None:
        """Delete a conversation's snapshots in other processes."""

    @property
    def processes(self) -> int:
        """Number of processes that hold its weights."""
        return 1

    @property
    def recovery(self) -> Recovery | None:
        """How to replace it, once one of its processes is lost; None while it works."""
        return None

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Call `on_lost` on any thread once it needs `recovery`; at once if it already does."""

    def close(self) -> None:
        """End its other processes."""


@dataclass(frozen=True, slots=True)
class ModelPair:
    """A target and perhaps a draft. `dense_only`: why the pair can only read densely, or None.
    `only_quotes`: the demo model, which answers with passages of the documents."""

    target: LoadedModel
    draft: LoadedModel | None
    dense_only: Reason | None
    prompts: Prompts
    only_quotes: bool = False
    encoder: TextEncoder | None = None
    """The text encoder that the user chose as the draft; None: the built-in one."""
    reported_rules: set[TemplateRule] = field(default_factory=set)
    """Rules of the chat template that were already reported to the user."""

    @property
    def has_foreign_draft(self) -> bool:
        """Whether the draft has a different tokenizer."""
        return isinstance(self.prompts, PairPrompts)

    @property
    def draft_info(self) -> ModelInfo | None:
        """The draft's or the chosen encoder's."""
        chosen = self.draft or self.encoder
        return None if chosen is None else chosen.info

    @property
    def draft_fingerprint(self) -> str:
        chosen = self.draft or self.encoder
        return "" if chosen is None else chosen.fingerprint

    @property
    def encoder_operations(self) -> float:
        """Operations of the built-in scorer's encoder for each token of a text."""
        return self.encoder.operations_per_token if self.encoder else ENCODER_OPERATIONS

    @property
    def draft_stop_ids(self) -> Iterable[int]:
        """The draft's end-of-text tokens."""
        draft_tokenizer = self.draft.tokenizer if self.draft is not None else None
        ids: Iterable[int] = (draft_tokenizer or self.target.tokenizer).eos_token_ids
        return ids


def load_one(
    folder: str,
    name: str,
    step: int | None,
    kv_bits: int | None = None,
    stopped: Stopped = lambda: False,
    text_process: TextProcess | None = None,
    backend: Backend | None = None,
    shard: Callable[[Any], None] | None = None,
    probes: bool = False,
    remembered: Path | None = None,
) -> LoadedModel:
    """Load a model. `text_process`: loads its tokenizer; None for a draft that shares the target's.
    `shard` removes other machines' weights before any are read; a shard's speed is not measured,
    because all machines must run the same steps. `probes`: test whether it can be read sparsely.
    `remembered`: folder with the findings of earlier loads. Raises LoadError."""
    size = StepSize(step, backend=backend)
    with _load_errors(FailureKind.MODEL_NOT_LOADED, folder):
        path = Path(folder)
        if text_process is not None:
            text_process.open(path)  # tests the tokenizer while the weights are read
        model, config = load_lazily(path, with_head=shard is None)
        if shard is not None:
            shard(model)
        if kv_bits is not None:
            with _kv_errors(name, path, kv_bits):
                find_group_size(model, kv_bits)  # fails before any weight is read
        needed = sum(array.nbytes for array in weight_arrays(model))
        memory.check_fits({"loading": name}, needed)
        identity = fingerprint(path) + (f"/{kv_bits}" if kv_bits else "")
        record = findings_record(remembered, identity, size.backend)
        known = record.read(parse_findings)
        _evaluate_weights(path, model, stopped, check=known is None)
        tokenizer = (
            None if text_process is None else load_tokenizer_of(path, config, text_process, stopped)
        )
        quantisation = None
        if kv_bits is not None:
            with _kv_errors(name, path, kv_bits):
                quantisation = find_quantisation(model, kv_bits)
        info = model_info(name, model, config, path)
        caches = CacheMaker(model, quantisation)
        findings = known or _measure(path, model, caches, size.backend if shard is None else None)
        if probes and not findings.probed:
            dense_only = probe(model, info.context_length, caches, size.backend.uses_tf32)
            findings = replace(findings, probed=True, dense_only=dense_only)
        if findings != known:
            record.write(plain_findings(findings))
        text, element = text_part(config), compute_dtype(model).size
        transient = replace(
            Transient.of(text, element, kv_bits is not None, findings.has_sinks, size.backend),
            packed_attention=quantisation is None or quantisation.packed,
        )
        size.expect(findings.speed.per_token if findings.speed else 0.0, transient.head_dim)
        return LoadedModel(
            model,
            tokenizer,
            info,
            findings.cache_size,
            size,
            identity,
            path,
            transient,
            quantisation,
            int(text.get("vocab_size") or 0),
            attention_cost_ratio(text, info.parameters),
            speed=findings.speed,
            dense_only=findings.dense_only,
        )


def load_encoder(folder: str, name: str) -> TextEncoder:
    """Load a text encoder, if there is memory for its weights and one batch. Raises LoadError and
    NotEnoughMemory."""
    with _load_errors(FailureKind.MODEL_NOT_LOADED, folder):
        path = Path(folder)
        try:
            encoder = TextEncoder(path, name, TextProcess())
        except TextError as error:
            raise ValueError("its tokenizer.json is damaged") from error
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError("one of its files is damaged") from error
        encoder.fingerprint = fingerprint(path)
        return encoder


def load_tokenizer_of(
    path: Path, config: dict[str, Any], texts: TextProcess, stopped: Stopped
) -> Any:
    """Load the tokenizer after it was tested in the sandbox. Raises LoadError."""

    def check() -> None:
        if stopped():
            raise LoadStopped

    transformers_logging.set_verbosity_error()  # it would warn on the terminal
    with _load_errors(FailureKind.TOKENIZER_NOT_LOADED, path):
        texts.finish(check)
        return load_tokenizer(path, {"trust_remote_code": False}, config.get("eos_token_id"))


@contextmanager
def _kv_errors(name: str, path: Path, bits: int) -> Iterator[None]:
    try:
        yield
    except NotQuantisable as error:
        instead = "8 or full" if isinstance(error, TooFewBits) and bits < 8 else "full"
        data = {"model": name, "bits": bits, "error": str(error), "instead": instead}
        raise LoadError(FailureKind.CACHE_NOT_QUANTISABLE, data) from error
    except (RuntimeError, ValueError) as error:
        raise _folder_error(FailureKind.MODEL_CANNOT_RUN, path, error) from error


def weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in weight_files(folder))


def _load_weights(path: Path) -> Any:
    """Load a model again, without tokenizer and checks. Raises LoadError."""
    model, _ = load_lazily(path)
    _evaluate_weights(path, model, lambda: False, check=False)
    return model


def load_lazily(path: Path, with_head: bool = True) -> tuple[Any, dict[str, Any]]:
    """The model with lazy weights, and its config. `with_head`: keep its MTP head, if it has one.
    Raises LoadError."""
    with _load_errors(FailureKind.MODEL_NOT_LOADED, path):
        config = for_mlx_lm(load_config(path))
        with mlx_patches.loading_only(weight_files(path)):
            try:
                model, config = load_model(
                    path, lazy=True, model_config=config, get_model_classes=rotated_classes
                )
            except MissingValues as error:
                data = {"folder": str(path), "keys": ", ".join(error.keys)}
                raise LoadError(FailureKind.CONFIG_INCOMPLETE, data) from error
        if not with_head:
            model.pop("mtp", None)
        return model, config


def rotated_classes(config: dict[str, Any]) -> tuple[Callable[[Any], Any], Any]:
    """For mlx-lm's `load_model`: how to build the model of a configuration with the rotary
    embeddings that it describes, and what makes the arguments for that."""
    model_class, args_class = model_classes(config)

    def build(given: SimpleNamespace) -> Any:
        model = build_model(model_class, args_class, vars(given))
        correct_rotary(model, vars(given))
        return model

    return build, SimpleNamespace(from_dict=lambda given: SimpleNamespace(**given))


@contextmanager
def _load_errors(kind: FailureKind, folder: str | Path) -> Iterator[None]:
    """Convert anything that mlx-lm or transformers raise for a broken folder to a LoadError. It is
    not always an Exception: some mlx-lm modules call `sys.exit` if a package is missing, and
    tokenizers panic."""
    try:
        yield
    except (LoadError, memory.NotEnoughMemory, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise LoadError(FailureKind.PACKAGE_MISSING, {"folder": str(folder)}) from error
    except BaseException as error:
        raise _folder_error(kind, folder, error) from error


def _folder_error(kind: FailureKind, folder: str | Path, error: BaseException) -> LoadError:
    return LoadError(kind, {"folder": str(folder), "error": one_line(error)})


def _evaluate_weights(path: Path, model: Any, stopped: Stopped, check: bool) -> None:
    """Read the weights in batches, so that loading can be stopped in between. With `check`, raise
    LoadError if they contain NaN."""
    evaluate = partial(_check_no_nans, path) if check else mx.eval
    pending: list[mx.array] = []
    try:
        for array in weight_arrays(model):
            pending.append(array)
            if sum(each.nbytes for each in pending) >= WEIGHT_BATCH_BYTES:
                evaluate(pending)
                pending = []
                if stopped():
                    raise LoadStopped
        evaluate(pending)
        # RoPE frequencies are lazy too; evaluating them on another thread would fail.
        mx.eval(model.state)
    except RuntimeError as error:
        if isinstance(error, LoadError):
            raise
        raise _folder_error(FailureKind.MODEL_UNREADABLE, path, error) from error
    if stopped():
        raise LoadStopped


def _check_no_nans(path: Path, arrays: list[mx.array]) -> None:
    """Evaluate weights. Raises LoadError if one of them contains NaN."""
    # The maximum of an array with NaN is NaN; computing it is half the work of isnan.
    largest = [each.max() for each in arrays if mx.issubdtype(each.dtype, mx.floating)]
    mx.eval(arrays, largest)
    if any(math.isnan(float(each)) for each in largest):
        raise _nan_error(path)


def _nan_error(path: Path) -> LoadError:
    return LoadError(FailureKind.WEIGHTS_DAMAGED, {"folder": str(path)})


def fingerprint(path: Path) -> str:
    """A digest of all that caches of a model depend on: its files, the versions of mlx and mlx-lm,
    and `ROTARY_FORMAT`. Weights are identified by name, size, time and samples of their contents,
    because hashing them is slow; other files by their content."""
    digest = hashlib.sha256()
    for package in ("mlx", "mlx-lm"):
        digest.update(f"{package} {metadata.version(package)}\n".encode())
    digest.update(f"{ROTARY_FORMAT}\n".encode())
    for file in sorted(path.iterdir()):
        if file.suffix == ".safetensors":
            status = file.stat()
            digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
            with open_file(file) as opened:
                for part in range(_SAMPLES):
                    opened.seek(status.st_size * part // _SAMPLES)
                    digest.update(opened.read(_SAMPLE_BYTES))
        elif file.suffix in (".json", ".jinja"):
            digest.update(f"{file.name}\n".encode() + read_file(file))
    return digest.hexdigest()


def _measure(path: Path, model: Any, caches: CacheMaker, timed: Backend | None) -> Findings:
    """Run the model to find its cache size, attention sinks and, on a `timed` backend, speed."""
    cache, sinks_seen = make_stock_cache(caches), []
    try:
        with mlx_patches.observed_attention(
            lambda q, k, scale, mask, sinks: sinks_seen.append(sinks)
        ):
            logits = forward(model, cache, np.zeros(1, np.int32))
            mx.eval(logits)
        speed = None if timed is None else Speed.of(model, caches, timed)
    except (RuntimeError, ValueError) as error:
        raise _folder_error(FailureKind.MODEL_CANNOT_RUN, path, error) from error
    if mx.isnan(logits).any().item():
        raise _nan_error(path)
    has_sinks = any(sinks is not None for sinks in sinks_seen)
    return Findings(CacheSize.of(cache), has_sinks, speed)


def model_info(name: str, model: Any, config: dict[str, Any], path: Path) -> ModelInfo:
    arrays = weight_arrays(model)
    text = text_part(config)
    return ModelInfo(
        name=name,
        architecture=str(config.get("model_type", "unknown")),
        parameters=sum(a.size for a in arrays),
        weight_bytes=sum(a.nbytes for a in arrays),
        context_length=next((int(text[key]) for key in _CONTEXT_KEYS if text.get(key)), 0),
        sampling=read_generation_config(path),
        short_factors_below=short_factors_below(config),
        ignored_window=ignored_window(model, config),
    )


_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
