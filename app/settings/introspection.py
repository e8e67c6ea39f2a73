"""The settings, described by their types and docstrings."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from app.protocol.options import MODELS_OWN
from app.settings.definitions import Range, Settings

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
            own = f", or {MODELS_OWN}: the model's own" if self.range.neutral is not None else ""
            return self.bounds + own
        if self.type is str:
            return "a name without quotes or backslashes"
        return ", ".join(format_value(choice) for choice in self.choices)

    @property
    def bounds(self) -> str:
        """`0 to 2`: the smallest and the largest number."""
        return f"{self.range.min:,g} to {self.range.max:,.6g}" if self.range is not None else ""

    @property
    def requirement(self) -> str:
        """The allowed values, as the end of a sentence."""
        kinds = {int: "a whole number from ", float: "a number from ", str: ""}
        return f"{kinds.get(self.type, 'one of ')}{self.allowed}"

    def display(self, value: Value) -> str:
        """The value on the screen."""
        if isinstance(value, bool):
            return "on" if value else "off"
        if self.is_models_own(value):
            return "the model's own"
        zero = self.range.zero if self.range is not None and value == 0 else ""
        return zero or format_value(value) or "none"

    def is_models_own(self, value: object) -> bool:
        return self.range is not None and self.range.neutral is not None and value == MODELS_OWN

    def value_in(self, settings: Settings) -> Value:
        value: Value = getattr(getattr(settings, self.group), self.name)
        return value

    def with_value(self, settings: Settings, value: Value) -> Settings:
        """`settings` with this value."""
        group = dataclasses.replace(getattr(settings, self.group), **{self.name: value})
        changes: dict[str, Any] = {self.group: group}
        return dataclasses.replace(settings, **changes)

    def validate(self, value: object) -> Value:
        """`value` in this setting's type. Raises ValueError."""
        if self.range is None:
            if issubclass(self.type, StrEnum) and value in tuple(self.type):
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
    hints, docs, defaults = get_type_hints(of, include_extras=True), _docs(of), of()
    settings = []
    for field in dataclasses.fields(of):
        hint, bounds = hints[field.name], None
        if get_origin(hint) is Annotated:
            hint, bounds = get_args(hint)
        default = getattr(defaults, field.name)
        settings.append(Setting(name, field.name, hint, bounds, default, docs[field.name]))
    return Group(name, " ".join((of.__doc__ or "").split()), tuple(settings))


def _docs(of: type[Any]) -> dict[str, str]:
    """The docstring below each field. Python keeps it only in the source."""
    body = ast.parse(inspect.getsource(of)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for statement, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            assert isinstance(after, ast.Expr)
            docs[statement.target.id] = " ".join(str(ast.literal_eval(after.value)).split())
    return docs
