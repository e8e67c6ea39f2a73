"""The Textual app: themes, the chat screen, and a clean exit."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from base64 import b64encode
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rich.console import RenderableType
from textual import on
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.events import Event as TextualEvent
from textual.events import Key, MouseDown, Paste, Resize
from textual.filter import ANSIToTruecolor, DimFilter
from textual.screen import Screen
from textual.widgets import TextArea

from app.errors import UserError
from app.estimate.plan import describe
from app.protocol.commands import CalibrateCosts, Close
from app.settings.definitions import Setting, find
from app.store.records import ConversationRecord
from app.ui.background import TaskFailed, start_task
from app.ui.changes import Changes, Drawn
from app.ui.chat.events import CostsMeasured, EngineLost
from app.ui.chat.screen import ChatScreen, TurnFinished
from app.ui.ending import SIGNAL_EXIT_BASE, EndingSignals
from app.ui.framed_screen import SmallScreen, fits
from app.ui.help import HasHelp
from app.ui.originals import OpenOriginal, ShowsMessages, open_original
from app.ui.serving import Answered, Serving
from app.ui.settings.live import LiveSettings
from app.ui.start import Start
from app.ui.terminal import (
    ASK_BACKGROUND,
    NOT_COPIED,
    Window,
    background_is_dark,
    copied_sentence,
    for_tmux,
    paste_safe_driver,
)
from app.ui.terminal_input import BackgroundReported
from app.ui.theme import FEW_COLOURS, ColoursToAttributes, ink_shades, our_themes
from app.util import formatting
from app.util.sanitize import sanitize_line

if TYPE_CHECKING:
    from app.ui.models.jobs import Jobs
    from app.ui.models.screen import ModelsController

QUIT_WINDOW_SECONDS = 2.0
QUIT_CONFIRM_SECONDS = 10.0
"""Time to read why a second ^Q is needed."""
JOIN_SECONDS = 2.0
SUPERVISOR_CHECK_SECONDS = 1.0
RESTART_DELAY = 0.25
"""Seconds to wait for the store, whose drafts are saved before a restart."""
LONG_TURN_SECONDS = 10.0
"""A user who has switched to another window is notified of turns that took longer."""


class SpecchatApp(App[None]):
    """The Textual app. `SpecchatApp(Start(engine, Load(target, draft))).run()` returns once the
    user has quit."""

    TITLE = "specchat"
    ENABLE_COMMAND_PALETTE = False
    CSS_PATH: ClassVar[list[str]] = [  # type: ignore[assignment]
        "filter_list.tcss",
        "chat/chat.tcss",
        "attach/attach.tcss",
        "completion.tcss",
        "transcript/panel.tcss",
        "chat/slider.tcss",
        "spans/spans.tcss",
        "files/files.tcss",
        "conversations/conversations.tcss",
        "models/models.tcss",
        "settings/settings.tcss",
        "palette.tcss",
        "help.tcss",
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Keys", id="app.help", tooltip="List all keys", priority=True),
        Binding(
            "f2", "settings", "Settings", id="app.settings", tooltip="Change settings",
            priority=True,
        ),
        Binding(
            "ctrl+l", "models", "Models", id="app.models",
            tooltip="List, download and load models", priority=True,
        ),
        Binding(
            "ctrl+p", "command_palette", "Palette", id="app.palette",
            tooltip="Find commands, settings and conversations by name", priority=True,
        ),
        Binding(
            "f5", "serve", "Serve", id="app.serve",
            tooltip="Start or stop the server for other programs",
        ),
        Binding(
            "f6", "real_model", "Small real model", id="app.real_model",
            tooltip="Replace the demo model with a small real one",
            priority=True,
        ),
        Binding("ctrl+q", "quit", "Quit", id="app.quit", tooltip="Quit", priority=True),
        Binding(
            "ctrl+c", "copy_or_quit", "Copy or quit", id="app.copy",
            tooltip="Copy the selected text; press twice to quit", priority=True,
        ),
    ]  # fmt: skip

    def __init__(self, start: Start) -> None:
        super().__init__(driver_class=paste_safe_driver())
        for theme in our_themes():
            self.register_theme(theme)
        if self.no_color:
            self._filters = [ColoursToAttributes(self._shades)]
        self._start, self._engine = start, start.engine
        self._quit_asked: tuple[str, float] | None = None
        """The last key, if it asked to quit, and when."""
        self._closing_engine = False
        self._drawn = Drawn()
        self._ending: EndingSignals | None = None
        self._is_saving, self._shutdown_lock = threading.Event(), threading.Lock()
        self.window = Window(self._write)
        self.chat = ChatScreen(start)
        self.chat.composer.box.clipboard = start.clipboard
        self.settings = LiveSettings(
            self,
            start.settings,
            self.chat.conversations.apply_settings,
            self.chat.notice.show,
        )
        self.settings.set_background(background_is_dark())
        self._serving = Serving(self, start, self.chat)
        self._models: ModelsController | None = None

    def get_default_screen(self) -> Screen[None]:
        return self.chat

    def on_mount(self) -> None:
        self.set_interval(SUPERVISOR_CHECK_SECONDS, self._exit_if_orphaned)
        self.watch(self.chat.widgets.header, "title", self.window.show_title)
        few = self.console.color_system == "standard" and not self.no_color
        if few and not self.is_headless:
            self._use_few_colours()
        if os.environ.get("TERM") != "linux" and not self.no_color:
            # The Linux console would show a part of it.
            self._write(ASK_BACKGROUND)
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()

            def quit(status: int) -> None:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._on_signal, status)

            self._ending = EndingSignals(quit, self.shutdown, self._is_saving)
            self._ending.start()

    def on_unmount(self) -> None:
        if self._ending is not None:
            self._ending.stop()

    def on_resize(self, event: Resize) -> None:
        self.forget_drawn()
        small = isinstance(self.screen, SmallScreen)
        if small and fits(event.size):
            self.screen.dismiss()
        elif not small and not fits(event.size):
            self.push_screen(SmallScreen())

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Run the app, then wait for the engine once the terminal is restored."""
        try:
            super().run(*args, **kwargs)
        finally:
            self.shutdown()

    def shutdown(self) -> None:
        """Save everything; called once the screen is gone, or cannot be waited for."""
        self._is_saving.set()
        with self._shutdown_lock:
            self._save_everything()

    def _save_everything(self) -> None:
        self._serving.stop()
        self._close_engine()
        if self._models is not None:
            self._models.jobs.close()
        self._engine.join(JOIN_SECONDS)
        if not self.chat.shutdown():
            with suppress(OSError):  # the terminal may have gone
                sys.stderr.write("Saving the caches for the next start. Press ^C to quit now.\n")
            with suppress(KeyboardInterrupt):
                self._engine.join()
            self.chat.shutdown()
        self.chat.open_chats.close()
        if problem := self.settings.save_now():
            with suppress(OSError):
                sys.stderr.write(f"{sanitize_line(problem)}\n")

    async def action_quit(self) -> None:
        """Quit, but ask for a second ^Q if a long answer would be lost."""
        elapsed, remaining = self.chat.open_chats.elapsed_and_remaining
        long_turn = max(elapsed, remaining) >= LONG_TURN_SECONDS
        if not long_turn or self._confirms_quit("ctrl+q", QUIT_CONFIRM_SECONDS):
            self._quit(0)
            return
        long = f"{formatting.seconds(elapsed)} so far"
        if remaining > elapsed:
            long = f"about {formatting.seconds(remaining)} to the first word"
        message = f"Still answering ({long}). Press ^Q again to quit."
        if self.screen is self.chat:
            self.chat.notice.show(message)
        else:
            self.notify(message)

    def _confirms_quit(self, key: str, window: float) -> bool:
        """Whether the same key was pressed just before, at most `window` seconds ago."""
        now, before = self._start.clock(), self._quit_asked
        self._quit_asked = key, now
        return before is not None and before[0] == key and now - before[1] <= window

    async def on_event(self, event: TextualEvent) -> None:
        if isinstance(event, Key | Paste | MouseDown) and not (
            isinstance(event, Key) and self._quit_asked and event.key == self._quit_asked[0]
        ):
            self._quit_asked = None
        await super().on_event(event)
        if isinstance(event, Key):
            await asyncio.sleep(0)  # Textual never does while keys are queued

    @on(TurnFinished)
    def _notify_finished(self, event: TurnFinished) -> None:
        if not self.app_focus and event.seconds >= LONG_TURN_SECONDS:
            self.window.notify(event.summary)

    def _use_few_colours(self) -> None:
        self.add_class(FEW_COLOURS)
        blending = (DimFilter, ANSIToTruecolor)  # both replace the attribute `dim` by a colour
        self._filters = [each for each in self._filters if not isinstance(each, blending)]
        for theme in our_themes(few_colours=True):
            self.register_theme(theme)
        self._invalidate_css()
        self.call_next(self.refresh_css)

    def _shades(self) -> tuple[Color, Color]:
        variables = self.theme_variables
        return Color.parse(variables["background"]), Color.parse(variables["foreground"])

    @on(BackgroundReported)
    def _set_background(self, event: BackgroundReported) -> None:
        self.settings.set_background(event.is_dark)

    def watch_app_focus(self, focus: bool) -> None:
        if focus:
            self.window.clear_mark()

    def _write(self, sequence: str) -> None:
        if self._driver is not None and not self.is_headless:
            self._driver.write(sequence)

    def _quit(self, status: int) -> None:
        self._close_engine()
        self.exit(return_code=status)

    def _exit_if_orphaned(self) -> None:
        if not self._start.supervised():
            self._quit(1)

    def _on_signal(self, status: int) -> None:
        if status != SIGNAL_EXIT_BASE + signal.SIGHUP:
            self._quit(status)
            return
        # The terminal is gone. A normal exit would hang, because Textual waits until everything
        # is drawn.
        self.shutdown()
        os._exit(status)

    async def action_copy_or_quit(self) -> None:
        selected = self._selected_text()
        if selected:
            self.copy_to_clipboard(selected)
            self.chat.notice.show(copied_sentence(self, "Copied."))
            return
        if self._confirms_quit("ctrl+c", QUIT_WINDOW_SECONDS):
            self._quit(0)
        self.chat.notice.show("Press ^C again to quit.")

    def copy_to_clipboard(self, text: str) -> None:
        """Copy into the system's clipboard, too, because not every terminal does that."""
        super().copy_to_clipboard(text)
        if os.environ.get("TMUX"):
            data = b64encode(text.encode(errors="replace")).decode()
            self._write(for_tmux(f"\x1b]52;c;{data}\x07"))
        if self._start.clipboard is not None:
            written = self._start.clipboard.write(text)
            start_task(self, lambda: self._tell_failure(written))

    async def _tell_failure(self, written: Future[bool] | None) -> None:
        if written is not None and not await asyncio.wrap_future(written):
            self._show(NOT_COPIED)

    @property
    def reaches_clipboard(self) -> bool:
        return self._start.clipboard is not None or self.is_headless

    # Screens are imported when they are opened, so that the first frame does not wait for them.

    def action_help(self) -> None:
        from app.ui.help import HelpScreen

        if isinstance(self.screen, HelpScreen):
            self.screen.dismiss()
            return
        if isinstance(self.screen, SmallScreen):
            return
        sections = self.screen.help_sections() if isinstance(self.screen, HasHelp) else ()
        self.push_screen(HelpScreen((*sections, ("Everywhere", SpecchatApp))))

    def action_settings(self) -> None:
        from app.ui.settings.screen import SettingsScreen

        if isinstance(self.screen, SettingsScreen):
            self.screen.dismiss()
        elif not self.screen.is_modal:
            self.show_setting(None)

    def show_setting(self, setting: Setting | None) -> None:
        """Open the settings, at this one if given."""
        from app.ui.settings.screen import SettingsScreen

        if isinstance(self.screen, SettingsScreen):
            self.screen.go_to(setting)
        else:
            self.push_screen(SettingsScreen(self.settings, setting))

    @property
    def models(self) -> ModelsController:
        if self._models is None:
            from app.ui.models.screen import ModelsController

            chat = self.chat
            self._models = ModelsController(
                self,
                self._start,
                chat.open_chats.repository,
                chat.loader.pair_status,
                memory=lambda: chat.widgets.header.memory,
            )
        return self._models

    @on(TaskFailed)
    def _show_failure(self, event: TaskFailed) -> None:
        self._show(str(event))

    def _show(self, sentence: str) -> None:
        screen = self.screen
        show = screen.show_message if isinstance(screen, ShowsMessages) else self.chat.notice.show
        show(sentence)

    @on(OpenOriginal)
    def _open_original(self, event: OpenOriginal) -> None:
        async def task() -> None:
            self._show(await open_original(self._start.opener, event))

        start_task(self, task)

    @on(CostsMeasured)
    def _pair_timed(self, event: CostsMeasured) -> None:
        self._show_result(describe(event.costs, self.chat.view.next_mode.keep))

    @on(EngineLost)
    def _restart(self, event: EngineLost) -> None:
        """Start again in a new process, unless this one has something that is not saved."""
        repository = self.chat.open_chats.repository
        if repository.opening:
            self.set_timer(RESTART_DELAY, lambda: self._restart(event))
        elif self._start.restart_status is not None and repository.writable:
            self._quit(self._start.restart_status)
        else:
            self.chat.notice.show(
                f"{event.problem}. Conversations are not saved here: copy what you need, quit with"
                " ^Q, and start specchat again."
            )

    def action_serve(self) -> None:
        self._serving.switch()

    @on(Answered)
    def _save_request(self, event: Answered) -> None:
        self._serving.save(event)

    def action_real_model(self) -> None:
        start_task(self, lambda: self.chat.real_model.fetch(self.models.jobs, self.models.cache))

    def action_models(self) -> None:
        from app.ui.models.screen import ModelsScreen

        if isinstance(self.screen, ModelsScreen):
            self.screen.dismiss(None)
        elif not self.screen.is_modal:
            self.models.show()

    def on_models_controller_chosen(self, event: ModelsController.Chosen) -> None:
        choice, machines = event.choice, self._start.machines
        if choice.as_default:
            try:
                self.settings.change(find("models.target"), choice.target)
                self.settings.change(find("models.draft"), choice.draft or "")
            except ValueError:
                self.chat.notice.show(f"'{choice.target}' cannot be saved in the settings.")
                return
        hosts = machines.hosts if machines is not None and choice.across else None
        load = partial(self.chat.loader.load_pair, choice.target, choice.draft)
        start_task(self, lambda: load(self.models.cache, hosts))

    def on_models_controller_measure(self) -> None:
        self._engine.send(CalibrateCosts())

    def on_jobs_progressed(self) -> None:
        self.models.on_jobs_progressed()

    def on_jobs_ended(self, ended: Jobs.Ended) -> None:
        self._show_result(ended.job.message)
        self.chat.real_model.on_job_ended(ended.job)

    def _show_result(self, sentence: str) -> None:
        self.chat.notice.show(sentence)
        self.models.show_result(sentence)

    def action_command_palette(self) -> None:
        from app.ui.palette import PaletteScreen, PaletteSources

        if self.screen.is_modal:
            return
        chat, repository = self.chat, self.chat.open_chats.repository
        in_chat = self.screen is chat  # only the chat opens conversations

        async def conversations() -> Sequence[ConversationRecord]:
            if in_chat and repository.readable:
                with suppress(UserError):  # reported where the store is needed
                    return await repository.read(lambda store: store.conversations())
            return ()

        open_chat = chat.conversations.open
        sources = PaletteSources(self.settings, self.show_setting, conversations, open_chat)
        self.push_screen(PaletteScreen(sources))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return ink_shades(self.current_theme)

    def _selected_text(self) -> str | None:
        focused = self.focused
        if isinstance(focused, TextArea) and focused.selected_text:
            return focused.selected_text
        return self.screen.get_selected_text()

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        if isinstance(renderable, ChopsUpdate | LayoutUpdate):
            renderable = cast("RenderableType", Changes(renderable, self._drawn))
        super()._display(screen, renderable)

    def forget_drawn(self) -> None:
        self._drawn.forget()

    def _close_engine(self) -> None:
        if not self._closing_engine:
            self._closing_engine = True
            self._engine.send(Close())
