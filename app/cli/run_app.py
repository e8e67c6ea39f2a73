"""`specchat` without a command: opens the app."""

from __future__ import annotations

import gc
import locale
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from app.cli.status import RESTART
from app.cli.supervisor import Supervisor, current_supervisor, supervise
from app.errors import UserError

AFTER_RESTART = (
    "specchat restarted because the system stopped its work on the GPU. Until you quit, it reads in"
    " smaller steps."
)
PLAIN_LOCALES = ("C", "POSIX")
RESTART_STEP = 256
"""Prefill step after a restart, in tokens. The system stops processes with long GPU commands."""

if TYPE_CHECKING:
    import argparse

    from app.models.library import Library
    from app.protocol.commands import Load
    from app.protocol.hosts import Hosts
    from app.settings.definitions import Settings


def add_arguments(command: argparse.ArgumentParser) -> None:
    from app.cli.options import add_hosts, add_kv_bits, add_models

    add_models(command, None)
    add_hosts(command, None)
    add_kv_bits(command, None)
    command.add_argument(
        "--watch",
        action="store_true",
        help="check attached files and folders for changes and new files every few seconds",
    )


def run(args: argparse.Namespace) -> int:
    from app.cli.machines import chosen_hosts

    hosts = chosen_hosts(args.hosts)
    chosen = StartOptions(args.target, args.draft, args.kv_bits, hosts, args.paths, args.watch)
    return run_app(chosen)


class StartOptions(NamedTuple):
    """Options of the command line: models, bits of the KV cache, machines, paths to attach, and
    whether to watch them."""

    target: str | None = None
    draft: str | None = None
    kv_bits: str | None = None
    hosts: Hosts | None = None
    paths: Sequence[str] = ()
    watch: bool = False


def run_app(chosen: StartOptions) -> int:
    """Open the app in a child process; returns the exit status."""
    attached = [existing_path(path) for path in chosen.paths]
    # Textual reads standard input and draws on standard error.
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise UserError("The app needs a terminal", "use `specchat ask` in scripts and pipes")
    if (name := os.environ.get("TERM")) in ("dumb", "unknown"):
        raise UserError(
            f"The app needs a terminal that can draw a screen (TERM is '{name}')",
            "use `specchat ask`, or another terminal",
        )
    watched_by = current_supervisor()
    if watched_by is None:
        return supervise()
    return _open(chosen, attached, watched_by)


def _open(chosen: StartOptions, attached: Sequence[str], watched_by: Supervisor) -> int:
    gc.disable()  # imports create no garbage
    from app.cli.logs import log_to, pop_crash
    from app.paths import costs_path, data_path, logs_path, settings_path, snapshots_path
    from app.protocol.options import DEMO_MODEL
    from app.settings.file import SettingsFile

    settings = SettingsFile(settings_path())
    models, problem = _pair(chosen, settings.settings)
    from app.cli.machines import load_spread, machines
    from app.engine.engine import MlxEngine
    from app.extras import SERVE
    from app.ui.app import SpecchatApp
    from app.ui.originals import SystemOpener
    from app.ui.start import Start
    from app.ui.terminal import capture_stderr, system_clipboard

    gc.freeze()
    gc.enable()
    log_to(logs_path())
    last_time = pop_crash(logs_path())
    news = [] if last_time is None else [last_time.sentence]
    if locale_advice := without_utf8():
        news.append(locale_advice)
    step = None
    if watched_by.restarted:  # in the conversation that was open
        news, attached, step = [AFTER_RESTART], (), RESTART_STEP
    engine = MlxEngine(step, load_spread=load_spread)
    server = SERVE.open()(engine, lambda: settings.settings) if SERVE.is_installed else None
    with capture_stderr(watched_by.log):
        app = SpecchatApp(
            Start(
                engine,
                models,
                settings=settings,
                folder=data_path(),
                snapshots=snapshots_path(),
                costs=costs_path(),
                startup_message=" ".join([*news, *problem]),
                attached=attached,
                supervised=lambda: watched_by.alive,
                restart_status=RESTART,
                clipboard=system_clipboard(),
                show_welcome=models.names[0] == DEMO_MODEL,
                library=_library,
                server=server,
                machines=machines(models.hosts),
                watches=chosen.watch,
                opener=SystemOpener(),
            )
        )
        app.run()
    return app.return_code or 0


def without_utf8(environment: Mapping[str, str] = os.environ) -> str:
    """A sentence if the locale's encoding is another one; empty if it is UTF-8, or not set."""
    variables = ["LC_ALL", "LC_CTYPE", "LANG"]
    if environment.get("LC_CTYPE") == "C.UTF-8" and environment.get("LANG") in PLAIN_LOCALES:
        variables.remove("LC_CTYPE")  # Python has set it, for itself
    variable = next((each for each in variables if environment.get(each)), None)
    if variable is None:
        return ""
    name = environment[variable]
    encoding = name.partition(".")[2].partition("@")[0]
    if not encoding and name not in PLAIN_LOCALES:
        encoding = locale.getencoding()
    if encoding.lower().replace("-", "") == "utf8" or name == "UTF-8":
        return ""
    return (
        f"The locale ({variable}={name}) does not use UTF-8. If lines and marks look wrong, start"
        " specchat with LC_ALL=C.UTF-8."
    )


def existing_path(path: str) -> str:
    """A file or a folder by its absolute path. Raises IngestError."""
    from app.ingest.reader import file_mode

    file_mode(path)
    return os.path.abspath(path)


def _library() -> Library:
    """The installed models, and those of other programs."""
    from app.models.found import default_places
    from app.models.library import default_library

    return default_library(default_places)


def _pair(chosen: StartOptions, settings: Settings) -> tuple[Load, list[str]]:
    """The pair to load, not checked yet, and messages. Models from the command line must exist; if
    those from the settings do not, the app opens with the demo model and a message."""
    from app.chat.model_pairs import find_pair
    from app.cli.settings import requested_kv_bits, requested_pair

    find = partial(
        find_pair, kv_bits=requested_kv_bits(chosen.kv_bits, settings), hosts=chosen.hosts
    )
    try:
        return find(*requested_pair(chosen.target, chosen.draft, settings)), []
    except UserError as error:
        if chosen.target is not None or chosen.draft is not None:
            raise
        return find(), [f"{error} ^L chooses another model."]
