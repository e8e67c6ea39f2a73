"""Reading a file or a folder for a chip."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from app.ingest.limits import ReadLimits
from app.ingest.records import ReadProgress
from app.ui.attach.attachment import Attachment, make_attachment
from app.util import formatting


@dataclass(eq=False)
class FileJob:
    """`typed` goes back into the compose box if the file cannot be read."""

    path: str
    typed: str
    limits: ReadLimits = field(default_factory=ReadLimits)
    progress: ReadProgress | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        return os.path.basename(self.path.rstrip("/")) or self.path

    @property
    def facts(self) -> str:
        progress, parts = self.progress, ["reading"]
        if progress is not None and progress.files:
            parts += [formatting.plural(progress.files, "file"), formatting.size(progress.size)]
        if progress is not None and progress.pages:
            parts.append(progress.page_text)
        return " · ".join(parts)

    def run(self) -> Attachment:
        """Read it; on a thread. Raises IngestError and Cancelled."""
        from app.ingest.reader import read  # slow to import: not before the first frame

        gathered = read(
            [self.path],
            limits=self.limits,
            progress=self._on_progress,
            cancelled=self.cancelled.is_set,
        )
        (intake,) = gathered.results
        return replace(
            make_attachment(intake.documents),
            skipped=intake.skipped,
            doubtful=tuple(each for each in intake.files if each.doubtful),
        )

    def _on_progress(self, progress: ReadProgress) -> None:
        self.progress = progress


ReadFile = Callable[[FileJob], Attachment]
"""`FileJob.run`, or a fake in tests."""
