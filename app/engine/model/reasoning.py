"""How models mark their reasoning, which is not part of the answer or the next prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlx_lm.generate import TextStateMachine

ANSWER, REASONING = "normal", "reasoning"
"""The states of a `TextStateMachine`, as mlx-lm names them."""
_TAIL = 32
"""Number of last tokens of a prompt in which it may open the reasoning."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The texts that a model writes before (`opens`) and after (`closes`) its reasoning, including
    white space, and before an answer without reasoning (`begins`)."""

    opens: str
    closes: str
    begins: str = ""
    to_reasoning: tuple[str, ...] = ()
    """Other texts that start reasoning."""
    to_answer: tuple[str, ...] = ()
    """Other texts that start the answer; they are never shown."""
    ends: tuple[str, ...] = ()
    """Tokens that end an answer, in addition to those in the model's files."""

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.opens.strip(), *self.to_reasoning)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.closes.strip(), *self.to_answer)

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.starts, *self.stops)


def _tags(start: str, end: str, *answer: str) -> ReasoningFormat:
    return ReasoningFormat(f"{start}\n", f"\n{end}\n\n", to_answer=answer)


_HARMONY = ReasoningFormat(
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
    "<|channel|>final<|message|>",
    ("<|channel|>commentary<|message|>",),
    (
        "<|channel|>final<|message|>",
        "<|channel|>final <|constrain|>json<|message|>",
        "<|start|>assistant",
        "<|end|>",
    ),
    ("<|return|>", "<|call|>"),
)
"""GPT-OSS: only the channel `final` is the answer."""
_BY_TOKENS = {
    ("<|channel|>", "<|message|>", "<|start|>", "<|end|>"): _HARMONY,
    ("[THINK]", "[/THINK]"): ReasoningFormat("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"): ReasoningFormat("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"): ReasoningFormat(
        "<|START_THINKING|>",
        "<|END_THINKING|><|START_RESPONSE|>",
        "<|START_RESPONSE|>",
        to_answer=("<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
}
"""Formats recognised by tokens in the vocabulary: GPT-OSS, Mistral, Seed-OSS, Command A."""
_BY_TEMPLATE = (
    _tags("<think>", "</think>"),
    _tags("[THINK]", "[/THINK]"),
    _tags("<thought>", "</thought>"),
    _tags("<reasoning>", "</reasoning>"),
    _tags("<seed:think>", "</seed:think>"),
    _tags("◁think▷", "◁/think▷"),
    _tags("Here is my thought process:", "Here is my response:"),
    _tags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"),
)
"""Formats in plain text, recognised by either mark in the chat template: Olmo, EXAONE Deep, Reka,
Kimi-VL, Granite, Apriel."""
_AROUND_ANSWERS = (("<response>", "</response>"), ("<answer>", "</answer>"))
"""Marks around answers after `</think>`, if the template contains them: Granite 3.3, Hunyuan."""


class Reasoning:
    """The reasoning format of a model, found from its tokenizer (an mlx-lm `TokenizerWrapper`).
    `format` is None for a model that is not known to reason."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._marks: frozenset[int] = frozenset()
        """Special tokens of the marks; empty if the marks are plain text."""
        self.format = self._find()

    def _find(self) -> ReasoningFormat | None:
        tokenizer, template = self._tokenizer, template_of(self._tokenizer)
        around = [mark for pair in _AROUND_ANSWERS if pair[0] in template for mark in pair]
        if getattr(tokenizer, "think_start", None):  # recognised by mlx-lm
            first = tokenizer.think_start_tokens[0], tokenizer.think_end_tokens[0]
            self._marks = frozenset(first)
            if tokenizer.think_end == "<channel|>":  # Gemma 4 answers right after it
                closes = f"\n{tokenizer.think_end}"
                return replace(_tags(tokenizer.think_start, tokenizer.think_end), closes=closes)
            return _tags(tokenizer.think_start, tokenizer.think_end, *around)
        for tokens, found in _BY_TOKENS.items():
            ids = [tokenizer.backend_tokenizer.token_to_id(token) for token in tokens]
            if None not in ids:
                self._marks = frozenset(ids)
                return found
        for found in _BY_TEMPLATE:
            if any(mark in template for mark in (found.starts[0], found.stops[0])):
                return replace(found, to_answer=(*found.to_answer, *around))
        return None

    def machine(self) -> TextStateMachine:
        """A state machine that splits text into answer and reasoning."""
        from mlx_lm.generate import make_text_state_machine  # imports MLX, so only after OpenBLAS

        return make_text_state_machine(_Marked(self._tokenizer, self.format))

    def is_open(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the prompt ends within the model's reasoning."""
        if self.format is None:
            return False
        tail = str(self._tokenizer.decode(list(prompt_ids[-_TAIL:]))).rstrip()
        return tail.endswith(self.format.starts)

    def is_in(self, ids: Sequence[int]) -> bool:
        """Whether an answer's token ids contain reasoning or marks."""
        if self.format is None or self._marks:
            return not self._marks.isdisjoint(ids)
        text = str(self._tokenizer.decode(list(ids)))
        return any(mark in text for mark in self.format.marks)


class _Marked:
    """A tokenizer wrapper that presents a format's marks to mlx-lm, and no tool calls: mlx-lm
    removes the tags of calls from the text, but here calls are part of the answer."""

    has_tool_calling = False

    def __init__(self, tokenizer: Any, marks: ReasoningFormat | None) -> None:
        self._tokenizer = tokenizer
        self.has_thinking = marks is not None
        self.response_transitions = transitions = {
            state: [(mark, to) for mark, to in edges if to != "tool"]
            for state, edges in tokenizer.response_transitions.items()
            if state != "tool"
        }
        if marks is None:
            return
        self.think_start, self.think_end = marks.starts[0], marks.stops[0]
        closes = [(mark, ANSWER) for mark in marks.stops[1:]]
        opens = [(mark, REASONING) for mark in marks.starts[1:]]
        self.response_transitions = transitions | {
            ANSWER: [*transitions.get(ANSWER, ()), *opens, *closes, (self.think_end, ANSWER)],
            REASONING: [*transitions.get(REASONING, ()), *closes],
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def template_of(tokenizer: Any) -> str:
    """The source of the tokenizer's chat templates; empty if it has none."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        return "\n".join(map(str, template.values()))
    return template if isinstance(template, str) else ""
