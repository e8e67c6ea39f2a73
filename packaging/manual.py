"""The man page, in the macros of man(7).

argparse-manpage is no replacement: it joins the two lines of the usage, dates the page with the day
of the build, and prints the usage of each command instead of a synopsis.
"""

from __future__ import annotations

import re

from commands import Command, Option

FILES = """\
Conversations, with their documents and answers, are in the user's data folder
(~/Library/Application Support/specchat on a Mac, ~/.local/share/specchat elsewhere), settings in
settings.toml in the configuration folder, snapshots in the cache folder, and models in the cache
that huggingface_hub and mlx-lm use. `specchat doctor` prints where these are."""

STATUS = (
    ("0", "Success."),
    ("1", "`doctor` or `verify` found a fault, or the output could not be written."),
    ("2", "Bad input; the message says what to do."),
    ("130", "Stopped with Ctrl-C."),
)


def page(top: Command) -> str:
    lines = [
        ".\\\" Written by packaging/shell.py from the command line's parser.",
        '.TH SPECCHAT 1 "" "specchat" "User Commands"',
        ".SH NAME",
        "specchat \\- chat in the terminal with local models about long documents",
        ".SH SYNOPSIS",
        *(line for each in (top, *top.commands) for line in _synopsis(each)),
        ".SH DESCRIPTION",
        text(top.description),
        *_options(top),
        ".SH COMMANDS",
    ]
    for command in top.commands:
        lines += [f".SS {text(' '.join(command.words))}", *_body(command)]
    lines += [".SH FILES", text(FILES), ".SH EXIT STATUS"]
    for status, meaning in STATUS:
        lines += [".TP", f".B {status}", text(meaning)]
    return "\n".join(lines) + "\n"


def _synopsis(command: Command) -> list[str]:
    words = [f".B {text(' '.join(command.words))}"]
    rest = ["[\\fIOPTION\\fR]..."] if command.options else []
    rest += [_argument(each) for each in command.arguments]
    if command.choice:
        rest += ["|"] * bool(command.arguments)
        rest.append(re.sub(r"(\w+)", r"\\fI\1\\fR", command.choice))
    return [*words, " ".join(rest) or "\\&", ".br"]


def _argument(argument: Option) -> str:
    return f"\\fI{text(argument.value)}\\fR" + ("..." if argument.many else "")


def _body(command: Command) -> list[str]:
    lines = [text(_sentence(command.help))]
    if command.description:
        lines += [".PP", text(command.description)]
    lines += _options(command)
    for each in command.commands:
        typed = " ".join([f"\\fB{text(each.name)}\\fR", *map(_argument, each.arguments)])
        lines += [".TP", typed, text(_sentence(each.help))]
        if each.options:
            lines += [".RS", *_options(each), ".RE"]
    if command.epilog:
        lines += [".PP", text(command.epilog)]
    return lines


def _options(command: Command) -> list[str]:
    lines: list[str] = []
    for option in command.options:
        if "--help" in option.names and len(command.words) > 1:
            continue
        names = ", ".join(f"\\fB{text(name)}\\fR" for name in option.names)
        value = f" \\fI{text('|'.join(option.choices) or option.value)}\\fR"
        lines += [".TP", names + (value if option.value else "")]
        lines.append(text(_sentence(option.help)) or "\\&")
    return lines


def _sentence(help: str) -> str:
    return help[:1].upper() + help[1:] + "." if help else ""


def text(plain: str) -> str:
    """`plain`, escaped for the formatter."""
    escaped = plain.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(
        f"\\&{line}" if line[:1] in (".", "'") else line for line in escaped.split("\n")
    )
