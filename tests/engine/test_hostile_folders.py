"""Malicious or broken model folders are refused quickly with one sentence, and no code in them
runs."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from app.chat import wording
from app.chat.model_pairs import resolve_pair
from app.engine.pair_loader import load_pair
from app.errors import UserError
from app.protocol.prompt import Message, Role
from app.protocol.reasons import EngineFailure
from tests import tiny
from tests.patience import PATIENCE
from tests.tables import table

Change = Callable[[Path], object]

MARK = "code-ran"
"""A file that code in the folder would create."""


def evil(folder: Path) -> str:
    return f"open({str(folder.parent / MARK)!r}, 'w').close()\n"


def json_of(name: str, **changes: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        content = json.loads(path.read_text())
        for key, value in changes.items():
            if value is None:
                content.pop(key, None)
            else:
                content[key] = value
        path.write_text(json.dumps(content))

    return change


def config(**changes: Any) -> Change:
    return json_of("config.json", **changes)


def written(name: str, data: bytes | str) -> Change:
    raw = data.encode() if isinstance(data, str) else data
    return lambda folder: (folder / name).write_bytes(raw)


def cut(name: str, keep: Callable[[int], int]) -> Change:
    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: keep(len(data))])

    return change


def sparse(name: str, size: int) -> Change:
    """A long sparse file that uses no disk space."""

    def change(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.truncate(size)

    return change


def linked(name: str, target: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return change


def header(change: Callable[[dict[str, Any]], object]) -> Change:
    """Change the header of the weights, but not the data."""

    def act(folder: Path) -> None:
        path = folder / "model.safetensors"
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        tensors = json.loads(data[8 : 8 + length])
        change(tensors)
        new = json.dumps(tensors).encode()
        path.write_bytes(struct.pack("<Q", len(new)) + new + data[8 + length :])

    return act


def weights(change: Callable[[dict[str, mx.array]], object]) -> Change:
    def act(folder: Path) -> None:
        path = str(folder / "model.safetensors")
        arrays: dict[str, mx.array] = dict(mx.load(path).items())  # type: ignore[union-attr]
        mx.eval(list(arrays.values()))
        change(arrays)
        mx.save_safetensors(path, arrays, metadata={"format": "mlx"})

    return act


def first(tensors: dict[str, Any], part: str = "weight") -> str:
    return next(name for name in sorted(tensors) if part in name)


def filled(value: float, part: str = "weight") -> Change:
    """Fill one tensor with this value."""

    def change(arrays: dict[str, mx.array]) -> None:
        name = first(arrays, part)
        arrays[name] = mx.full(arrays[name].shape, value, arrays[name].dtype)

    return weights(change)


def one_nan(arrays: dict[str, mx.array]) -> None:
    name = first(arrays, "down_proj")
    arrays[name][0, 0] = float("nan")


def moved(amount: int) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        for name, tensor in tensors.items():
            if name != "__metadata__":
                tensor["data_offsets"] = [each + amount for each in tensor["data_offsets"]]

    return change


def template(source: str) -> Change:
    return json_of("tokenizer_config.json", chat_template=source)


def tokenizer(change: Callable[[dict[str, Any]], object]) -> Change:
    def act(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        change(content)
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return act


def high_token(content: dict[str, Any]) -> None:
    """Every token id is beyond the embedding table."""
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {token: id + 1_000_000 for token, id in vocabulary.items()}


class Pickled:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, (evil(self.path),)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(Pickled(folder)))


def only_pickles(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Pickled(folder)))
    (folder / "model.safetensors").unlink()


def modules(folder: Path) -> None:
    """Modules in all places where they might be loaded from, with configurations that request
    them."""
    for name in ("modeling.py", "tokenization.py", "qwen3.py", "__init__.py", "evil.py"):
        (folder / name).write_text(evil(folder))


def also(*changes: Change) -> Change:
    def act(folder: Path) -> None:
        for change in changes:
            change(folder)

    return act


def unlink(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def index(weight_map: Any) -> Change:
    text = json.dumps({"weight_map": weight_map})
    return written("model.safetensors.index.json", text)


def normalizer(*steps: dict[str, Any]) -> Change:
    return tokenizer(lambda c: c.update(normalizer={"type": "Sequence", "normalizers": steps}))


def decoder(*steps: dict[str, Any]) -> Change:
    return tokenizer(lambda c: c.update(decoder={"type": "Sequence", "decoders": steps}))


def replace(found: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: found}, "content": content}


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "NFC"}
    for _ in range(depth):
        inner = {"type": "Sequence", "normalizers": [inner, inner] if depth < 20 else [inner]}
    return inner


def one_token(text: str = "token", number: int = 300) -> Change:
    return tokenizer(lambda c: c["model"]["vocab"].update({text: number}))


def added(count: int) -> Change:
    """Add many tokens to the tokenizer."""

    def change(content: dict[str, Any]) -> None:
        like = content["added_tokens"][0]
        more = [{**like, "id": 300 + n, "content": f"<{n}>"} for n in range(count)]
        content["added_tokens"] += more

    return tokenizer(change)


NESTED = "[" * 200_000
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

HOSTILE: dict[str, Change] = {
    # cut off
    "weights of 0 bytes": cut("model.safetensors", lambda n: 0),
    "weights cut in their length": cut("model.safetensors", lambda n: 7),
    "weights cut in their header": cut("model.safetensors", lambda n: 100),
    "weights cut in the middle": cut("model.safetensors", lambda n: n // 2),
    "weights cut by a byte": cut("model.safetensors", lambda n: n - 1),
    "weights with more behind": lambda f: (f / "model.safetensors").open("ab").write(b"more"),
    "no weights": unlink("model.safetensors"),
    "config cut": cut("config.json", lambda n: n // 2),
    "tokenizer cut": cut("tokenizer.json", lambda n: n // 2),
    "tokenizer's config cut": cut("tokenizer_config.json", lambda n: n - 1),
    "a shard that is not there": index(
        {"a": "model.safetensors", "b": "model-00001-of-00002.safetensors"}
    ),
    "an index that leads out": index({"a": "model.safetensors", "b": "../../../../etc/passwd"}),
    "an index of nothing": index([]),
    # headers
    "a header as long as can be said": written("model.safetensors", b"\xff" * 64),
    "a header of 90 MB that is not there": written(
        "model.safetensors", struct.pack("<Q", 90_000_000) + b"{}"
    ),
    "a header that is not JSON": written("model.safetensors", struct.pack("<Q", 8) + b"not json"),
    "a header nested without end": written(
        "model.safetensors", struct.pack("<Q", len(NESTED)) + NESTED.encode()
    ),
    "a header that is a list": written("model.safetensors", struct.pack("<Q", 2) + b"[]"),
    "offsets below zero": header(moved(-64)),
    "offsets past the end": header(moved(1 << 40)),
    "offsets that overlap": header(lambda t: t[first(t)].update(data_offsets=[0, 64])),
    "a type that there is not": header(lambda t: t[first(t)].update(dtype="F1024")),
    "a shape below zero": header(lambda t: t[first(t)].update(shape=[-4, -4])),
    "a shape beyond all memory": header(lambda t: t[first(t)].update(shape=[1 << 40, 1 << 40])),
    "a shape of text": header(lambda t: t[first(t)].update(shape=["many"])),
    # shapes and numbers
    "a tensor too few": weights(lambda a: a.pop(first(a, "q_proj"))),
    "a tensor too many": weights(lambda a: a.update({"model.evil": mx.zeros(4)})),
    "a tensor turned round": weights(
        lambda a: a.update({first(a, "up_proj"): a[first(a, "up_proj")].T})
    ),
    "a tensor of other rows": weights(
        lambda a: a.update({first(a, "embed"): a[first(a, "embed")][:7]})
    ),
    "a layer too few": config(num_hidden_layers=4),
    "weights that are not numbers": filled(float("nan")),
    "one weight that is not a number": weights(one_nan),
    "weights without end": filled(float("inf"), "norm"),
    "embeddings that are not numbers": filled(float("nan"), "embed"),
    # configurations
    "no architecture": config(model_type=None),
    "an architecture that is not known": config(model_type="evil"),
    "an architecture that is a path": config(model_type="../../../evil"),
    "an architecture that is not a model": config(model_type="cache"),
    "an architecture whose module ends the program": config(model_type="olmo"),
    "ten million layers": config(num_hidden_layers=10_000_000),
    "layers by another name": config(
        model_type="gpt2",
        n_layer=10_000_000,
        n_ctx=64,
        n_embd=64,
        n_head=2,
        n_positions=64,
        layer_norm_epsilon=1e-5,
    ),
    "layers below zero": config(num_hidden_layers=-1),
    "no heads": config(num_attention_heads=0),
    "heads of text": config(num_attention_heads="many"),
    "a width beyond all memory": config(hidden_size=1 << 40),
    "a context beyond all numbers": config(max_position_embeddings="1" * 5000),
    "quantised to text": config(quantization="evil"),
    "a config that is a list": written("config.json", "[]"),
    "a config nested without end": written("config.json", NESTED),
    "a config of 20 GB": sparse("config.json", 20_000_000_000),
    # code
    "code for the model": also(modules, config(model_file="evil.py")),
    "code by name": also(modules, config(auto_map={"AutoModelForCausalLM": "modeling.Evil"})),
    "code for the tokenizer": also(
        modules,
        json_of("tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization.Evil", None]}),
    ),
    "a parser of tools from elsewhere": also(
        modules, json_of("tokenizer_config.json", tool_parser_type="..models.evil")
    ),
    "a template from elsewhere": also(
        modules, json_of("tokenizer_config.json", chat_template_type="evil.evil")
    ),
    "pickles in the name of weights": pickled,
    "pickles only": only_pickles,
    # templates
    "a template that never ends": template(LOOP),
    "a template that fills the memory": template("{{ 'x' * 10 ** 11 }}"),
    "a template that counts for ever": template("{{ 10 ** 10 ** 10 }}"),
    "a template that doubles": template(
        "{% set n = namespace(x='xx') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}"
        "{% endfor %}{{ n.x }}"
    ),
    "a template that leaves its sandbox": template(
        "{{ messages.__class__.__mro__[1].__subclasses__()[0] }}"
    ),
    "a template that opens files": template("{% include '/etc/passwd' %}"),
    "a template that is none": template("{% for %}"),
    "a template of 20 GB": sparse("chat_template.jinja", 20_000_000_000),
    "a template that leaves messages out": template("nothing"),
    # tokenizers
    "a tokenizer of another kind": written("tokenizer.json", '{"model": {"type": "evil"}}'),
    "a tokenizer that is a list": written("tokenizer.json", "[1, 2]"),
    "a tokenizer of three million lists": written(
        "tokenizer.json", "[" + "[]," * 3 * 10**6 + "[]]"
    ),
    "another file of three million lists": written(
        "special_tokens_map.json", '{"a": [' + "[]," * 3 * 10**6 + "[]]}"
    ),
    "a tokenizer of 20 GB": sparse("tokenizer.json", 20_000_000_000),
    "merges of what is not there": tokenizer(
        lambda c: c["model"].update(merges=["nothing here", "at all"])
    ),
    "tokens that the model has not": tokenizer(high_token),
    "a normaliser of a million characters": normalizer(replace("e", "x" * 1_000_000)),
    "a normaliser that doubles forty times": normalizer(*[replace("e", "ee")] * 40),
    "a normaliser that doubles by a pattern": normalizer(*[replace("e", "ee", "Regex")] * 40),
    "a normaliser that writes before each character": normalizer(replace("", "x" * 5000, "Regex")),
    "a normaliser of bytes of bytes": normalizer(*[{"type": "ByteLevel"}] * 40),
    "a normaliser that prepends": normalizer(*[{"type": "Prepend", "prepend": "x" * 500}] * 2),
    "a normaliser of 100,000 steps": normalizer(*[replace("e", "f")] * 100_000),
    "a normaliser of normalisers": normalizer(nested(16)),
    "a normaliser that goes deep": normalizer(nested(110)),
    "a normaliser with a broken map": normalizer(
        {"type": "Precompiled", "precompiled_charsmap": "AAAA////"}
    ),
    "a decoder of a million characters": decoder(replace("e", "x" * 1_000_000)),
    "a decoder that doubles forty times": decoder(*[replace("e", "ee")] * 40),
    "a decoder with a pattern": decoder(replace("(e+)+$", "e", "Regex")),
    "a token of ten million characters": one_token("x" * 10_000_000),
    "a token numbered beyond all memory": one_token(number=(1 << 32) - 1),
    "a token numbered below zero": one_token(number=-1),
    "an added token beyond all memory": tokenizer(
        lambda c: c["added_tokens"][0].update(id=(1 << 32) - 1)
    ),
    "a list of tokens of 20 GB": sparse("vocab.json", 20_000_000_000),
    # links
    "weights that are a device": linked("model.safetensors", "/dev/zero"),
    "a config that is a device": linked("config.json", "/dev/zero"),
    "a config that is somebody's file": linked("config.json", "/etc/passwd"),
    "a tokenizer that is somebody's file": linked("tokenizer.json", "/etc/passwd"),
    "weights that are somebody's file": linked("model.safetensors", "/etc/passwd"),
    "a link to itself": linked("config.json", "config.json"),
    "a link to nothing": linked("model.safetensors", "../nothing"),
    "a config that is a pipe": also(
        unlink("config.json"), lambda folder: os.mkfifo(folder / "config.json")
    ),
    "weights that are a folder": also(
        unlink("model.safetensors"), lambda folder: (folder / "model.safetensors").mkdir()
    ),
}


# An endless template is stopped after one second, on a busy machine later.
SECONDS = 15.0 * PATIENCE
HELLO = (Message(Role.USER, "Hello?"),)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.save(tmp_path_factory.mktemp("sound") / "model")
    assert refusal(folder) is None  # also: all that is imported once
    return folder


def refusal(target: Path) -> str | None:
    """The message of the failure between naming a folder and building a prompt; None if there is
    none."""
    try:
        load = resolve_pair(str(target))
        load_pair(load).prompts.build(HELLO)
    except UserError as error:
        return str(error)
    except EngineFailure as error:
        return wording.failure(error.failure).sentence
    return None


def check_sentence(sentence: str | None) -> None:
    assert sentence is not None, "nothing was wrong with it"
    assert sentence.isprintable()
    assert len(sentence) < 600
    assert re.match(r"[A-Z'\"]", sentence)
    assert "Traceback" not in sentence
    assert "root:" not in sentence  # of /etc/passwd


def test_there_are_enough_hostile_folders() -> None:
    assert len(HOSTILE) >= 40


LONG = ("a template that never ends", "a template that doubles", "a normaliser of 100,000 steps")
"""These reach limits that the tests of templates and of the limited process reach, too."""


@table("name", [name for name in HOSTILE if name not in LONG])
def test_a_hostile_folder_is_refused_with_one_sentence(
    sound: Path, tmp_path: Path, name: str
) -> None:
    check_refused(sound, tmp_path, name)


@pytest.mark.slow
@table("name", LONG)
def test_a_folder_that_takes_long_is_refused_with_one_sentence(
    sound: Path, tmp_path: Path, name: str
) -> None:
    check_refused(sound, tmp_path, name)


def check_refused(sound: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / "model"
    shutil.copytree(sound, folder)
    HOSTILE[name](folder)
    began = time.monotonic()
    said = refusal(folder)
    assert time.monotonic() - began < SECONDS
    check_sentence(said)
    assert not (folder.parent / MARK).exists()


def test_modules_in_a_models_folder_are_not_run(sound: Path, tmp_path: Path) -> None:
    """A folder that does not request them can be used."""
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    modules(folder)
    assert refusal(folder) is None
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize("end", [99_999, -1, [258, 99_999]])
def test_a_library_says_nothing_on_the_terminal(
    sound: Path, tmp_path: Path, end: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sound, tmp_path / "model")
    config(eos_token_id=end)(tmp_path / "model")
    assert refusal(tmp_path / "model") is None
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("what", ["vocab", "merges", "added_tokens"])
def test_a_draft_of_another_tokenizer_is_foreign(sound: Path, tmp_path: Path, what: str) -> None:
    folder = tmp_path / "draft"
    shutil.copytree(sound, folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    if what == "vocab":
        vocabulary = content["model"]["vocab"]
        one, other = list(vocabulary)[:2]
        vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    elif what == "merges":
        content["model"]["merges"] = [*content["model"]["merges"], ["a", "b"]]
    else:
        content["added_tokens"][0]["content"] = "<|other|>"
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert resolve_pair(str(sound), str(folder)).foreign_draft
    assert not resolve_pair(str(sound), str(sound)).foreign_draft
