"""Man page and completions say what the command line takes, and are as the parser is now."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import commands
import completions
import manual
import pytest
import shell

from tests.tables import table

STORED = sorted(path for path in shell.SHARE.rglob("*") if path.is_file())


def test_what_is_stored_is_what_the_parser_says() -> None:
    wanted = shell.files()
    assert {str(path.relative_to(shell.SHARE)) for path in STORED} == set(wanted)
    stale = [name for name, text in wanted.items() if (shell.SHARE / name).read_text() != text]
    assert stale == [], "run `make shell`"


@pytest.fixture
def top() -> commands.Command:
    """A small command line with all that can be in one."""
    parser = argparse.ArgumentParser(prog="specchat", description="It does\nall - 'this'.")
    parser.add_argument("--quiet", action="store_true", help="say [less]: 100%% less")
    below = parser.add_subparsers(metavar="COMMAND")
    say = below.add_parser("say", help="it's said")
    say.add_argument("-f", "--file", metavar="PATH", help="of %(default)s", default="x")
    say.add_argument("--how", choices=("loud", "soft"))
    say.add_argument("--hidden", help=argparse.SUPPRESS)
    say.add_argument("words", metavar="WORD", nargs="+")
    inner = below.add_parser("keep", help="kept").add_subparsers(metavar="ACTION", required=True)
    inner.add_parser("list", help="all")
    return commands.described(parser)


def test_the_command_line_as_data(top: commands.Command) -> None:
    assert [each.words for each in top.all()] == [
        ("specchat",),
        ("specchat", "say"),
        ("specchat", "keep"),
        ("specchat", "keep", "list"),
    ]
    say, keep = top.commands
    options = {option.names[-1]: option for option in say.options}
    assert set(options) == {"--help", "--file", "--how"}
    assert options["--file"].is_path
    assert options["--file"].help == "of x"
    assert options["--how"].choices == ("loud", "soft")
    assert say.arguments[0].many
    assert (top.choice, keep.choice, say.choice) == ("[COMMAND]", "ACTION", "")
    assert top.options[1].help == "say [less]: 100% less"


def test_the_man_page(top: commands.Command) -> None:
    page = manual.page(top)
    assert "\\fB\\-f\\fR, \\fB\\-\\-file\\fR \\fIPATH\\fR" in page
    assert "\\fIloud|soft\\fR" in page
    assert "hidden" not in page
    assert "\n'" not in page  # a line that begins so is a macro


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_formatter_takes_the_man_page() -> None:
    page = shell.SHARE / "man" / "man1" / "specchat.1"
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", str(page)], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert "conversations" in done.stdout


@table(
    "typed, offered",
    [
        ("specchat ", {"say", "keep"}),
        ("specchat s", {"say"}),
        ("specchat -", {"-h", "--help", "--quiet"}),
        ("specchat keep ", {"list"}),
        ("specchat say --h", {"--help", "--how"}),
        ("specchat say --how ", {"loud", "soft"}),
        ("specchat say --how loud --how s", {"soft"}),
        ("specchat say --file ", set()),
        ("specchat say ", set()),
        ("specchat --quiet keep l", {"list"}),
    ],
)
def test_bash_offers(top: commands.Command, tmp_path: Path, typed: str, offered: set[str]) -> None:
    script = tmp_path / "specchat"
    script.write_text(completions.bash(top))
    words = typed.split() + [""] * typed.endswith(" ")
    code = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _specchat;'
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "--norc", "-eu", "-c", code, "bash", str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == offered


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_offers(top: commands.Command, tmp_path: Path) -> None:
    script = tmp_path / "specchat.fish"
    script.write_text(completions.fish(top))

    def offered(typed: str) -> set[str]:
        code = f"source {script}; complete -C '{typed}'"
        command = ["fish", "--no-config", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return {line.split("\t")[0] for line in done.stdout.splitlines()}

    assert offered("specchat ") == {"say", "keep"}
    assert offered("specchat keep ") == {"list"}
    assert offered("specchat say --how ") == {"loud", "soft"}
    assert offered("specchat say --h") == {"--help", "--how"}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "small"])
def test_zsh_takes_the_script(top: commands.Command, tmp_path: Path, stored: bool) -> None:
    script = tmp_path / "_specchat"
    script.write_text(
        shell.files()["zsh/site-functions/_specchat"] if stored else completions.zsh(top)
    )
    subprocess.run(["zsh", "-f", "-n", str(script)], check=True)
    # Loaded as compinit loads it: the functions are all there, and no quote is open.
    code = f"_arguments() {{ print -rl -- $@ }}; source {script}"
    done = subprocess.run(["zsh", "-f", "-c", code], capture_output=True, text=True, check=True)
    assert "*:: :->rest" in done.stdout
    assert done.stderr == ""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_offers_files_after_a_file() -> None:
    script = shell.SHARE / "zsh" / "site-functions" / "_specchat"
    stubs = "_arguments() { state=rest; line=(report.pdf) }; _files() { print files }"
    code = f"{stubs}; source {script}"
    done = subprocess.run(["zsh", "-f", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "files\n"
