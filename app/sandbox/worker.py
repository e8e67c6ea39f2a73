"""A script that runs a model's tokenizer and chat template, and measures its configuration
(`shapes.py`), in a separate process.

None of these is trusted: a template is a program, and a tokenizer may contain patterns and
replacements that never end or that fill the memory. So each request has limits in seconds and
bytes, and the process is killed by a signal when it exceeds them. It reads requests of `process.py`
from standard input, and answers on standard output until the input ends. To start quickly,
it imports no other module of the app.

A message, in either direction, consists of four bytes with the length of a JSON object, the object,
and parts whose lengths are in its `parts`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import signal
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import Enum
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from operator import itemgetter, sub
from pathlib import Path
from types import ModuleType
from typing import IO, Any

MAX_UNCOVERED = 32
"""Maximum consecutive letters that are in no token."""

_MEMORY = resource.RLIMIT_AS

Answer = tuple[dict[str, Any], list[bytes]]


# ------------------------------------------------------------------------------------- messages


def write_message(file: IO[bytes], header: dict[str, Any], parts: Sequence[bytes]) -> None:
    head = json.dumps({**header, "parts": [len(part) for part in parts]}).encode()
    file.write(b"".join((struct.pack("<I", len(head)), head, *parts)))
    file.flush()


def _read_header(file: IO[bytes]) -> dict[str, Any] | None:
    length = file.read(4)
    if len(length) < 4:
        return None
    header: dict[str, Any] = json.loads(file.read(struct.unpack("<I", length)[0]))
    return header


# --------------------------------------------------------------------------------------- limits


def _limit(seconds: float, memory: int) -> None:
    """Limit the next request. Not every system can limit memory, so the parent process watches
    it."""
    # This timer counts CPU seconds from now on. RLIMIT_CPU counts from the start of the process, on
    # a clock that the process cannot read, so earlier requests would use up the next one's time.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        wanted, hard = pages * resource.getpagesize() + memory, resource.getrlimit(_MEMORY)[1]
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(_MEMORY, (soft, hard))


# ------------------------------------------------------------------------------------ templates


class TemplateSandbox:
    """Renders templates. Caches the last compiled one, because compiling takes longer than
    rendering."""

    def __init__(self) -> None:
        self._environment = _environment()
        self._source = ""
        self._compiled: Any = None

    def render(self, source: str, variables: str) -> str:
        if self._compiled is None or source != self._source:
            self._compiled = self._environment.from_string(source)
            self._source = source
        text: str = self._compiled.render(**json.loads(variables))
        return text


def _environment() -> Any:
    """An environment like that of transformers, for which chat templates are written: a sandbox
    with a few extra names, loop controls, and a `generation` block that marks text of the model."""
    import jinja2.ext
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}  # noqa: RUF012 (as jinja2 declares it)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

        def _content(self, caller: Callable[[], str]) -> str:
            return caller()

    class Dict:
        def __call__(self, *args: Any, **named: Any) -> dict[Any, Any]:
            return dict(*args, **named)

        def fromkeys(self, *args: Any) -> dict[Any, Any]:
            return dict.fromkeys(*args)

    class PlainNamespace(Namespace):
        """Refuses names that start with an underscore, because Python may use them."""

        def __init__(*args: Any, **named: Any) -> None:
            self, *rest = args
            values = dict(*rest, **named)
            for name in values:
                _check_name(name)
            Namespace.__init__(self, values)

        def __setitem__(self, name: str, value: Any) -> None:
            _check_name(name)
            super().__setitem__(name, value)

    def _check_name(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace may not have {name!r}")

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        options = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": Dict(),
        "namespace": PlainNamespace,
    }
    return environment


# ----------------------------------------------------------------------------------- tokenizers


class Prefix(Enum):
    """When a tokenizer puts a space before the first word of a text, as SentencePiece does."""

    OWN = 0
    """When the tokenizer itself does so."""
    NONE = 1
    """Never, because the text continues."""
    TOKEN = 2
    """When the tokenizer does so after a special token."""


_PREFIXES = {"nothing": Prefix.OWN, "text": Prefix.NONE, "token": Prefix.TOKEN}
"""The rule for a text, by what precedes the text."""


class Encoders:
    """Variants of a tokenizer for texts at different places of a prompt. Each is made when first
    needed."""

    def __init__(self, spec: str) -> None:
        self._spec, content = spec, json.loads(spec)
        self._same = _equal_prefixes(content)
        self._added = {
            token["id"] for token in content.get("added_tokens") or () if token["content"].strip()
        }
        self._whole = _make_tokenizer(content)
        self._variants: dict[tuple[bool, Prefix], Any] = {(True, Prefix.OWN): self._whole}
        for special in (True, False):
            self._variant(special, "text")

    def _variant(self, special: bool, after: str) -> Any:
        prefix = self._same[_PREFIXES[after]]
        if (special, prefix) not in self._variants:
            made = clone_tokenizer(self._spec, not special, prefix)
            self._variants[special, prefix] = made
        return self._variants[special, prefix]

    def smoke_test(self) -> None:
        """Encode some texts and all special tokens, as model loaders do."""
        special = [token.content for token in self._whole.get_added_tokens_decoder().values()]
        for tokenizer in self._variants.values():
            for text in (" ", "a b\n", "".join(map(chr, range(32, 127))), *special):
                tokenizer.encode(text, add_special_tokens=False)
        self._whole.decode([0], skip_special_tokens=False)

    @property
    def digest(self) -> str:
        return digest(self._whole.to_str())

    @property
    def begin_ids(self) -> list[int]:
        """Token ids that the tokenizer puts before every text."""
        encoding = self._whole.encode("a")
        marks = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
        return [token for token, _ in takewhile(itemgetter(1), marks)]

    def count(self, text: str) -> int:
        return len(self._variant(False, "text").encode(text, add_special_tokens=False))

    def encode(
        self, text: str, special: bool, after: str, offsets: bool
    ) -> tuple[bytes, bytes, int]:
        """Encode a text. Returns token ids (int32), the start and end of each token (int64) if
        `offsets`, and the number of letters that are in no token."""
        encoding = self._variant(special, after).encode(text, add_special_tokens=False)
        bounds = array("q", [at for pair in encoding.offsets for at in pair])
        ids = encoding.ids
        if special and after == "text" and self._same[Prefix.NONE] is not Prefix.OWN:
            # After the first special token in the text, the tokenizer's own rule applies.
            number = next((n for n, token in enumerate(ids) if token in self._added), len(ids))
            start = bounds[2 * number] if number < len(ids) else len(text)
            rest = self._whole.encode(text[start:], add_special_tokens=False)
            ids = ids[:number] + rest.ids
            of_rest = array("q", [start + at for pair in rest.offsets for at in pair])
            bounds = bounds[: 2 * number] + of_rest
        found = array("i", ids).tobytes()
        return found, bounds.tobytes() if offsets else b"", count_uncovered(text, bounds)


def digest(spec: str) -> str:
    """SHA-256 of a tokenizer's compact serialisation. Empty affixes count as absent."""
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        spec = spec.replace(f'"{name}":""', f'"{name}":null')
    return hashlib.sha256(spec.encode()).hexdigest()


def count_uncovered(text: str, offsets: array[int]) -> int:
    """Number of letters that are in no token, in runs longer than MAX_UNCOVERED. White space and
    marks do not count. `offsets` has the start and end of each token."""
    starts, ends = offsets[::2] + array("q", [len(text)]), array("q", [0]) + offsets[1::2]
    if max(map(sub, starts, ends)) <= MAX_UNCOVERED:
        return 0
    reached = uncovered = 0
    for start, end in zip(starts, ends, strict=True):
        reached = max(reached, end)
        letters = sum(map(str.isalnum, text[reached:start]))
        uncovered += letters if letters > MAX_UNCOVERED else 0
    return uncovered


def clone_tokenizer(spec: str, text_only: bool, prefix: Prefix = Prefix.NONE) -> Any:
    """A copy of a tokenizer for pieces of a prompt.

    With `text_only`, text that looks like a special token is encoded as text. Only added tokens
    that consist of white space are still used, because they matter in code. All tokens keep their
    ids.
    """
    content = json.loads(spec)
    content["post_processor"] = None
    _drop_leading_space(content, prefix)
    for token in content.get("added_tokens") or () if text_only else ():
        token["special"] = not token["content"].isspace()
    tokenizer = _make_tokenizer(content)
    tokenizer.encode_special_tokens = text_only
    return tokenizer


def _make_tokenizer(content: dict[str, Any]) -> Any:
    """A tokenizer that encodes texts unchanged, without truncation, padding and dropout."""
    from tokenizers import Tokenizer

    content.update(truncation=None, padding=None)
    if "dropout" in content["model"]:
        content["model"]["dropout"] = None
    return Tokenizer.from_str(json.dumps(content))


def _drop_leading_space(content: dict[str, Any], prefix: Prefix) -> None:
    normalizer, pre_tokenizer = content.get("normalizer"), content.get("pre_tokenizer")
    everywhere = prefix is Prefix.NONE
    if normalizer and normalizer["type"] == "Prepend" and everywhere:
        content["normalizer"] = None
    elif normalizer and normalizer["type"] == "Sequence" and everywhere:
        others = [n for n in normalizer["normalizers"] if n["type"] != "Prepend"]
        normalizer["normalizers"] = others
    for step in (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer]):
        if not step or prefix is Prefix.OWN:
            continue
        if step["type"] == "Metaspace" and (everywhere or step.get("prepend_scheme") == "first"):
            step["prepend_scheme"] = "never"
        elif step["type"] == "ByteLevel" and everywhere:
            step["add_prefix_space"] = False


def _equal_prefixes(content: dict[str, Any]) -> dict[Prefix, Prefix]:
    """For each rule, the first rule that splits texts in the same way."""

    def steps(prefix: Prefix) -> str:
        own = json.dumps({name: content.get(name) for name in ("normalizer", "pre_tokenizer")})
        changed = json.loads(own)
        _drop_leading_space(changed, prefix)
        return json.dumps(changed)

    return {each: next(p for p in Prefix if steps(p) == steps(each)) for each in Prefix}


# --------------------------------------------------------------------------------------- models


def _measure(config: str, bits: str) -> Any:
    """Call `shapes.measure`. The module is imported by name, because importing this script must not
    import MLX."""
    # Importing the package mlx_lm would import transformers first, which takes two seconds.
    found = find_spec("mlx_lm")
    for name, values in (
        ("mlx_lm", {"__path__": found and found.submodule_search_locations}),
        ("mlx_lm.tokenizer_utils", {"TokenizerWrapper": None, "load": None}),
        ("huggingface_hub", {"snapshot_download": None}),
    ):
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(values)
    mx = import_module("mlx.core")
    mx.set_default_device(mx.cpu)
    return import_module("app.sandbox.shapes").measure(json.loads(config), json.loads(bits))


# ------------------------------------------------------------------------------------- requests


class RequestHandler:
    def __init__(self) -> None:
        self._encoders: Encoders | None = None

    @cached_property
    def _templates(self) -> TemplateSandbox:
        return TemplateSandbox()

    def answer(self, header: dict[str, Any], parts: list[str]) -> Answer:
        match header["do"]:
            case "open":
                self._encoders = Encoders(Path(parts[0]).read_text("utf-8"))
                self._encoders.smoke_test()
                _ = self._templates  # so that the first message need not wait for it
                return {"digest": self._encoders.digest, "begin": self._encoders.begin_ids}, []
            case "load":
                self._encoders = Encoders(parts[0])
                _ = self._templates
                return {"begin": self._encoders.begin_ids}, []
            case "render":
                text = self._templates.render(*parts)
                return {}, [text.encode(errors="replace")]
            case "measure":
                return {"shape": _measure(*parts)}, []
        assert self._encoders is not None
        if header["do"] == "count":
            return {"count": sum(map(self._encoders.count, parts))}, []
        encoded = [
            self._encoders.encode(text, *how)
            for how, text in zip(header["pieces"], parts, strict=True)
        ]
        blobs = [blob for ids, bounds, _ in encoded for blob in (ids, bounds)]
        return {"uncovered": sum(uncovered for *_, uncovered in encoded)}, blobs


def main(paths: Sequence[str]) -> None:
    """Answer requests until the input ends. `paths` are folders to import packages from."""
    sys.path += paths
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process when its time is up
    # Other output to standard output must not come between messages.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker = RequestHandler()
    while (header := _read_header(sys.stdin.buffer)) is not None:
        _limit(header["seconds"], header["memory"])  # before a text that needs them is read
        try:
            parts = [sys.stdin.buffer.read(size).decode() for size in header["parts"]]
            answer, blobs = worker.answer(header, parts)
        except MemoryError:
            os.abort()
        except BaseException as error:  # a Rust panic is not an Exception
            answer, blobs = {"error": f"{type(error).__name__}: {error}"[:2000]}, []
        parts = []
        write_message(out, answer, blobs)


if __name__ == "__main__":
    main(sys.argv[1:])
