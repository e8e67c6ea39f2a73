"""`specchat models`: what is here, and bringing more of it here, for a shell."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
from collections.abc import Callable
from threading import Event
from typing import Any

from app.cli import model_fit
from app.cli.exit_codes import INTERRUPTED
from app.cli.sigint import cancel_on_sigint
from app.errors import UserError
from app.models import catalogue, trash
from app.models.cache import Installed, ModelCache, check_repository, default_cache, links
from app.models.progress import Progress
from app.models.pull import Outcome, Pull, default_hub_settings
from app.models.unfinished import UnfinishedDownload, discard, pause, unfinished
from app.models.verify import verify
from app.paths import config_path
from app.util.sanitize import sanitize, sanitize_line


def models(options: argparse.Namespace) -> int:
    """Carry `options.action` out; returns the exit status. Raises UserError."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    return ACTIONS[options.action](default_cache(), options)


def _list(cache: ModelCache, options: argparse.Namespace) -> int:
    if options.trash:
        return _list_trash(cache, options)
    if options.memory:
        return _say(*model_fit.listing(cache, options))
    installed, begun = cache.installed(), unfinished(cache)
    if options.json:
        content = {
            "installed": [dataclasses.asdict(each) for each in installed],
            "unfinished": [dataclasses.asdict(each) for each in begun],
        }
        return _say(json.dumps(content, indent=2, default=str))
    if not installed and not begun:
        _tell("No model is here yet: `specchat models pull ORGANISATION/NAME` downloads one.")
    return _say(*map(_installed_line, installed), *map(_unfinished_line, begun))


def _installed_line(model: Installed) -> str:
    notes = [f"of which older commits {size(model.older)}"] if model.older else []
    notes += [model.fault] if model.fault else []
    return _line(size(model.size), model.repository, *notes)


def _unfinished_line(pull: UnfinishedDownload) -> str:
    share = pull.done / pull.total if pull.total else 1.0
    how = "downloading" if pull.running else "unfinished"
    return _line(size(pull.done), pull.repository, f"{how}, {share:.0%} of {size(pull.total)}")


def _list_trash(cache: ModelCache, options: argparse.Namespace) -> int:
    found = trash.trashed(cache)
    if options.json:
        return _say(json.dumps([dataclasses.asdict(each) for each in found], default=str))
    if not found:
        _tell("The trash is empty: `specchat models list` shows what is here.")
    return _say(
        *(
            _line(
                size(each.size),
                each.repository,
                *(() if each.whole else ("older commits",)),
                f"removed {each.when.astimezone():%Y-%m-%d %H:%M}",
            )
            for each in found
        )
    )


def _show(cache: ModelCache, options: argparse.Namespace) -> int:
    name = check_repository(options.name)
    found = cache.find(name)
    begun = [each for each in unfinished(cache) if each.repository == name]
    if found is None and not begun:
        raise trash.not_installed(name)
    if found is not None:
        checked = cache.verified(name, found.commit) is not None
        _say(
            f"{found.repository} · {size(found.size)} · commit {found.commit[:12]}",
            sanitize_line(str(found.folder)),
            sanitize_line(found.fault)
            if found.fault
            else "Downloaded and verified by specchat."
            if checked
            else f"Downloaded by another program; `specchat models verify {name}` checks it.",
        )
        if found.fault is None:
            _say(*model_fit.in_short(cache, name))
        for path in links(found.folder):
            length = path.stat().st_size if path.exists() else 0
            _say(_line(size(length), str(path.relative_to(found.folder))))
    return _say(*map(_unfinished_line, begun))


def _pull(cache: ModelCache, options: argparse.Namespace) -> int:
    display = Display(options.name)
    pull = Pull(cache, options.name, default_hub_settings(), display.show)
    try:
        with cancel_on_sigint(pull.stop):
            outcome = pull.run()
    finally:
        display.clear()
    name, progress = pull.repository, pull.progress
    if outcome is Outcome.DOWNLOADED:
        _tell(f"{name} is here, {size(progress.total)}, and every file's digest is right.")
    elif outcome is Outcome.UP_TO_DATE:
        _tell(f"{name} is here already, and nothing has changed at the hub.")
    else:
        word = "Paused" if outcome is Outcome.PAUSED else "Stopped"
        kept = f"{size(progress.done)} of {size(progress.total)}" if progress.total else "it all"
        _tell(f"{word}, {kept} is kept: `specchat models resume {name}` goes on.")
        return INTERRUPTED
    return 0


def _pause(cache: ModelCache, options: argparse.Namespace) -> int:
    pause(cache, options.name)
    return _say(
        f"The download of {options.name} stops and keeps what it has:"
        f" `specchat models resume {options.name}` goes on."
    )


def _resume(cache: ModelCache, options: argparse.Namespace) -> int:
    name = check_repository(options.name)
    if not any(each.repository == name for each in unfinished(cache)):
        raise UserError(
            f"There is no unfinished download of {name}",
            f"`specchat models pull {name}` begins one",
        )
    return _pull(cache, options)


def _cancel(cache: ModelCache, options: argparse.Namespace) -> int:
    discard(cache, options.name)
    return _say(f"The download of {options.name} was given up.")


def _add(cache: ModelCache, options: argparse.Namespace) -> int:
    kept = catalogue.add(config_path(), options.name)
    return _say(f"{kept} is in your catalogue, '{config_path() / catalogue.FILE}'.")


def _search(cache: ModelCache, options: argparse.Namespace) -> int:
    if not options.hub:
        return _say(*model_fit.search(cache, options))
    from app.models.hub_info import search_hub

    words = " ".join(options.words)
    found = search_hub(words, default_hub_settings())
    if not found:
        raise UserError(f"The hub has no model made for MLX like {words!r}", "try other words")
    _say(*found)
    return _say("`specchat models fit NAME` asks the hub what one of them takes.")


def _rm(cache: ModelCache, options: argparse.Namespace) -> int:
    removed = trash.remove(cache, options.name, options.older)
    return _say(
        f"{removed.repository} is in the trash, {size(removed.size)}:"
        f" `specchat models restore {removed.repository}` brings it back,"
        " `specchat models empty` frees the space."
    )


def _restore(cache: ModelCache, options: argparse.Namespace) -> int:
    return _say(f"{trash.restore(cache, options.name).repository} is back.")


def _empty(cache: ModelCache, options: argparse.Namespace) -> int:
    return _say(f"{size(trash.empty(cache))} freed.")


def _verify(cache: ModelCache, options: argparse.Namespace) -> int:
    display, stop = Display(options.name), Event()
    try:
        with cancel_on_sigint(stop.set):
            verdict = verify(cache, options.name, display.show, stop.is_set)
    finally:
        display.clear()
    _say(*verdict.faults)
    if not verdict.completed:
        _tell("Stopped.")
        return INTERRUPTED
    unknown = f", {verdict.unknown} have no known digest" if verdict.unknown else ""
    _say(f"{verdict.intact} files are whole{unknown}.")
    return 1 if verdict.faults else 0


ACTIONS: dict[str, Callable[[ModelCache, argparse.Namespace], int]] = {
    "list": _list,
    "show": _show,
    "search": _search,
    "add": _add,
    "pair": lambda cache, options: _say(*model_fit.pair(cache, options)),
    "fit": lambda cache, options: _say(*model_fit.fit(cache, options)),
    "pull": _pull,
    "pause": _pause,
    "resume": _resume,
    "cancel": _cancel,
    "rm": _rm,
    "restore": _restore,
    "empty": _empty,
    "verify": _verify,
}


class Display:
    """One line of progress on standard error; one for every tenth where that is no terminal."""

    def __init__(self, name: str) -> None:
        self._name = sanitize_line(name)
        self._live = sys.stderr.isatty()
        self._shown = ""
        self._tenth = 0

    def show(self, progress: Progress) -> None:
        if not self._live:
            tenth = progress.done * 10 // progress.total if progress.total else 0
            if self._tenth < tenth < 10:
                self._tenth = tenth
                _tell(f"{self._name}  {progress_line(progress)}")
            return
        width = shutil.get_terminal_size().columns - 1
        line = f"{self._name}  {progress_line(progress)}"[:width]
        if line != self._shown:
            self._shown = line
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            self._shown = ""
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def progress_line(progress: Progress) -> str:
    """`45 %  3.2 of 7.1 GB · 45.1 MB/s · 1:23 left`, and what goes on beside it."""
    parts = []
    if progress.total:
        share = progress.done / progress.total
        parts.append(f"{share:4.0%}  {size(progress.done)} of {size(progress.total)}")
    if progress.speed:
        parts.append(f"{size(int(progress.speed))}/s")
    if progress.seconds_left is not None and progress.done < progress.total:
        parts.append(f"{_duration(progress.seconds_left)} left")
    if progress.note:
        parts.append(sanitize_line(progress.note))
    return " · ".join(parts)


def size(count: int) -> str:
    """Bytes as people and disks count them, in powers of 1000."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(min(round(seconds), 359_999), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _line(amount: str, *parts: Any) -> str:
    return f"{amount:>12}  " + " · ".join(sanitize_line(str(part)) for part in parts)


def _say(*lines: str) -> int:
    for line in lines:
        sys.stdout.write(f"{sanitize(line)}\n")
    return 0


def _tell(sentence: str) -> None:
    sys.stderr.write(f"{sanitize(sentence)}\n")
