"""`specchat install-launcher`: what it writes on macOS and on Linux, and that it takes it away."""

from __future__ import annotations

import os
import plistlib
import shlex
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli.main import run
from app.errors import UserError
from app.extras import launcher
from app.extras.launcher import (
    Launcher,
    for_linux,
    for_mac,
    own_program,
    remove_launcher,
    write_launcher,
)

Kind = Callable[[Path, Path], Launcher]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """One with a name that shells and specifications take for more than a name."""
    path = tmp_path / 'it\'s a $HOME "100%" `x`' / "specchat"
    path.parent.mkdir()
    path.write_text('#!/bin/sh\necho "opened $#"\n')
    path.chmod(0o755)
    return path


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", [for_mac, for_linux])
def test_written_twice_and_taken_away(tmp_path: Path, program: Path, kind: Kind) -> None:
    place = tmp_path / "place"
    made = kind(place, program)
    write_launcher(made)
    write_launcher(made)
    assert files_below(place) == set(made.files)
    assert all(os.access(path, os.X_OK) == (path in made.programs) for path in made.files)
    assert remove_launcher(made)
    assert files_below(place) == set()
    assert not made.shown.exists()
    assert not remove_launcher(made)


@pytest.mark.parametrize("kind", [for_mac, for_linux])
def test_what_others_wrote_stays(tmp_path: Path, program: Path, kind: Kind) -> None:
    made = kind(tmp_path / "place", program)
    made.marked.parent.mkdir(parents=True)
    made.marked.write_text("somebody else's")
    for act in (write_launcher, remove_launcher):
        with pytest.raises(UserError, match="was not written by specchat"):
            act(made)
    assert made.marked.read_text() == "somebody else's"
    assert files_below(tmp_path / "place") == {made.marked}


def test_a_folder_that_cannot_be_written(tmp_path: Path, program: Path) -> None:
    (tmp_path / "place").write_text("a file")
    with pytest.raises(UserError, match="cannot be changed"):
        write_launcher(for_mac(tmp_path / "place", program))


def test_the_bundle(tmp_path: Path, program: Path) -> None:
    made = for_mac(tmp_path / "with space", program)
    write_launcher(made)
    contents = made.shown / "Contents"
    information = plistlib.loads((contents / "Info.plist").read_bytes())
    start = contents / "MacOS" / information["CFBundleExecutable"]
    assert (contents / "Resources" / information["CFBundleIconFile"]).is_file()
    # It asks Terminal to run a script that is there, and the script runs specchat.
    *words, script = shlex.split(
        start.read_text().splitlines()[1].replace("${0%/*}", str(start.parent))
    )
    assert words == ["exec", "/usr/bin/open", "-a", "Terminal"]
    done = subprocess.run(
        [script], capture_output=True, text=True, env={**os.environ, "TERM": "xterm"}
    )
    assert done.stdout.endswith("opened 0\n")


def test_the_desktop_entry(tmp_path: Path, program: Path) -> None:
    made = for_linux(tmp_path, program)
    lines = made.files[made.shown].decode().splitlines()
    entry = dict(line.split("=", 1) for line in lines[1:])
    assert lines[0] == "[Desktop Entry]"
    assert entry["Terminal"] == "true"
    assert (tmp_path / f"icons/hicolor/scalable/apps/{entry['Icon']}.svg") in made.files
    # Read back as the specification says: escapes of values, then of quotes, then of fields.
    value = entry["Exec"].replace("\\\\", "\\")
    assert value[0] == value[-1] == '"'
    unquoted = ""
    characters = iter(value[1:-1])
    for character in characters:
        unquoted += next(characters) if character == "\\" else character
    assert unquoted.replace("%%", "%") == str(program)


def test_the_program_as_it_was_called(tmp_path: Path, program: Path) -> None:
    link = tmp_path / "specchat"
    link.symlink_to(program)
    assert own_program(str(link)) == link  # not where it leads today
    beside = str(program.with_name("python"))
    assert own_program(str(tmp_path / "__main__.py"), beside) == program
    with pytest.raises(UserError, match="not installed"):
        own_program(str(tmp_path / "__main__.py"), str(tmp_path / "bin" / "python"))


def test_the_command(
    home: Path, program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setattr(sys, "platform", "darwin")
    shown = home / "Applications" / "specchat.app"
    assert run(["install-launcher"]) == 0
    out = capsys.readouterr().out
    assert str(shown) in out
    assert "--remove" in out
    assert shown.is_dir()
    assert run(["install-launcher", "--remove"]) == 0
    assert capsys.readouterr().out == f"Removed {shown}.\n"
    assert run(["install-launcher", "--remove"]) == 0
    assert "no launcher" in capsys.readouterr().out
    monkeypatch.setattr(sys, "platform", "win32")
    assert run(["install-launcher"]) == 2


def test_on_linux_it_goes_where_desktops_look(
    home: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(program)])
    made = launcher._launcher("linux")
    assert made.shown == home / "data" / "applications" / "specchat.desktop"


def test_the_icons_are_pictures() -> None:
    files = {**for_linux(Path(), Path()).files, **for_mac(Path(), Path()).files}
    icons = {path.suffix: data for path, data in files.items() if path.stem == "specchat"}
    assert ElementTree.fromstring(icons[".svg"]).tag.endswith("svg")
    data = icons[".icns"]
    assert struct.unpack(">I", data[4:8])[0] == len(data)
    at, kinds = 8, []
    while at < len(data):
        kind, length = data[at : at + 4], struct.unpack(">I", data[at + 4 : at + 8])[0]
        assert data[at + 8 : at + 16] == b"\x89PNG\r\n\x1a\n"
        kinds.append(kind)
        at += length
    assert (at, kinds) == (len(data), [b"ic08", b"ic09", b"ic10"])
