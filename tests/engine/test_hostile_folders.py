"""Whatever a model's folder holds: one sentence, soon, and nothing of it is run."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest

from app.chat import wording
from app.chat.model_pairs import resolve_pair
from app.engine.pair_loader import load_pair
from app.errors import UserError
from app.protocol.prompt import Message, Role
from app.protocol.reasons import EngineFailure
from tests import tiny
from tests.engine.hostile import HOSTILE, MARK, modules

SECONDS = 15.0  # an endless template is given up after one, on a busy machine later
HELLO = (Message(Role.USER, "Hello?"),)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.save(tmp_path_factory.mktemp("sound") / "model")
    assert refusal(folder) is None  # also: all that is imported once
    return folder


def refusal(target: Path) -> str | None:
    """What is said on the way from a folder's name to a prompt for it."""
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


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) >= 40


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_is_one_sentence(sound: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    HOSTILE[name](folder)
    began = time.monotonic()
    said = refusal(folder)
    assert time.monotonic() - began < SECONDS
    check_sentence(said)
    assert not (tmp_path / MARK).exists()


def test_modules_beside_a_model_are_not_run(sound: Path, tmp_path: Path) -> None:
    """One that asks for none of them can be used."""
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    modules(folder)
    assert refusal(folder) is None
    assert not (tmp_path / MARK).exists()


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
