"""Downloads, checks and conversions on threads: they continue when the screen that started them
has closed, and post messages to the app."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

from textual.message import Message
from textual.message_pump import MessagePump

from app.errors import UserError
from app.models.cache import verify
from app.models.formats import ConversionStopped, Converted, gguf
from app.models.library import Library
from app.models.packaged import fetch_packaged, find_packaged
from app.models.progress import ByteProgress
from app.models.unfinished import discard
from app.util import formatting

MAX_DOWNLOADS = 2
"""Maximum number of downloads at a time. Each uses four connections, so more would be slower."""
JOIN_SECONDS = 3.0


class JobKind(StrEnum):
    DOWNLOAD = "download"
    CHECK = "check"
    CONVERSION = "conversion"


class JobState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    FAILED = "failed"
    DONE = "done"

    @property
    def ended(self) -> bool:
        return self in (JobState.PAUSED, JobState.FAILED, JobState.DONE)


@dataclass(eq=False)
class Job:
    """`message` says how it ended; `stop` ends what runs. `source` is the GGUF file to convert."""

    repository: str
    kind: JobKind
    source: Path | None = None
    state: JobState = JobState.WAITING
    progress: ByteProgress = field(default_factory=lambda: ByteProgress(0, 0, 0.0, None))
    message: str = ""
    stop: Callable[[], None] | None = None
    stop_requested: bool = False
    cancelled: bool = False

    @property
    def succeeded(self) -> bool:
        return self.state is JobState.DONE and not self.cancelled


class Jobs:
    """At most one job for each model. Every method may be called from the screen's thread, and
    returns at once."""

    class Progressed(Message):
        """Some progress was made. The next one comes after `mark_drawn`."""

    @dataclass
    class Ended(Message):
        job: Job

    def __init__(self, receiver: MessagePump, library: Callable[[], Library]) -> None:
        """`library` is called on the first job's thread."""
        self._receiver, self._library = receiver, library
        self._jobs: dict[str, Job] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()
        self._change_posted = self._closing = False

    # ------------------------------------------------------------------ from the screen's thread

    def all(self) -> list[Job]:
        """All jobs, in the order in which they were started."""
        with self._lock:
            return list(self._jobs.values())

    def find(self, repository: str) -> Job | None:
        with self._lock:
            return self._jobs.get(repository)

    def is_active(self, repository: str) -> bool:
        job = self.find(repository)
        return job is not None and not job.state.ended

    def start(self, repository: str, kind: JobKind = JobKind.DOWNLOAD) -> None:
        """Start a job or resume a paused one. Does nothing while the model has an active job."""
        self._add(Job(repository, kind))

    def convert(self, source: Path, title: str) -> None:
        """Convert a GGUF file. `title` names the model if the file's own name does not."""
        self._add(Job(gguf().repository_of(source, title), JobKind.CONVERSION, source))

    def _add(self, job: Job) -> None:
        with self._lock:
            if self.is_active(job.repository) or self._closing:
                return
            self._jobs.pop(job.repository, None)  # the last one started comes last
            self._jobs[job.repository] = job
            self._start_waiting()
        self._post_change()

    def pause(self, repository: str) -> None:
        """Stop, and leave what was downloaded on the disk."""
        with self._lock:
            job = self._jobs.get(repository)
            if job is not None and job.state is JobState.WAITING:
                job.state = JobState.PAUSED
            elif job is not None and job.state is JobState.RUNNING:
                job.stop_requested = True
                if job.stop is not None:
                    job.stop()
        self._post_change()

    def cancel(self, repository: str) -> None:
        """Stop, and delete what was downloaded."""
        with self._lock:
            job = self._jobs.get(repository)
            if job is not None and self.is_active(repository):
                job.cancelled = job.kind is not JobKind.CONVERSION  # of one, nothing is left
                self.pause(repository)
                if not job.cancelled:
                    return
            if not self.is_active(repository):
                self._jobs.pop(repository, None)
                self._run(lambda: self._discard(repository))

    def dismiss(self, repository: str) -> None:
        """Remove a job that has ended from the list."""
        with self._lock:
            if not self.is_active(repository):
                self._jobs.pop(repository, None)
        self._post_change()

    def mark_drawn(self) -> None:
        """Allow the next `Progressed`. Call it once the progress has been drawn."""
        self._change_posted = False

    def close(self) -> None:
        """Pause all, and wait until their state is on the disk."""
        with self._lock:
            self._closing = True
            for job in self._jobs.values():
                self.pause(job.repository)
            threads = list(self._threads)
        for thread in threads:
            thread.join(JOIN_SECONDS)

    # ------------------------------------------------------------------ on the jobs' threads

    def _start_waiting(self) -> None:
        running = sum(
            job.state is JobState.RUNNING and job.kind is JobKind.DOWNLOAD
            for job in self._jobs.values()
        )
        for job in self._jobs.values():
            if job.state is not JobState.WAITING or (
                job.kind is JobKind.DOWNLOAD and running >= MAX_DOWNLOADS
            ):
                continue
            running += job.kind is JobKind.DOWNLOAD
            job.state = JobState.RUNNING
            self._run(lambda job=job: self._work(job))  # type: ignore[misc]

    def _run(self, task: Callable[[], None]) -> None:
        thread = threading.Thread(target=task, name="models", daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _work(self, job: Job) -> None:
        try:
            state, message = self._work_of(job.kind)(job)
        except UserError as error:
            state, message = JobState.FAILED, str(error)
        except Exception as error:  # else the thread would end without a message
            state = JobState.FAILED
            message = f"{job.repository}: internal error ({type(error).__name__})."
        with self._lock:
            job.message, job.state = message, state
            if job.cancelled:
                self._jobs.pop(job.repository, None)
            if not self._closing:
                self._start_waiting()
        if job.cancelled:
            self._discard(job.repository)
        else:
            self._post(self.Ended(job))

    def _work_of(self, kind: JobKind) -> Callable[[Job], tuple[JobState, str]]:
        match kind:
            case JobKind.DOWNLOAD:
                return self._download
            case JobKind.CHECK:
                return self._check
            case JobKind.CONVERSION:
                return self._convert

    def _convert(self, job: Job) -> tuple[JobState, str]:
        assert job.source is not None
        planned = gguf().plan_conversion([job.source], name=job.repository.partition("/")[2])
        return self._install(job, planned.install, "Conversion")

    def _download(self, job: Job) -> tuple[JobState, str]:
        from app.models.pull import Outcome, Pull  # slow to import: no start should wait for it

        if (packaged := find_packaged(job.repository)) is not None:
            return self._install(job, partial(fetch_packaged, packaged), "Download")
        library, name = self._library(), job.repository
        pull = Pull(library.cache, name, library.hub_settings(), partial(self._on_progress, job))
        self._set_stop(job, pull.stop)
        match pull.run():
            case Outcome.DOWNLOADED:
                size = formatting.size(pull.progress.total)
                return JobState.DONE, f"{name} downloaded: {size}, all checksums correct."
            case Outcome.UP_TO_DATE:
                return JobState.DONE, f"{name} is up to date."
            case _:
                return JobState.PAUSED, f"Download of {name} paused."

    def _install(
        self, job: Job, install: Callable[..., Converted], what: str
    ) -> tuple[JobState, str]:
        """Run an installation, which deletes its files if it is stopped."""
        on_progress, name = partial(self._on_progress, job), job.repository
        try:
            done = install(self._library().cache, on_progress, self._stop_flag(job))
        except ConversionStopped:
            return JobState.PAUSED, f"{what} of {name} stopped, and its files were deleted."
        return JobState.DONE, f"{name} is installed ({formatting.size(done.size)}). {done.loss}"

    def _check(self, job: Job) -> tuple[JobState, str]:
        on_progress, name = partial(self._on_progress, job), job.repository
        verdict = verify(self._library().cache, name, on_progress, self._stop_flag(job))
        if not verdict.completed:
            return JobState.PAUSED, f"Check of {name} stopped."
        if verdict.faults:
            return JobState.FAILED, " ".join(verdict.faults)
        unknown = f", {verdict.unknown} without a known checksum" if verdict.unknown else ""
        files = formatting.plural(verdict.intact, "file")
        return JobState.DONE, f"{name}: {files} correct{unknown}."

    def _stop_flag(self, job: Job) -> Callable[[], bool]:
        stopped = threading.Event()
        self._set_stop(job, stopped.set)
        return stopped.is_set

    def _set_stop(self, job: Job, stop: Callable[[], None]) -> None:
        with self._lock:
            job.stop = stop
            if job.stop_requested:
                stop()

    def _discard(self, repository: str) -> None:
        # What cannot be deleted now stays in the list, to be tried again.
        with suppress(UserError):
            discard(self._library().cache, repository)
        cancelled = Job(repository, JobKind.DOWNLOAD, state=JobState.DONE)
        cancelled.cancelled = True
        cancelled.message = f"Download of {repository} cancelled."
        self._post(self.Ended(cancelled))

    def _on_progress(self, job: Job, progress: ByteProgress) -> None:
        job.progress = progress
        self._post_change()

    def _post_change(self) -> None:
        with self._lock:
            if self._change_posted:
                return
            self._change_posted = True
        self._post(self.Progressed())

    def _post(self, message: Message) -> None:
        with suppress(RuntimeError):  # the app has closed
            self._receiver.post_message(message)
