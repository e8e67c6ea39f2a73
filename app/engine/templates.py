"""Chat templates come with a model and are programs: they run in transformers' sandbox, which keeps
them from everything but time and memory. Here they are kept from these too.

What they are given is short (`prompt.py` gives them marks instead of messages), so that whatever
becomes long, or goes on for long, is no chat template's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

SECONDS = 2.0
STEPS = 50_000
"""Steps of loops, calls and operations."""
CHARACTERS = 200_000
"""Of one string, and twenty times as many of all together; as many items of a list."""
_LONGEST_SOURCE = 1_000_000
_LARGEST_NUMBER = 100_000


class TemplateLimit(Exception):
    """A template wants more than a chat template needs."""


class Budget:
    """What is left to one rendering."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + SECONDS
        self._steps, self._characters = STEPS, 20 * CHARACTERS

    def spend(self, characters: int = 0) -> None:
        self._steps -= 1
        self._characters -= characters
        if self._steps < 0 or time.monotonic() > self._deadline:
            raise TemplateLimit("it goes on for too long")
        if self._characters < 0:
            raise TemplateLimit("it writes too much")


def sized(value: Any) -> Any:
    """`value`, if it is not too large."""
    if isinstance(value, str | bytes | list | tuple | dict) and len(value) > CHARACTERS:
        raise TemplateLimit("it writes too much")
    if isinstance(value, int) and abs(value) > 2**63:
        raise TemplateLimit("it counts too far")
    return value


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 1


def _check_arguments(name: str, of: Any, arguments: Iterable[Any]) -> None:
    """Before anything is made of them: a number may be a width, and a text may be put everywhere
    in another one."""
    arguments = list(arguments)
    numbers = [each for each in arguments if isinstance(each, int)]
    if any(abs(number) > _LARGEST_NUMBER for number in numbers):
        raise TemplateLimit("it writes too much")
    if name in ("replace", "join", "indent", "translate", "expandtabs", "tojson"):
        most = max((_length(each) for each in arguments), default=1)
        if _length(of) * max(most, *numbers, 1) > 20 * CHARACTERS:
            raise TemplateLimit("it writes too much")
    texts = [each for each in (of, *arguments) if isinstance(each, str)]
    if name in ("format", "format_map") and any(_wide(text) for text in texts):
        raise TemplateLimit("it writes too much")


def _wide(text: str) -> bool:
    """Whether there is a number in it that would be a great width."""
    digits = "".join(c if c.isdigit() else " " for c in text).split()
    return "*" in text or any(len(number) > 4 for number in digits)


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """`ImmutableSandboxedEnvironment` with a budget. An operation that is intercepted is not
    carried out while a template is compiled, either."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, like: ImmutableSandboxedEnvironment) -> None:
        """With the filters, globals and tags of another one."""
        self.budget = Budget()
        super().__init__(
            trim_blocks=like.trim_blocks,
            lstrip_blocks=like.lstrip_blocks,
            extensions=[type(each) for each in like.extensions.values()],
            finalize=self._written,
        )
        self.globals.update(like.globals)
        self.globals.pop("lipsum", None)  # writes pages
        self.filters = {name: self._limited(name, each) for name, each in like.filters.items()}
        self.filters |= {"_counted": self._counted, "_joined": self._joined}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > _LONGEST_SOURCE:
            raise TemplateLimit("it is too long")
        tree = _Counting().visit(super()._parse(source, name, filename))
        assert isinstance(tree, nodes.Template)
        tree.set_environment(self)
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.budget.spend()
        if operator == "**" and not (_small(left, 1000) and _small(right, 6)):
            raise TemplateLimit("it counts too far")
        if operator == "*" and any(
            isinstance(x, str | bytes | list | tuple) for x in (left, right)
        ):
            times = next((x for x in (left, right) if isinstance(x, int)), 1)
            if times * _length(left) * _length(right) > CHARACTERS:
                raise TemplateLimit("it writes too much")
        if operator == "%" and isinstance(left, str) and _wide(left):
            raise TemplateLimit("it writes too much")
        return sized(super().call_binop(context, operator, left, right))

    def call(self, context: Any, obj: Any, *arguments: Any, **named: Any) -> Any:
        self.budget.spend()
        bound = getattr(obj, "__wrapped__", obj)  # the sandbox wraps `format`
        of = getattr(bound, "__self__", None)
        _check_arguments(getattr(bound, "__name__", ""), of, (*arguments, *named.values()))
        result = sized(super().call(context, obj, *arguments, **named))
        self.budget.spend(_length(result))
        return result

    def _limited(self, name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(filter)  # also what it wants to be given first
        def limited(*arguments: Any, **named: Any) -> Any:
            self.budget.spend()
            given = arguments[1:] if hasattr(filter, "jinja_pass_arg") else arguments
            if given:
                _check_arguments(name, given[0], (*given[1:], *named.values()))
            result = sized(filter(*arguments, **named))
            self.budget.spend(_length(result))
            return result

        return limited

    def _counted(self, items: Iterable[Any], written: int) -> Iterator[Any]:
        """What a loop goes over, each step of which writes so many characters of its own."""
        for item in items:
            self.budget.spend(written)
            yield item

    def _joined(self, *parts: Any) -> str:
        texts = [sized(str(part)) for part in parts]
        self.budget.spend(sum(map(len, texts)))
        return str(sized("".join(texts)))

    def _written(self, value: Any) -> Any:
        self.budget.spend(_length(value))
        return value


def _small(value: Any, most: int) -> bool:
    return isinstance(value, int | float) and abs(value) <= most


class _Counting(NodeTransformer):
    """Loops count their steps, and `~` looks at what it makes."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.iter = _filter(node.iter, "_counted", [nodes.Const(written)])
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        first, *rest = node.nodes
        return _filter(first, "_joined", rest)


def _filter(node: Any, name: str, arguments: list[nodes.Expr]) -> nodes.Filter:
    return nodes.Filter(node, name, arguments, [], None, None, lineno=node.lineno)


class Templates:
    """Of one tokenizer; each is compiled once, which takes longer than to render it."""

    def __init__(self) -> None:
        self._compiled: dict[str, tuple[LimitedEnvironment, Any]] = {}

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Whatever transformers renders meanwhile keeps to the limits. For one thread."""
        from transformers.utils import chat_template_utils

        theirs = chat_template_utils._compile_jinja_template

        def compiled(source: str) -> Any:
            if source not in self._compiled:
                environment = LimitedEnvironment(theirs("").environment)
                self._compiled[source] = environment, environment.from_string(source)
            environment, template = self._compiled[source]
            environment.budget = Budget()
            return template

        chat_template_utils._compile_jinja_template = compiled
        try:
            yield
        finally:
            chat_template_utils._compile_jinja_template = theirs
