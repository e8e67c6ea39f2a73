"""All settings: a dataclass for each group, with the type, the limits and the text of each setting.

The file, its comments, the settings screen and `specchat settings` are all generated from these by
`Setting`. The type of a setting is `bool`, an enumeration, a number with its `Range`, or `str` for
a name.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Annotated, Any, get_args, get_type_hints

from app.ingest.limits import MIB, ReadLimits
from app.protocol.commands import CachePolicy
from app.protocol.options import (
    AUTO_KEEP,
    DEMO_MODEL,
    EMBEDDED,
    FROM_MODEL,
    MODELS_OWN,
    BackgroundPolicy,
    Mode,
    Sampling,
)
from app.store.records import ATTACHMENT_LIMIT, TRASH_DAYS

GB = 1_000_000_000
_SAMPLING, _LIMITS, _CACHE_POLICY = Sampling(), ReadLimits(), CachePolicy()


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `min` to `max`, inclusive; a key changes the value by `step`. `zero` is shown
    for 0, if 0 has a special meaning. `neutral` is a value that changes nothing; if it is given, -1
    is allowed, too, and stands for the model's own value."""

    min: float
    max: float
    step: float = 1
    zero: str = ""
    neutral: float | None = None


class KvBits(StrEnum):
    FULL = "full"
    EIGHT = "8"
    FOUR = "4"

    @property
    def bits(self) -> int | None:
        return None if self is KvBits.FULL else int(self)


class ThemeName(StrEnum):
    """Ours by the terminal's background, our themes, then Textual's. Themes that use the terminal's
    own colours are missing, because the heatmap needs intermediate shades."""

    AUTO = "auto"
    SPECCHAT = "specchat"
    SPECCHAT_LIGHT = "specchat-light"
    ATOM_ONE_DARK = "atom-one-dark"
    ATOM_ONE_LIGHT = "atom-one-light"
    CATPPUCCIN_FRAPPE = "catppuccin-frappe"
    CATPPUCCIN_LATTE = "catppuccin-latte"
    CATPPUCCIN_MACCHIATO = "catppuccin-macchiato"
    CATPPUCCIN_MOCHA = "catppuccin-mocha"
    DRACULA = "dracula"
    FLEXOKI = "flexoki"
    GRUVBOX = "gruvbox"
    MONOKAI = "monokai"
    NORD = "nord"
    ROSE_PINE = "rose-pine"
    ROSE_PINE_DAWN = "rose-pine-dawn"
    ROSE_PINE_MOON = "rose-pine-moon"
    SOLARIZED_DARK = "solarized-dark"
    SOLARIZED_LIGHT = "solarized-light"
    TEXTUAL_DARK = "textual-dark"
    TEXTUAL_LIGHT = "textual-light"
    TOKYO_NIGHT = "tokyo-night"


@dataclass(frozen=True, slots=True)
class ReadingSettings:
    """How documents are read."""

    mode: Annotated[
        Mode,
        "How documents are read by default. Mode auto decides between sparse, which reads the "
        "fraction set by keep, and full, which reads everything.",
    ] = Mode.AUTO
    keep: Annotated[
        float,
        Range(0, 1, 0.01, "auto"),
        "The fraction of your documents that a sparse read selects by default. Auto: every "
        "passage whose score is clearly above the others.",
    ] = AUTO_KEEP
    first_word_within_s: Annotated[
        int,
        Range(0, 3600, 5, "no limit"),
        "With keep auto, read only as much as this machine can read in this many seconds. 0: no "
        "limit.",
    ] = 0
    kv_bits: Annotated[
        KvBits,
        "Precision of the target's KV cache: full, 8 bits (about half the memory) or 4 bits "
        "(about a quarter). Takes effect at the next start. Answers may get worse, and some "
        "models do not support it.",
    ] = KvBits.FULL
    background_reading: Annotated[
        BackgroundPolicy,
        "When specchat reads skipped text in the background, while no question is answered: off, "
        "on AC power (not on battery), or always.",
    ] = _CACHE_POLICY.background


@dataclass(frozen=True, slots=True)
class Answers:
    """How answers are written."""

    max_tokens: Annotated[int, Range(1, 131_072, 64), "Maximum length of an answer, in tokens."] = (
        _SAMPLING.max_tokens
    )
    temperature: Annotated[
        float,
        Range(0, 2, 0.1, neutral=_SAMPLING.temperature),
        "How random the answers are. At 0 the most likely token is always chosen. The model's "
        "own: the value in its generation_config.json.",
    ] = MODELS_OWN
    top_p: Annotated[
        float,
        Range(0.01, 1, 0.05, neutral=_SAMPLING.top_p),
        "Sample only from the most likely tokens whose probabilities add up to this.",
    ] = MODELS_OWN
    top_k: Annotated[
        int,
        Range(0, 1000, 10, "all", neutral=_SAMPLING.top_k),
        "Sample only from this many of the most likely tokens. 0: from all.",
    ] = MODELS_OWN
    min_p: Annotated[
        float,
        Range(0, 1, 0.05, neutral=_SAMPLING.min_p),
        "Sample only from tokens whose probability is at least this fraction of the highest one.",
    ] = MODELS_OWN
    repetition_penalty: Annotated[
        float,
        Range(0.5, 2, 0.05, neutral=1),
        "Above 1, the last 64 tokens become less likely to be repeated. 1: no penalty.",
    ] = MODELS_OWN
    thinking: Annotated[
        bool, "Let models think before they answer, if they can. Some models always think."
    ] = _SAMPLING.thinking
    thinking_budget: Annotated[
        int,
        Range(0, 131_072, 256, "no limit"),
        "Maximum number of thinking tokens before the answer has to begin. 0: no limit.",
    ] = _SAMPLING.thinking_budget
    stop_repeats: Annotated[
        bool,
        "Stop an answer that only repeats itself. An answer that you continue is not stopped "
        "again.",
    ] = True
    request_max_tokens: Annotated[
        int,
        Range(1, 1_000_000, 1_024),
        "Maximum length, in tokens, of an answer to a request that other programs send to the "
        "server (F5) without a limit of its own.",
    ] = 32_768


@dataclass(frozen=True, slots=True)
class Documents:
    """Limits on attached files and folders."""

    max_document_size_mb: Annotated[
        int,
        Range(1, 4096),
        "Maximum size of a document in a conversation, in MB. A question with a larger one is not"
        " sent.",
    ] = ATTACHMENT_LIMIT // MIB
    attach_limit_mb: Annotated[
        int,
        Range(1, 4096),
        "Maximum size of all files and folders that are attached at once, in MB.",
    ] = _LIMITS.total_bytes // MIB
    max_file_size_mb: Annotated[
        int,
        Range(1, 4096),
        "Maximum size of a file in an attached folder, in MB. Larger files are skipped.",
    ] = _LIMITS.file_bytes // MIB
    max_pdf_size_mb: Annotated[
        int, Range(1, 4096), "Maximum size of a PDF, office or EPUB file, in MB."
    ] = _LIMITS.document_bytes // MIB
    max_files: Annotated[
        int, Range(1, 100_000, 100), "Maximum number of files that are attached from one folder."
    ] = _LIMITS.files


@dataclass(frozen=True, slots=True)
class Models:
    """The default models."""

    target: Annotated[
        str,
        "The model that answers: an installed model, a folder, or the demo model. Ctrl+L lists "
        "models.",
    ] = EMBEDDED
    draft: Annotated[
        str,
        "A small model, or a text encoder, that takes part in scoring the documents. Auto: the "
        "demo model has its own; other models use the built-in scorer alone, as with builtin.",
    ] = ""
    folders: Annotated[
        str,
        "More folders with your own models, separated by colons. specchat lists MLX models and "
        "GGUF files up to four folder levels deep there, and never changes them.",
    ] = ""


@dataclass(frozen=True, slots=True)
class Storage:
    """What is stored, and for how long."""

    trash_days: Annotated[
        int, Range(1, 3650), "How long a deleted conversation can be restored, in days."
    ] = round(TRASH_DAYS)
    disk_cache_gb: Annotated[
        int,
        Range(0, 2000, zero="auto"),
        "Maximum disk space for the caches of conversations, in GB. 0 (auto): 20 times the size "
        "of the models' weights, but at least 0.5 GB, at most 20 GB, and never more than a tenth "
        "of the free space. The least recently used caches are deleted first; their conversations"
        " are read again when needed.",
    ] = _CACHE_POLICY.disk_budget // GB
    memory_cache_gb: Annotated[
        int,
        Range(1, 1000),
        "Maximum memory for the caches of conversations that are not in use, in GB.",
    ] = _CACHE_POLICY.memory_budget // GB
    save_requests: Annotated[
        bool, "Save requests that other programs send to the server (F5) as conversations."
    ] = False


@dataclass(frozen=True, slots=True)
class Appearance:
    """Theme and animations."""

    theme: Annotated[
        ThemeName, "The colours of the screen; auto follows the terminal's background."
    ] = ThemeName.AUTO
    animations: Annotated[bool, "Animate changes on the screen."] = True


@dataclass(frozen=True, slots=True)
class Settings:
    reading: ReadingSettings = field(default_factory=ReadingSettings)
    answers: Answers = field(default_factory=Answers)
    documents: Documents = field(default_factory=Documents)
    models: Models = field(default_factory=Models)
    storage: Storage = field(default_factory=Storage)
    appearance: Appearance = field(default_factory=Appearance)

    def sampling(self) -> Sampling:
        answers = self.answers
        values = {name: getattr(answers, name) for name in FROM_MODEL}
        chosen = {name: value for name, value in values.items() if value != MODELS_OWN}
        return Sampling(
            answers.max_tokens,
            stop_repeats=answers.stop_repeats,
            thinking=answers.thinking,
            thinking_budget=answers.thinking_budget,
            from_model=FROM_MODEL,
        ).with_values(**chosen)

    def limits(self, *, private: bool = False, ignored: bool = False) -> ReadLimits:
        """Limits for reading files and folders."""
        documents = self.documents
        return ReadLimits(
            total_bytes=documents.attach_limit_mb * MIB,
            file_bytes=documents.max_file_size_mb * MIB,
            document_bytes=documents.max_pdf_size_mb * MIB,
            files=documents.max_files,
            include_private=private,
            include_ignored=ignored,
        )

    @property
    def attachment_bytes(self) -> int:
        return self.documents.max_document_size_mb * MIB

    def cache_policy(self, snapshots: str | None, costs: str | None = None) -> CachePolicy:
        """The policy for caches. `snapshots` and `costs` are the folders where they are saved."""
        storage = self.storage
        return CachePolicy(
            self.reading.background_reading,
            storage.memory_cache_gb * GB,
            snapshots,
            storage.disk_cache_gb * GB,
            costs,
        )


_AUTO = "auto"
Value = bool | int | float | StrEnum | str
MAX_NAME_LENGTH = 1000
_WRITTEN = {"mb": "MB", "gb": "GB", "pdf": "PDF", "kv": "KV"}
_UNITS = ("mb", "gb", "s", "days")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: the field `name` of the group `group`. A number has a `range`."""

    group: str
    name: str
    type: type[Value]
    range: Range | None
    default: Value
    doc: str

    @property
    def key(self) -> str:
        return f"{self.group}.{self.name}"

    @property
    def label(self) -> str:
        """The name on the screen: `Max file size (MB)`."""
        words = [_WRITTEN.get(word, word) for word in self.name.split("_")]
        if self.name.split("_")[-1] in _UNITS:
            words[-1] = f"({words[-1]})"
        words[0] = words[0][0].upper() + words[0][1:]
        return " ".join(words)

    @property
    def choices(self) -> tuple[Value, ...]:
        """All values of an enumeration or a switch."""
        if issubclass(self.type, StrEnum):
            return tuple(self.type)
        return (True, False) if self.type is bool else ()

    @property
    def allowed(self) -> str:
        """The allowed values, in a few words."""
        if self.range is not None:
            words = " or ".join(f"'{word}'" for word in self.words)
            return f"{self.bounds}, or {words}" if words else self.bounds
        if self.type is str:
            return "a name without quotes or backslashes"
        return ", ".join(format_value(choice) for choice in self.choices)

    @property
    def bounds(self) -> str:
        """`0 to 2`: the smallest and the largest number."""
        return f"{self.range.min:,g} to {self.range.max:,.7g}" if self.range is not None else ""

    @property
    def requirement(self) -> str:
        """The allowed values, as the end of a sentence."""
        kinds = {int: "a whole number from ", float: "a number from ", str: ""}
        return f"{kinds.get(self.type, 'one of ')}{self.allowed}"

    @property
    def words(self) -> dict[str, Value]:
        """Values that stand for something, by their words on the screen; the file takes these."""
        if self.type is bool:
            return {"on": True, "off": False}
        if self.type is str:
            return {_AUTO if self.name == "draft" else "none": "", DEMO_MODEL: EMBEDDED}
        found: dict[str, Value] = {}
        if self.range is not None and self.range.zero:
            found[self.range.zero] = 0
        if self.range is not None and self.range.neutral is not None:
            found["the model's own"] = MODELS_OWN
        return found

    def display(self, value: Value) -> str:
        """The value on the screen."""
        return next(
            (word for word, known in self.words.items() if value == known), format_value(value)
        )

    def written(self, value: Value) -> str:
        """The value as in the file, but without quotes: numbers that stand for something as words,
        such as `auto`."""
        return format_value(value) if self.range is None else self.display(value)

    def is_models_own(self, value: object) -> bool:
        return self.range is not None and self.range.neutral is not None and value == MODELS_OWN

    def value_in(self, settings: Settings) -> Value:
        value: Value = getattr(getattr(settings, self.group), self.name)
        return value

    def with_value(self, settings: Settings, value: Value) -> Settings:
        """`settings` with this value."""
        group = replace(getattr(settings, self.group), **{self.name: value})
        changes: dict[str, Any] = {self.group: group}
        return replace(settings, **changes)

    def validate(self, value: object) -> Value:
        """`value` in this setting's type, also as the word that the screen shows for it. Raises
        ValueError."""
        if isinstance(value, str):
            value = self.words.get(value.strip().lower(), value)
        if self.range is None:
            if issubclass(self.type, StrEnum) and str(value) in tuple(self.type):
                return self.type(str(value))
            if self.type is bool and isinstance(value, bool):
                return value
            if self.type is str and isinstance(value, str) and _is_name(value):
                return value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            in_range = self.range.min <= value <= self.range.max
            if (in_range or self.is_models_own(value)) and (
                self.type is float or isinstance(value, int)
            ):
                return float(value) if self.type is float else value
        raise ValueError(self.requirement)


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    doc: str
    settings: tuple[Setting, ...]


def _is_name(text: str) -> bool:
    plain = text.isprintable() and not set(text) & {'"', "\\"}
    return plain and len(text) <= MAX_NAME_LENGTH


def format_value(value: Value) -> str:
    """The value as in TOML, but without quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


@functools.cache
def groups() -> tuple[Group, ...]:
    """All settings, in their order on the screen."""
    return tuple(_group(name, hint) for name, hint in get_type_hints(Settings).items())


def all_settings() -> tuple[Setting, ...]:
    return tuple(setting for group in groups() for setting in group.settings)


def search(words: str) -> tuple[Setting, ...]:
    """Settings whose name or description contains all these words."""

    def text(setting: Setting) -> str:
        return f"{setting.key} {setting.label} {setting.doc}".lower()

    return tuple(
        s for s in all_settings() if all(word in text(s) for word in words.lower().split())
    )


def find(key: str) -> Setting:
    """The setting with this key, `group.name`. Raises KeyError."""
    return {setting.key: setting for setting in all_settings()}[key]


def _group(name: str, of: type[Any]) -> Group:
    hints, defaults = get_type_hints(of, include_extras=True), of()
    settings = []
    for each in fields(of):
        kind, *bounds, doc = get_args(hints[each.name])
        default = getattr(defaults, each.name)
        settings.append(Setting(name, each.name, kind, bounds[0] if bounds else None, default, doc))
    return Group(name, " ".join((of.__doc__ or "").split()), tuple(settings))
