"""Whether the right file of a Python package comes first for a question: `-s` prints each rank.

The packages are those that the lock file installs. `PAGE` and `CANDIDATES` in `file_index.py` were
looked at on these questions, so they say what the ranking can do, not what it does elsewhere.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from app.engine.model.text_encoder import english_encoder
from app.engine.scorers.file_index import FileIndex
from app.ingest.limits import ReadLimits
from app.ingest.reader import read

pytestmark = pytest.mark.real

ROOM = 12_000
"""Characters, some 4,000 tokens of code: half of a context of 8,192."""
QUESTIONS = {
    "textual": {
        "How does a widget decide whether it can receive focus?": "widget.py|screen.py",
        "Where is bracketed paste parsed?": "_xterm_parser.py",
        "Which file draws the scroll bar?": "scrollbar.py",
        "How are key bindings stored and looked up?": "binding.py",
        "Where are CSS tokens split?": "css/tokenizer.py|css/tokenize.py",
        "How does the text area support undo?": "document/_history.py|_text_area.py",
        "What computes the layout of a grid?": "layouts/grid.py",
        "How are timers stopped when an app closes?": "timer.py|message_pump.py",
        "Where is the clipboard written with OSC 52?": "app.py",
        "How does fuzzy matching work in the command palette?": "fuzzy.py",
    },
    "huggingface_hub": {
        "How is a download resumed after a broken connection?": "file_download.py|utils/_http.py",
        "Where is the user's access token read from?": "utils/_auth.py|_login.py",
        "How are cached revisions deleted?": "utils/_cache_manager.py",
        "Which function uploads a folder in one commit?": "hf_api.py|_commit_api.py",
        "What happens when HF_HUB_OFFLINE is set?": "constants.py|utils/_http.py|errors.py",
        "How are file locks taken?": "utils/_fixes.py",
    },
    "pip": {
        "How does pip decide which wheel tags are compatible?": "tags.py|wheel.py",
        "Where are dependency conflicts reported to the user?": "resolver.py|factory.py",
        "How are hashes of requirements checked?": "utils/hashes.py|req_install.py",
        "Where is the progress bar drawn while downloading?": "progress_bars.py",
        "How is a virtual environment detected?": "virtualenv.py",
        "What does pip do when a cache folder is not owned by the current user?": (
            "base_command.py|filesystem.py|req_command.py"
        ),
    },
    "mlx_lm": {
        "How is the rotating cache trimmed?": "models/cache.py",
        "Where is repetition penalty applied?": "sample_utils.py",
        "How does speculative decoding accept draft tokens?": "generate.py",
        "Which quantisation recipe mixes 3 and 6 bits?": "convert.py",
        "How are LoRA adapters fused?": "fuse.py|tuner/lora.py",
    },
}


def test_the_right_file_is_among_those_that_fit() -> None:
    first = within = total = 0
    for package, questions in QUESTIONS.items():
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        found = read([str(Path(spec.origin).parent)], limits=ReadLimits(include_ignored=True))
        documents = [each for result in found.results for each in result.texts]
        index = FileIndex()
        index.extend(documents, lambda done: None)
        for question, right in questions.items():
            ranked, _ = index.rank(
                question, "", set(documents), english_encoder(), lambda done, total: None
            )
            endings = tuple(f"/{ending}" for ending in right.split("|"))
            place = next(
                (i for i, each in enumerate(ranked) if each.page.document.name.endswith(endings)),
                len(ranked),
            )
            before = sum(each.page.end - each.page.start for each in ranked[: place + 1])
            print(f"{place + 1:5} {package:16} {question}")
            total, first, within = total + 1, first + (place == 0), within + (before <= ROOM)
    print(f"{first} first, {within} within {ROOM:,} characters, of {total}")
    assert within >= 0.85 * total
