"""Renders a model's chat template with a placeholder for each message, and splits it there.

Many templates reject messages that clients send, such as roles that do not alternate, or system
prompts. Such messages are rearranged as little as the template requires.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import Any

from app.engine.model.reasoning import Reasoning, template_of
from app.protocol.options import TemplateValues
from app.protocol.prompt import Message, Role, TemplateRule
from app.protocol.reasons import EngineFailure, FailureKind
from app.sandbox.process import TextError, TextProcess, TextRefused
from app.util.formatting import one_line

# Private use characters do not occur in templates, and case mapping does not change them. The white
# space around them disappears if a template trims contents.
_CONTENT = "\u2003\ue000{}\ue001\u2003"
_THINKING = "\u2003\ue000t{}\ue001\u2003"
_SENTINELS = re.compile("(\u2003?)\ue000(t?)(\\d+)\ue001(\u2003?)")
_BETWEEN = "\n\n"
"""Separator between merged messages."""
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Values of `reasoning_effort` in clients and templates, in ascending order."""


class PromptError(EngineFailure):
    """The conversation cannot be rendered for this model."""


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """The place of a message's text, or its thinking, in a rendered template. `before`: the
    template's text before it. `trims`: whether leading and trailing white space is removed."""

    before: str
    message: int
    thinking: bool
    trims: tuple[bool, bool]

    def trim(self, message: Message) -> Message:
        """The message with its text trimmed as the template does it."""
        start, end = self.trims
        text = message.text.lstrip() if start and not message.in_prompt else message.text
        return replace(message, text=text.rstrip() if end else text)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered template: the places of all messages, and the generation prompt."""

    places: tuple[MessagePlace, ...]
    generation: str
    rules: frozenset[TemplateRule] = frozenset()
    """Rules of the template for which messages were rearranged."""


class ChatTemplate:
    """The chat template of a tokenizer (an mlx-lm `TokenizerWrapper`), rendered in the sandbox."""

    def __init__(self, tokenizer: Any, texts: TextProcess, reasoning: Reasoning) -> None:
        self._tokenizer, self._texts, self._reasoning = tokenizer, texts, reasoning
        self._in_parts = False
        """Whether the template loops over the parts of a message, as those of vision models do."""

    def render(
        self, messages: Sequence[Message], may_think: bool, values: TemplateValues = ()
    ) -> Rendered:
        """Render the first arrangement of the messages that the template accepts. `values` are
        passed as template variables. Raises PromptError."""
        refused: PromptError | None = None
        ways = (True,) if self._in_parts else (False, True)
        for in_parts, (rules, turns) in product(ways, _arrangements(messages)):
            try:
                rendered = self._apply(turns, messages, may_think, values, in_parts)
                places, generation = self._split(rendered, messages)
            except PromptError as error:
                refused = refused or error
                cause = error.__cause__
                if isinstance(cause, TextError) and not isinstance(cause, TextRefused):
                    break  # the sandbox's limits were exceeded; they would be again
            else:
                self._in_parts = in_parts
                return Rendered(tuple(places), generation, rules)
        assert refused is not None
        raise refused

    @cached_property
    def around_answers(self) -> tuple[str, str]:
        """The template's text between a question and its answer, and between that and the next
        question; empty if unknown."""
        turns = (Role.USER, Role.ASSISTANT, Role.USER)
        try:
            _, answer, question = self.render([Message(role, "") for role in turns], True).places
        except PromptError:
            return "", ""
        return answer.before, question.before

    def _apply(
        self,
        turns: Sequence[_Turn],
        messages: Sequence[Message],
        may_think: bool,
        values: TemplateValues,
        in_parts: bool,
    ) -> str:
        contents = [turn.content(messages) for turn in turns]
        if in_parts:
            for turn in contents:
                turn["content"] = [{"type": "text", "text": turn["content"]}]
        if not self._tokenizer.has_chat_template:
            return _BETWEEN.join(turn["content"] for turn in contents) + _BETWEEN
        try:
            with render_with(self._texts.render):
                rendered: str = self._tokenizer.apply_chat_template(
                    contents,
                    tokenize=False,
                    add_generation_prompt=True,
                    **self._variables(may_think, values),
                )
        except Exception as error:  # transformers raises any type
            data = {"error": one_line(error)}
            raise PromptError(FailureKind.TEMPLATE_FAILED, data) from error
        return rendered

    def _variables(self, may_think: bool, values: TemplateValues) -> dict[str, Any]:
        """The template's variables, including every name that templates use for thinking."""
        found: dict[str, Any] = dict(values)
        if self._reasoning.format is not None or not may_think:
            found |= {"enable_thinking": may_think, "thinking": may_think}
        if "none" in self._efforts:  # this template turns thinking off by the effort
            effort = found.get("reasoning_effort", "high")
            found["reasoning_effort"] = effort if may_think else "none"
        effort = found.get("reasoning_effort")
        if self._efforts and effort in _EFFORTS and effort not in self._efforts:
            words = self._efforts - {"none"}
            found["reasoning_effort"] = min(words or self._efforts, key=_distance_to(effort))
        return found

    @cached_property
    def _efforts(self) -> frozenset[str]:
        """The values of `reasoning_effort` in a template that rejects others; else empty."""
        source = template_of(self._tokenizer)
        if "reasoning_effort" not in source or "raise_exception" not in source:
            return frozenset()
        return frozenset(word for word in _EFFORTS if re.search(f"['\"]{word}['\"]", source))

    @staticmethod
    def _split(rendered: str, messages: Sequence[Message]) -> tuple[list[MessagePlace], str]:
        places: list[MessagePlace] = []
        at = 0
        for match in _SENTINELS.finditer(rendered):
            before, trims = rendered[at : match.start()], (not match[1], not match[4])
            places.append(MessagePlace(before, int(match[3]), bool(match[2]), trims))
            at = match.end()
        said = [place.message for place in places if not place.thinking]
        thought = [place.message for place in places if place.thinking]
        turns = [i for i in said if messages[i].role is not Role.SYSTEM]
        once = sorted(said) == list(range(len(messages))) and len(set(thought)) == len(thought)
        if not once or turns != sorted(turns):
            raise PromptError(FailureKind.TEMPLATE_DROPS_MESSAGES)
        return places, rendered[at:]


# ---------------------------------------------------------------------------- arrangements


@dataclass(frozen=True, slots=True)
class _Turn:
    """A message for the template, merged from these `messages` of the conversation (indices)."""

    role: Role
    messages: tuple[int, ...]

    def content(self, messages: Sequence[Message]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "role": str(self.role),
            "content": _BETWEEN.join(map(_CONTENT.format, self.messages)),
        }
        thoughts = [_THINKING.format(i) for i in self.messages if messages[i].thinking]
        return found | ({"reasoning_content": _BETWEEN.join(thoughts)} if thoughts else {})


_Turns = tuple[_Turn, ...]


def _arrangements(messages: Sequence[Message]) -> Iterator[tuple[frozenset[TemplateRule], _Turns]]:
    """The messages unchanged, then rearranged by more and more rules."""
    as_they_are = tuple(_Turn(each.role, (i,)) for i, each in enumerate(messages))
    seen: set[_Turns] = set()
    for chosen in _RULES:
        turns, needed = as_they_are, set()
        for rule in chosen:
            if (changed := _STEPS[rule](turns)) != turns:
                turns = changed
                needed.add(rule)
        if turns not in seen:
            seen.add(turns)
            yield frozenset(needed), turns


def _merge(turns: _Turns) -> _Turns:
    """Merge consecutive messages of the same role."""
    merged: list[_Turn] = []
    for turn in turns:
        if merged and merged[-1].role is turn.role:
            merged[-1] = replace(turn, messages=(*merged[-1].messages, *turn.messages))
        else:
            merged.append(turn)
    return tuple(merged)


def _fold(turns: _Turns, first_too: bool) -> _Turns:
    """Merge system prompts into the question after them. Those at the start become one system
    prompt, or, with `first_too`, are merged into the question too."""
    first = 0
    while not first_too and first < len(turns) and turns[first].role is Role.SYSTEM:
        first += 1
    folded = list(_merge(turns[:first]))
    waiting: tuple[int, ...] = ()
    for turn in turns[first:]:
        if turn.role is Role.SYSTEM:
            waiting += turn.messages
        elif turn.role is Role.USER:
            folded.append(replace(turn, messages=(*waiting, *turn.messages)))
            waiting = ()
        else:
            folded.append(turn)
    return tuple(folded)


def _open(turns: _Turns) -> _Turns:
    """Insert an empty question before a conversation that begins with an answer."""
    at = next((i for i, turn in enumerate(turns) if turn.role is not Role.SYSTEM), 0)
    if not turns or turns[at].role is not Role.ASSISTANT:
        return turns
    return (*turns[:at], _Turn(Role.USER, ()), *turns[at:])


_STEPS: dict[TemplateRule, Callable[[_Turns], _Turns]] = {
    TemplateRule.SYSTEM_FIRST: partial(_fold, first_too=False),
    TemplateRule.NO_SYSTEM: partial(_fold, first_too=True),
    TemplateRule.ALTERNATING: _merge,
    TemplateRule.QUESTION_FIRST: _open,
}
_RULES = [
    (*system, *merged, *opened)
    for opened, system, merged in product(
        ((), (TemplateRule.QUESTION_FIRST,)),
        ((), (TemplateRule.SYSTEM_FIRST,), (TemplateRule.NO_SYSTEM,)),
        ((), (TemplateRule.ALTERNATING,)),
    )
]
"""Sets of rules, in the order in which they are tried."""

# ---------------------------------------------------------------------------- rendering

_RENDERING = threading.Lock()


@contextmanager
def render_with(render: Callable[[str, dict[str, Any]], str]) -> Iterator[None]:
    """Context manager: transformers prepares a template's variables and calls `render(source,
    variables)` instead of running the template, which is untrusted code. One thread at a time,
    because it replaces a global of transformers."""
    from transformers.utils import chat_template_utils

    class RemoteTemplate:
        """The part of a compiled template's interface that transformers uses."""

        def __init__(self, source: str) -> None:
            self._source = source

        def render(self, **variables: Any) -> str:
            return render(self._source, variables)

    with _RENDERING:
        original = chat_template_utils._compile_jinja_template
        chat_template_utils._compile_jinja_template = RemoteTemplate
        try:
            yield
        finally:
            chat_template_utils._compile_jinja_template = original


def _distance_to(effort: str) -> Callable[[str], tuple[int, int]]:
    """A sort key that prefers the value nearest to `effort`, and the higher of two."""
    at = _EFFORTS.index(effort)
    return lambda word: (abs(_EFFORTS.index(word) - at), -_EFFORTS.index(word))
