"""The app, whose first process loses the GPU when it reads.

python tests/e2e/lost_gpu_screen.py [FILE...]
"""

from __future__ import annotations

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


if __name__ == "__main__":
    parent = current_supervisor()
    if parent is not None and not parent.restarted:
        from app.engine import prefix_cache

        prefix_cache.prefill = lose
    sys.exit(run(sys.argv[1:]))
