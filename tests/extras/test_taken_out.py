"""specchat without one of its extras."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.extras import EXTRAS, SERVE, Extra
from tests.extras import taken_out

APP = taken_out.ROOT / "app"
SENTENCES = {
    "serve": "This specchat cannot serve models to other programs: install specchat with its extra"
    " `serve`.",
    "hosts": "This specchat cannot spread a model over several machines: install specchat with its"
    " extra `hosts`.",
    "gguf": "This specchat cannot convert GGUF files: install specchat with its extra `gguf`.",
    "ocr": "No text recognition is installed: install specchat with its extra `ocr`.",
    "launcher": "This specchat cannot add itself to the applications menu: install specchat with"
    " its extra `launcher`.",
}


def tree_without(extra: Extra, folder: Path) -> Path:
    """A tree of links to the app's packages, with all extras but one."""
    extras = folder / "app" / "extras"
    extras.mkdir(parents=True)
    for path in (*APP.iterdir(), *(APP / "extras").iterdir()):
        if path.stem not in ("extras", "__pycache__", extra.name):
            (folder / path.relative_to(APP.parent)).symlink_to(path)
    return folder


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("home")
    arguments = []
    for extra in EXTRAS:
        arguments += [str(tree_without(extra, home / extra.name)), extra.name]
    folders = {f"XDG_{name}_HOME": str(home / name) for name in ("CACHE", "CONFIG", "DATA")}
    done = subprocess.run(
        [sys.executable, taken_out.__file__, *arguments],
        cwd=home,
        env={**os.environ, "HOME": str(home), **folders},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)
    return results


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra.name)
def test_everything_else_runs_and_what_is_gone_says_so(extra: Extra, found: dict[str, Any]) -> None:
    result = found[extra.name]
    modules = {name.removeprefix("app.extras.").partition(".")[0] for name in result["modules"]}
    assert extra.name not in modules
    assert {"app.ui.app", "app.cli.run_app"} <= {*result["modules"]}
    status, help_text = result["help"]
    listed = {line.split()[0] for line in help_text.splitlines() if line.startswith("    ")}
    for other in EXTRAS:
        assert listed.isdisjoint(other.commands) == (other is extra or not other.commands)
        assert (other.name in modules) == (other is not extra)
    assert status == 0
    for status, said in result["uses"]:
        assert (status, said) == (2, f"specchat: {SENTENCES[extra.name]}\n")
    assert (result["app"] == SENTENCES["serve"]) == (extra is SERVE)
    assert {*result["loaded"]} <= {"app.extras.serve", "app.extras.serve.inner_server"}
