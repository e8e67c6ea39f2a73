"""The wheel holds all that the program needs: built, installed and asked in an empty place."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)], folder)
    (built,) = folder.glob("specchat-*.whl")
    return built


def run(command: list[str], folder: Path) -> str:
    """Standard output of a command that must succeed, without this checkout on its path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


def test_what_the_wheel_holds(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "app/assets/demo/gpl-3.0.txt" in names
    for model in ("target", "draft"):
        assert f"app/assets/pair/{model}/model.safetensors" in names
    assert "app/models/catalog.toml" in names
    assert any(name.endswith(".tcss") for name in names)
    roots = {name.split("/")[0] for name in names}
    assert roots == {"app", next(root for root in roots if root.endswith(".dist-info"))}
    assert not [name for name in names if "recipe" in name or "__pycache__" in name]


def test_an_installed_wheel_answers(wheel: Path, tmp_path: Path) -> None:
    run([sys.executable, "-m", "venv", "env"], tmp_path)
    binaries = tmp_path / "env" / "bin"
    run([str(binaries / "python"), "-m", "pip", "install", "--quiet", str(wheel)], tmp_path)
    text = ROOT / "assets" / "demo" / "gpl-3.0.txt"
    question = 'What does it say of "Corresponding Source"?'
    answer = run([str(binaries / "specchat"), "ask", "-f", str(text), question], tmp_path)
    assert "Corresponding Source" in answer
    run([str(binaries / "specchat"), "doctor"], tmp_path)
