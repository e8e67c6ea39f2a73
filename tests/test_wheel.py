"""The wheel holds all that the program needs: built, installed by what people install with, started
and asked in an empty place, and taken away again."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.terminal import Terminal, own_folders
from benchmarks.ui import READY

ROOT = Path(__file__).resolve().parent.parent
TEXT = ROOT / "assets" / "demo" / "gpl-3.0.txt"
QUESTION = 'What does it say of "Corresponding Source"?'
SHARED = {
    "share/man/man1/specchat.1",
    "share/bash-completion/completions/specchat",
    "share/zsh/site-functions/_specchat",
    "share/fish/vendor_completions.d/specchat.fish",
}

pytestmark = pytest.mark.slow


def run(command: Sequence[object], environment: dict[str, str] | None = None) -> str:
    """Standard output of a command that must succeed, without this checkout on its path."""
    known = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(each) for each in command],
        cwd=Path(sys.prefix),
        env=known | (environment or {}),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a source distribution, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--outdir", folder, ROOT])
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("specchat-*.whl")
    return found


def test_what_the_wheel_holds(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "app/assets/demo/gpl-3.0.txt" in names
    assert {"app/assets/icon/specchat.svg", "app/assets/icon/specchat.icns"} <= names
    for model in ("target", "draft"):
        assert f"app/assets/pair/{model}/model.safetensors" in names
    assert "app/models/catalog.toml" in names
    assert any(name.endswith(".tcss") for name in names)
    version = wheel.name.split("-")[1]
    own = f"specchat-{version}"
    assert {name.split("/")[0] for name in names} == {"app", f"{own}.dist-info", f"{own}.data"}
    data = f"{own}.data/data/"
    assert {name.removeprefix(data) for name in names if name.startswith(data)} == SHARED
    assert not [name for name in names if "recipe" in name or "__pycache__" in name]


def test_what_the_source_distribution_holds(built: Path) -> None:
    (archive,) = built.glob("specchat-*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    for name in ("Makefile", "requirements.lock", "packaging/lock.py", "tests/test_wheel.py"):
        assert name in names
    assert not [name for name in names if name.startswith((".venv", "dist/"))]


# --------------------------------------------------------------------------- installers


@dataclass
class Place:
    """An empty environment: where things are installed, what is run, and under which variables."""

    root: Path
    python: Path
    """Of an environment that has pipx and uv."""
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The user's settings for installers stay in force: they say where packages come from.
        self.environment = {
            "PIPX_HOME": str(self.root / "kept"),
            "PIPX_BIN_DIR": str(self.root / "bin"),
            "PIPX_MAN_DIR": str(self.root / "man"),
            "UV_TOOL_DIR": str(self.root / "kept"),
            "UV_TOOL_BIN_DIR": str(self.root / "bin"),
            "UV_LINK_MODE": "copy",
            "UV_PYTHON_DOWNLOADS": "never",
        }

    def run(self, *command: object) -> str:
        return run(command, self.environment)

    def left(self) -> list[str]:
        """Files that tell of specchat, but for an empty lock that pipx leaves of everything."""
        kept = [path for path in self.root.rglob("*") if path.is_file() or path.is_symlink()]
        return [
            str(path)
            for path in kept
            if "specchat" in str(path.relative_to(self.root)) and path.name != ".specchat.lock"
        ]


def pip(place: Place, wheel: Path) -> Path:
    place.run(sys.executable, "-m", "venv", place.root / "env")
    place.run(place.root / "env/bin/python", "-m", "pip", "install", "--quiet", wheel)
    for name in SHARED:
        assert (place.root / "env" / name).is_file()
    return place.root / "env" / "bin" / "specchat"


def pipx(place: Place, wheel: Path) -> Path:
    place.run(place.python, "-m", "pipx", "install", "--python", sys.executable, wheel)
    assert (place.root / "man" / "man1" / "specchat.1").exists()
    return place.root / "bin" / "specchat"


def uv(place: Place, wheel: Path) -> Path:
    place.run(place.python, "-m", "uv", "tool", "install", "--python", sys.executable, wheel)
    return place.root / "bin" / "specchat"


Install = Callable[[Place, Path], Path]
"""Installs the wheel, and returns the program."""
INSTALLERS: dict[str, tuple[Install, tuple[str, ...]]] = {
    "pip": (pip, ("pip", "uninstall", "--yes", "specchat")),
    "pipx": (pipx, ("pipx", "uninstall", "specchat")),
    "uv": (uv, ("uv", "tool", "uninstall", "specchat")),
}
"""And with which words of a Python module it goes."""


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with pipx and uv."""
    folder = tmp_path_factory.mktemp("tools")
    run([sys.executable, "-m", "venv", folder])
    run([folder / "bin/python", "-m", "pip", "install", "--quiet", "pipx", "uv"])
    return folder / "bin" / "python"


@pytest.mark.parametrize("installer", INSTALLERS)
def test_installed_it_starts_answers_and_goes(
    installer: str, wheel: Path, tools: Path, tmp_path: Path
) -> None:
    place = Place(tmp_path / "place", tools)
    place.root.mkdir()
    install, uninstall = INSTALLERS[installer]
    specchat = install(place, wheel)

    assert f"specchat {wheel.name.split('-')[1]}" in place.run(specchat, "--version")
    own = own_folders(tmp_path / "user")
    answer = run([specchat, "ask", "--conversation", "new", "-f", TEXT, QUESTION], own)
    assert "Corresponding Source" in answer
    assert "No problems found." in run([specchat, "doctor"], own)
    _starts(specchat, own)

    python = place.root / "env/bin/python" if install is pip else place.python
    place.run(python, "-m", *uninstall)
    assert not list(place.root.glob("env/lib/*/site-packages/app"))
    assert place.left() == []
    assert list((tmp_path / "user").rglob("conversations.db"))  # what was asked is the user's


def _starts(specchat: Path, own: dict[str, str]) -> None:
    """In a terminal it draws itself."""
    known = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with Terminal([str(specchat)], {**known, **own, "TERM": "xterm-256color"}) as terminal:
        terminal.wait_for(READY)
