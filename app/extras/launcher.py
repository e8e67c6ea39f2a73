"""`specchat install-launcher`: an application that opens specchat in a terminal."""

from __future__ import annotations

import argparse
import os
import plistlib
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from app.errors import UserError
from app.util.assets import assets_path
from app.util.sanitize import sanitize_line

MARK = "specchat.launcher"
"""Only a launcher with this mark is replaced or removed."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """`files` are all its files, `shown` is the file or folder to double-click, and `marked` the
    file with the mark."""

    shown: Path
    marked: Path
    files: Mapping[Path, bytes]
    programs: frozenset[Path] = frozenset()
    """The executable ones of `files`."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--remove", action="store_true", help="remove the launcher")


def run(args: argparse.Namespace) -> int:
    """Write or remove the launcher of this system; returns the exit status."""
    launcher, out = _launcher(sys.platform), sys.stdout
    shown = sanitize_line(str(launcher.shown))
    if args.remove:
        removed = remove_launcher(launcher)
        out.write(f"Removed {shown}.\n" if removed else f"There is no launcher at {shown}.\n")
        return 0
    write_launcher(launcher)
    out.write(
        f"Wrote {shown}: it opens specchat in a terminal.\n"
        "`specchat install-launcher --remove` removes it.\n"
    )
    return 0


def _launcher(platform: str) -> Launcher:
    if platform == "darwin":
        return for_mac(Path.home() / "Applications", own_program())
    if platform == "linux":
        return for_linux(platformdirs.user_data_path(), own_program())
    raise UserError(
        "Launchers are only supported on macOS and Linux", "run `specchat` in a terminal"
    )


def own_program(called_as: str | None = None, python: str = sys.executable) -> Path:
    """The running `specchat`: the path it was called by, which survives updates, or else the one
    next to `python`."""
    candidates = (Path(called_as or sys.argv[0]), Path(python).with_name("specchat"))
    for each in candidates:
        if each.name == "specchat" and os.access(each, os.X_OK) and each.is_file():
            return each.absolute()
    raise UserError("The `specchat` command is not installed", "install it first")


# --------------------------------------------------------------------------- macOS


def for_mac(applications: Path, program: Path) -> Launcher:
    """A bundle whose program asks Terminal to run a script. Unlike AppleScript, this needs no
    permission to control other programs."""
    contents = applications / "specchat.app" / "Contents"
    start, script = contents / "MacOS" / "specchat", contents / "Resources" / "specchat.command"
    information = {
        "CFBundleIdentifier": MARK,
        "CFBundleName": "specchat",
        "CFBundleExecutable": start.name,
        "CFBundleIconFile": "specchat.icns",
        "CFBundlePackageType": "APPL",
        "CFBundleShortVersionString": "1.0",
        # Without it, macOS offers Rosetta for a script.
        "LSArchitecturePriority": ["arm64"],
        # It ends immediately, so it needs no icon in the Dock.
        "LSUIElement": True,
    }
    opened = '"${0%/*}/../Resources/specchat.command"'
    files = {
        contents / "Info.plist": plistlib.dumps(information),
        start: f"#!/bin/sh\nexec /usr/bin/open -a Terminal {opened}\n".encode(),
        script: f"#!/bin/sh\nclear\nexec {shlex.quote(str(program))}\n".encode(),
        contents / "Resources" / "specchat.icns": _icon("specchat.icns"),
    }
    shown = applications / "specchat.app"
    return Launcher(shown, contents / "Info.plist", files, frozenset({start, script}))


# --------------------------------------------------------------------------- Linux


def for_linux(data: Path, program: Path) -> Launcher:
    """A menu entry of the Desktop Entry Specification."""
    entry = data / "applications" / "specchat.desktop"
    lines = (
        "[Desktop Entry]",
        "Type=Application",
        "Name=specchat",
        "Comment=Chat with local models about long documents",
        f"Exec={_quoted(str(program))}",
        "Icon=specchat",
        "Terminal=true",
        "Categories=Utility;",
        f"X-Launcher={MARK}",
    )
    files = {
        entry: ("\n".join(lines) + "\n").encode(),
        data / "icons" / "hicolor" / "scalable" / "apps" / "specchat.svg": _icon("specchat.svg"),
    }
    return Launcher(entry, entry, files)


def _icon(name: str) -> bytes:
    return (assets_path() / "icon" / name).read_bytes()


def _quoted(path: str) -> str:
    """Quote a path as the value of Exec: escape special characters inside the quotes, then all
    backslashes, as in every value, and double %."""
    for special in ("\\", '"', "`", "$"):
        path = path.replace(special, f"\\{special}")
    quoted = f'"{path}"'.replace("\\", "\\\\")
    return quoted.replace("%", "%%")


# --------------------------------------------------------------------------- on disk


def write_launcher(launcher: Launcher) -> None:
    """Write the launcher, replacing an earlier one. Raises UserError if the file there is not
    ours."""
    _check_ours(launcher)
    try:
        for path, data in launcher.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            if path in launcher.programs:
                path.chmod(0o755)
    except OSError as error:
        raise _cannot(launcher, error) from error


def remove_launcher(launcher: Launcher) -> bool:
    """Remove the launcher; return False if there is none. Raises UserError if the file there is
    not ours."""
    if not os.path.lexists(launcher.shown):
        return False
    _check_ours(launcher)
    try:
        if launcher.shown.is_dir():
            shutil.rmtree(launcher.shown)
        for path in launcher.files:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot(launcher, error) from error
    return True


def _check_ours(launcher: Launcher) -> None:
    if not os.path.lexists(launcher.shown):
        return
    marked = launcher.marked
    # Do not follow a link: its target is not ours.
    ours = not launcher.shown.is_symlink() and marked.is_file()
    if not (ours and MARK.encode() in marked.read_bytes()):
        raise UserError(
            f"'{launcher.shown}' was not written by specchat", "move it away and try again"
        )


def _cannot(launcher: Launcher, error: OSError) -> UserError:
    what = error.strerror or type(error).__name__
    return UserError(
        f"The launcher '{launcher.shown}' cannot be changed ({what})",
        "check the permissions of its folder",
    )
