"""What the app imports before its first frame, which waits for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.cli.main import run

LATER = {
    "the parent": (
        "import app.__main__, app.cli.main, app.cli.terminal, app.cli.run_app",
        [
            *("app.settings", "app.cli.logs", "app.paths"),
            *("dataclasses", "logging", "tempfile", "textual"),
        ],
    ),
    "the help": (
        "from app.cli.main import parser; parser().format_help()",
        ["app.protocol", "app.engine", "app.models", "app.cli.settings", "dataclasses", "textual"],
    ),
    "the app": (
        "import app.ui.app, app.cli.inner_server, app.cli.hosts, app.cli.run_app\n"
        "import app.engine.engine, app.hosts.hostfile",
        [
            "mlx",
            "mlx_lm",
            "numpy",
            "transformers",
            "tokenizers",
            "fastapi",
            "uvicorn",
            "pypdf",
            "huggingface_hub",
        ],
    ),
}


@pytest.mark.parametrize("who", LATER)
def test_what_is_slow_to_import_is_imported_after_the_first_frame(who: str) -> None:
    imports, later = LATER[who]
    code = f"{imports}\nimport sys\nprint(*(each for each in {later} if each in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("HF_ENDPOINT", f"https://{each}") for each in ("x:99999", "x:abc", "[::1")),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "soon"),
    ],
)
def test_a_variable_that_the_hub_library_cannot_parse(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert run(["models", "list"]) == 2
    refused = capsys.readouterr().err
    assert refused.startswith(f"specchat: {name} cannot be used (")
    assert refused.count("\n") == 1
