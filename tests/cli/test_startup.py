"""What the app imports before its first frame, which waits for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.cli.main import run

LATER = {
    "the parent": (
        "import app.__main__, app.cli.main, app.cli.streams, app.cli.run_app",
        ["app.settings", "app.crash", "app.paths", "dataclasses", "logging", "tempfile", "textual"],
    ),
    "the app": (
        "import app.ui.app, app.cli.inner_server, app.cli.hosts, app.chat.shared_engine\n"
        "import app.engine.engine",
        [
            "mlx",
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


@pytest.mark.parametrize("endpoint", ["https://x:99999", "https://x:abc", "https://[::1"])
def test_an_endpoint_that_is_no_address(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "huggingface_hub.constants", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert run(["models", "list"]) == 2
    refused = capsys.readouterr().err
    assert refused.startswith("specchat: The variables for Hugging Face's hub cannot be used (")
    assert refused.count("\n") == 1
