"""Completions for bash, zsh and fish.

shtab is no replacement: in zsh and fish it completes only commands after `specchat`, not files.
"""

from __future__ import annotations

from commands import Command, Option

NOTE = "# Written by packaging/shell.py from the command line's parser."

# --------------------------------------------------------------------------- bash

BASH = """\
{note}
# Without a match, bash completes file names. Works with the bash 3.2 of macOS.
_specchat() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous= command=specchat word i
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${{COMP_WORDS[i]}}"
        case "$command $word" in
        {commands}) command="$command $word" ;;
        esac
        previous="$word"
    done
    case "$command $previous" in
{values}
    esac
    case "$command/$current" in
{words}
    esac
}}
complete -o bashdefault -o default -F _specchat specchat
"""


def bash(top: Command) -> str:
    every = list(top.all())
    values = [
        f"    {_bash_cases(command, option)}) {_bash_reply(option.choices)}return ;;"
        for command in every
        for option in command.options
        if option.value
    ]
    words = [line for command in every for line in _bash_offers(command)]
    return BASH.format(
        note=NOTE,
        commands=" | ".join(f"'{' '.join(each.words)}'" for each in every[1:]),
        values="\n".join(values),
        words="\n".join(words),
    )


def _bash_cases(command: Command, option: Option) -> str:
    return " | ".join(f"'{' '.join(command.words)} {name}'" for name in option.names)


def _bash_offers(command: Command) -> list[str]:
    """Options after a dash, otherwise commands."""
    typed = " ".join(command.words)
    options = tuple(name for option in command.options for name in option.names)
    lines = [f"    '{typed}/-'*) {_bash_reply(options)};;"] if options else []
    if command.commands:
        below = tuple(each.name for each in command.commands)
        lines.append(f"    '{typed}/'*) {_bash_reply(below)};;")
    return lines


def _bash_reply(words: tuple[str, ...]) -> str:
    if not words:
        return ""
    return f"COMPREPLY=($(compgen -W '{' '.join(words)}' -- \"$current\")); "


# --------------------------------------------------------------------------- zsh


def zsh(top: Command) -> str:
    functions = [_zsh_function(each) for each in top.all()]
    return "\n\n".join([f"#compdef specchat\n{NOTE}", *functions, '_specchat "$@"']) + "\n"


def _zsh_function(command: Command) -> str:
    specs = [spec for option in command.options for spec in _zsh_option(option)]
    if not command.commands:
        specs += [_zsh_argument(each) for each in command.arguments]
        body = " \\\n        ".join(["_arguments -s", *specs])
        return f"{_zsh_name(command)}() {{\n    {body}\n}}"
    specs += ["'1: :->command'", "'*:: :->rest'"]
    body = " \\\n        ".join(["_arguments -s -C", *specs])
    offered = "\n            ".join(
        _quoted(f"{each.name}:{each.help}") for each in command.commands
    )
    rest = [f"{each.name}) {_zsh_name(each)} ;;" for each in command.commands]
    files = ""
    if any(each.is_path for each in command.arguments):
        files = "\n        _files"
        rest.append("*) _files ;;")
    cases = "\n            ".join(rest)
    return f"""{_zsh_name(command)}() {{
    local context state state_descr line
    typeset -A opt_args
    {body}
    case $state in
    command)
        local -a commands=(
            {offered}
        )
        _describe command commands{files}
        ;;
    rest)
        case $line[1] in
            {cases}
        esac
        ;;
    esac
}}"""


def _zsh_name(command: Command) -> str:
    return "_" + "_".join(command.words)


def _zsh_option(option: Option) -> list[str]:
    value = f":{_zsh_plain(option.value)}:{_zsh_values(option)}" if option.value else ""
    again = "*" if option.many else ""
    return [_quoted(f"{again}{name}[{_zsh_plain(option.help)}]{value}") for name in option.names]


def _zsh_argument(argument: Option) -> str:
    first = "*" if argument.many else ""
    return _quoted(f"{first}:{_zsh_plain(argument.value)}:{_zsh_values(argument)}")


def _zsh_values(option: Option) -> str:
    if option.choices:
        return f"({' '.join(option.choices)})"
    return "_files" if option.is_path else " "


def _zsh_plain(text: str) -> str:
    for special in ("\\", "[", "]", ":"):
        text = text.replace(special, f"\\{special}")
    return text


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# --------------------------------------------------------------------------- fish


def fish(top: Command) -> str:
    lines = [NOTE, "complete -c specchat -f"]
    for command in top.all():
        condition = _fish_condition(command)
        for each in command.commands:
            lines.append(f"{condition} -a {each.name} -d {_fish_quoted(each.help)}")
        for option in command.options:
            lines.append(" ".join([condition, *_fish_option(option)]))
        if any(each.is_path for each in command.arguments):
            lines.append(f"{condition} -F")
    return "\n".join(lines) + "\n"


def _fish_condition(command: Command) -> str:
    """True after the words of this command, and before a command below it."""
    seen = [f"__fish_seen_subcommand_from {word}" for word in command.words[1:]]
    if command.commands:
        below = " ".join(each.name for each in command.commands)
        seen.append(f"not __fish_seen_subcommand_from {below}")
    return f"complete -c specchat -n {_fish_quoted('; and '.join(seen))}"


def _fish_option(option: Option) -> list[str]:
    parts = []
    for name in option.names:
        parts += ["-l", name[2:]] if name.startswith("--") else ["-s", name[1:]]
    if option.choices:
        parts += ["-x", "-a", _fish_quoted(" ".join(option.choices))]
    elif option.value:
        parts += ["-r", "-F"] if option.is_path else ["-x"]
    return [*parts, "-d", _fish_quoted(option.help)] if option.help else parts


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
