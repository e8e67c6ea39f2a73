"""What the models screen says and allows of a model, without the screen."""

from __future__ import annotations

from pathlib import Path

from app.models.cache import Installed
from app.protocol.commands import Load
from app.ui.models.details import PairStatus
from tests.tables import table

SNAPSHOTS = Path("/cache/models--org--tiny/snapshots")
INSTALLED = Installed("org/tiny", "new", SNAPSHOTS / "new", 3, 1, None)


@table(
    "loaded, whole, older",
    [
        (SNAPSHOTS / "new", True, False),
        (SNAPSHOTS / "old", True, True),
        (Path("/cache/models--org--other/snapshots/new"), False, False),
    ],
)
def test_a_commit_that_is_loaded_is_not_deleted(loaded: Path, whole: bool, older: bool) -> None:
    for load in (Load(str(loaded)), Load("/models/mine", str(loaded))):
        status = PairStatus(load)
        assert (status.uses(INSTALLED, older=False), status.uses(INSTALLED, older=True)) == (
            whole,
            older,
        )
