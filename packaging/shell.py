"""Writes the man page and the completions for bash, zsh and fish from the command line's parser.

    python packaging/shell.py

packaging/share/ has the layout that an installed wheel has in share/.
"""

from __future__ import annotations

import sys

import commands
import completions
import lock
import manual

SHARE = lock.ROOT / "packaging" / "share"


def files() -> dict[str, str]:
    """Their contents, by their paths in share/."""
    sys.path.append(str(lock.ROOT))
    from app.cli import main as command_line

    complete = command_line.parser()
    for name in command_line.commands():
        complete.declare(name)
    top = commands.described(complete)
    return {
        "man/man1/specchat.1": manual.page(top),
        "bash-completion/completions/specchat": completions.bash(top),
        "zsh/site-functions/_specchat": completions.zsh(top),
        "fish/vendor_completions.d/specchat.fish": completions.fish(top),
    }


def main() -> int:
    for name, text in files().items():
        path = SHARE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
