"""The app, whose first process loses the GPU when it reads.

python tests/e2e/lost_gpu_screen.py [FILE...]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.cli.main import run
from app.cli.supervisor import current_supervisor


def lose(*args: Any, **_: Any) -> None:
    raise RuntimeError(
        "[METAL] Command buffer execution failed: Ignored (for causing prior/excessive GPU errors)"
        " (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)."
    )


def note_step(*args: Any, **named: Any) -> None:
    """Into a file in the data folder: the tokens of a step."""
    from app.engine.cache.prefill import prefill

    Path(os.environ["XDG_DATA_HOME"], "step").write_text(str(args[4].tokens))
    prefill(*args, **named)


if __name__ == "__main__":
    parent = current_supervisor()
    if parent is not None:
        from app.engine.cache import prefix_cache

        prefix_cache.prefill = note_step if parent.restarted else lose
    sys.exit(run(sys.argv[1:]))
