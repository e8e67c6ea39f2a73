"""Every package of the Homebrew formula is one that requirements.lock names."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import formula
import lock
import pytest
import wheels

from tests.tables import table

PACKAGES: list[dict[str, Any]] = json.loads(wheels.FILE.read_text(encoding="utf-8"))
PINS = {pin.name: pin for pin in lock.read() if pin.holds_in(lock.MAC)}
FOR_THIS_MAC = re.compile(
    r"-(?:none-any"
    r"|(?:cp313-cp313|cp3\d+-abi3|py3-none)-macosx_(?:1[0-5]|26)_\d+_(?:arm64|universal2))\.whl$"
)
AGAIN = "run `python packaging/wheels.py`"


def test_all_that_a_mac_needs_and_nothing_else() -> None:
    lines = {each["name"]: each["requires"] for each in PACKAGES}
    wanted: Any = lock.project()["dependencies"]
    assert set(lines) == set(lock.closure(wanted, lines.__getitem__, lock.MAC)), AGAIN


@table("package", PACKAGES)
def test_version_and_hashes_are_the_locks(package: dict[str, Any]) -> None:
    pin = PINS[package["name"]]
    assert package["version"] == pin.version, AGAIN
    assert package["files"]
    for file in package["files"]:
        assert file["sha256"] in pin.hashes, AGAIN
        assert FOR_THIS_MAC.search(file["file"]), file["file"]
        assert file["file"].split("-")[1] == pin.version
        assert re.fullmatch("[0-9a-f]{64}", file["blake2b"])


@pytest.mark.parametrize(
    "name", ["x-1-cp312-cp312-macosx_14_0_arm64.whl", "x-1-cp313-cp313-macosx_14_0_x86_64.whl"]
)
def test_other_wheels_are_told_apart(name: str) -> None:
    assert not FOR_THIS_MAC.search(name)


@pytest.fixture
def text(tmp_path: Path) -> str:
    wheel = tmp_path / "specchat-1.2.3-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    return formula.formula(wheel, "https://example.org/v1.2.3", "https://example.org")


def test_the_formula_is_of_this_wheel(text: str) -> None:
    assert 'url "https://example.org/v1.2.3/specchat-1.2.3-py3-none-any.whl"' in text
    assert f'sha256 "{hashlib.sha256(b"a wheel").hexdigest()}"' in text
    assert 'version "1.2.3"' in text
    assert '"python@3.13"' in text


def test_the_formula_names_every_file_once(text: str) -> None:
    files = [file for package in PACKAGES for file in package["files"]]
    named = re.findall(r'url "(\S+)", using: :nounzip\n\s+sha256 "([0-9a-f]{64})"', text)
    assert named == [(formula.url(file), file["sha256"]) for file in files]
    assert re.findall(r'resource "(\S+)" do', text) == [each["name"] for each in PACKAGES]
    # Blocks begin and end: no Ruby is at hand here.
    openings = re.findall(r"^class |^\s*def |\bdo( \|\w+\|)?$", text, re.M)
    assert len(openings) == len(re.findall(r"^\s*end$", text, re.M))


def test_mlx_comes_as_it_was_built_for_each_macos(text: str) -> None:
    metal = text[text.index('resource "mlx-metal"') :]
    metal = metal[: metal.index("\n  end")]
    assert re.findall(r"on_\w+(?: :or_newer)?", metal) == [
        "on_sonoma",
        "on_sequoia",
        "on_tahoe :or_newer",
    ]
