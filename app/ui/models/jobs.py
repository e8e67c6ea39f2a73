"""Downloads and checks on threads of their own: they go on when the screen that began them has
closed, and tell the app of it in messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from textual.message import Message
from textual.message_pump import MessagePump

from app.errors import UserError
from app.models.library import Library
from app.models.progress import Progress
from app.models.unfinished import discard
from app.models.verify import VerifyResult, verify
from app.util import formatting

AT_ONCE = 2
"""Downloads, each over four connections: more would only make each one slower."""
JOIN_SECONDS = 3.0


class JobKind(StrEnum):
    DOWNLOAD = "download"
    CHECK = "check"


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
    """`said` is how it ended, in a sentence."""

    repository: str
    kind: JobKind
    state: JobState = JobState.WAITING
    progress: Progress = field(default_factory=lambda: Progress(0, 0, 0.0, None))
    message: str = ""


class Jobs:
    """At most one job for each model. Every method may be called from the screen's thread, and
    returns at once."""

    class Changed(Message):
        """Some progress was made. No other comes before `seen`."""

    @dataclass
    class Ended(Message):
        job: Job

    def __init__(self, receiver: MessagePump, library: Callable[[], Library]) -> None:
        """`library` is asked for on the first job's thread."""
        self._receiver, self._library = receiver, library
        self._jobs: dict[str, Job] = {}
        self._stops: dict[str, Callable[[], None]] = {}
        self._threads: list[threading.Thread] = []
        self._unwanted: set[str] = set()
        self._cancelled: set[str] = set()
        self._lock = threading.RLock()
        self._announced = self._closing = False

    # ------------------------------------------------------------------ from the screen's thread

    def all(self) -> list[Job]:
        """In the order in which they were begun."""
        with self._lock:
            return list(self._jobs.values())

    def find(self, repository: str) -> Job | None:
        with self._lock:
            return self._jobs.get(repository)

    def is_active(self, repository: str) -> bool:
        job = self.find(repository)
        return job is not None and not job.state.ended

    def start(self, repository: str, kind: JobKind = JobKind.DOWNLOAD) -> None:
        """Begin, or go on with what was paused; nothing where one is under way."""
        with self._lock:
            if self.is_active(repository) or self._closing:
                return
            self._jobs.pop(repository, None)  # what is begun last stands last
            self._jobs[repository] = Job(repository, kind)
            self._start_waiting()
        self._announce()

    def pause(self, repository: str) -> None:
        """What was fetched is kept."""
        with self._lock:
            job = self._jobs.get(repository)
            if job is not None and job.state is JobState.WAITING:
                job.state = JobState.PAUSED
            elif job is not None and job.state is JobState.RUNNING:
                self._unwanted.add(repository)
                self._stops.get(repository, lambda: None)()
        self._announce()

    def cancel(self, repository: str) -> None:
        """Stop, and throw away what was fetched."""
        with self._lock:
            if self.is_active(repository):
                self._cancelled.add(repository)
                self.pause(repository)
            if not self.is_active(repository):
                self._jobs.pop(repository, None)
                self._cancelled.discard(repository)
                self._run(lambda: self._discard(repository))

    def dismiss(self, repository: str) -> None:
        """Show no more of one that is over."""
        with self._lock:
            if not self.is_active(repository):
                self._jobs.pop(repository, None)
        self._announce()

    def mark_drawn(self) -> None:
        """What changed was drawn."""
        self._announced = False

    def close(self) -> None:
        """Pause all, and wait until that is on the disk."""
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
                job.kind is JobKind.DOWNLOAD and running >= AT_ONCE
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
            work = self._download if job.kind is JobKind.DOWNLOAD else self._check
            state, said = work(job)
        except UserError as error:
            state, said = JobState.FAILED, str(error)
        except Exception as error:  # nobody else would hear of it
            problem = f"Something went wrong inside specchat ({type(error).__name__})"
            state, said = JobState.FAILED, f"{job.repository}: {problem}."
        with self._lock:
            self._stops.pop(job.repository, None)
            self._unwanted.discard(job.repository)
            job.message, job.state = said, state
            cancelled = job.repository in self._cancelled
            self._cancelled.discard(job.repository)
            if cancelled:
                self._jobs.pop(job.repository, None)
            if not self._closing:
                self._start_waiting()
        if cancelled:
            self._discard(job.repository)
        else:
            self._post(self.Ended(job))

    def _download(self, job: Job) -> tuple[JobState, str]:
        from app.models.pull import Outcome, Pull  # a tenth of a second, which no start waits for

        library = self._library()
        pull = Pull(
            library.cache,
            job.repository,
            library.hub_settings(),
            lambda told: self._note(job, told),
        )
        self._stoppable(job, pull.stop)
        match pull.run():
            case Outcome.DOWNLOADED:
                total = formatting.size(pull.progress.total)
                return (
                    JobState.DONE,
                    f"{job.repository} is here, {total}, and every digest is right.",
                )
            case Outcome.UP_TO_DATE:
                said = f"{job.repository} is here already, and nothing has changed at the hub."
                return JobState.DONE, said
            case _:
                return JobState.PAUSED, f"The download of {job.repository} is paused."

    def _check(self, job: Job) -> tuple[JobState, str]:
        stopped = threading.Event()
        self._stoppable(job, stopped.set)
        cache = self._library().cache
        verdict = verify(cache, job.repository, lambda told: self._note(job, told), stopped.is_set)
        return _told(job.repository, verdict)

    def _stoppable(self, job: Job, stop: Callable[[], None]) -> None:
        with self._lock:
            self._stops[job.repository] = stop
            if job.repository in self._unwanted:
                stop()

    def _discard(self, repository: str) -> None:
        # What cannot be thrown away now still stands in the list, to be tried again.
        with suppress(UserError):
            discard(self._library().cache, repository)
        gone = Job(repository, JobKind.DOWNLOAD, JobState.DONE)
        gone.message = f"The download of {repository} was given up."
        self._post(self.Ended(gone))

    def _note(self, job: Job, progress: Progress) -> None:
        job.progress = progress
        self._announce()

    def _announce(self) -> None:
        with self._lock:
            if self._announced:
                return
            self._announced = True
        self._post(self.Changed())

    def _post(self, message: Message) -> None:
        with suppress(RuntimeError):  # the app is gone
            self._receiver.post_message(message)


def _told(repository: str, verdict: VerifyResult) -> tuple[JobState, str]:
    if not verdict.completed:
        return JobState.PAUSED, f"Checking {repository} was stopped."
    if verdict.faults:
        return JobState.FAILED, " ".join(verdict.faults)
    unknown = f", {verdict.unknown} have no known digest" if verdict.unknown else ""
    return (
        JobState.DONE,
        f"{repository}: {formatting.plural(verdict.intact, 'file')} whole{unknown}.",
    )
