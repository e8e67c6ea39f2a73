"""What README and docs tell one to type can be typed, and what they link to is there. Nothing is
run: command lines are given to the parser."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli.main import parser
from app.errors import UserError
from benchmarks.__main__ import parser as measures

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    ROOT / "README.md",
    ROOT / "packaging" / "RELEASE.md",
    ROOT / "assets" / "pair" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
SHELLS = ("", "sh", "bash")
FOR_ANY = {"contract.txt", "src/", "-", "F"}
"""Files of the reader's own that pages name."""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def text(page: Path) -> str:
    """Without what is not shown."""
    return re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.S)


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every command that stands in a block of code, or between backticks."""
    shown = text(page)
    lines = [line for kind, code in BLOCK.findall(shown) if kind in SHELLS for line in _lines(code)]
    inline = re.findall(r"`([^`]+)`", BLOCK.sub("", shown))
    lines += [" ".join(each.split()) for each in inline if "…" not in each and "..." not in each]
    for line in lines:
        words = shlex.shlex(line, posix=True, punctuation_chars="|&;")
        words.whitespace_split = True
        command: list[str] = []
        try:
            for word in [*words, ";"]:
                if set(word) <= set("|&;"):
                    yield from [command] if command else []
                    command = []
                else:
                    command.append(word)
        except ValueError:  # an apostrophe: no command
            continue


def _lines(code: str) -> list[str]:
    return code.replace("\\\n", " ").splitlines()


def called(program: str, page: Path) -> list[list[str]]:
    """The arguments with which a page calls it."""
    found = [words[1:] for words in commands(page) if Path(words[0]).name == program]
    module = {"specchat": "app", "benchmarks": "benchmarks"}.get(program)
    return found + [words[3:] for words in commands(page) if words[1:3] == ["-m", module]]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_parser_takes_every_command_line(page: Path) -> None:
    calls = [(parser(), words) for words in called("specchat", page)]
    calls += [(measures(), words) for words in called("benchmarks", page)]
    for program, words in calls:
        try:
            options = program.parse_args(words)
        except UserError as error:
            said = error.problem
            # In a sentence a command, or an option of it, may be named alone.
            if re.search(r"are required: [A-Z]|expected one argument", said):
                continue
            pytest.fail(f"{program.prog} {shlex.join(words)}: {said}")
        if getattr(options, "command", "") in (None, "ask"):
            for each in options.paths or getattr(options, "files", []):
                assert each in FOR_ANY or (ROOT / each).exists(), each


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_target_is_in_the_makefile(page: Path) -> None:
    made = {word for words in called("make", page) for word in words if "=" not in word}
    assert made <= TARGETS


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_script_and_every_test_is_there(page: Path) -> None:
    for words in called("python", page):
        for word in words:
            if word.endswith(".py") or word.startswith("tests/"):
                inside = "" if "/" in word else str(page.parent.relative_to(ROOT)) + "/"
                assert (ROOT / f"{inside}{word}").exists(), word


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_and_every_picture_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", text(page))):
        if link.startswith(("http://", "https://")):
            continue
        file, _, heading = link.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), link
        if heading:
            assert heading in _headings(there), link


def _headings(page: Path) -> set[str]:
    """As links name them."""
    titles = re.findall(r"^#+ (.*)$", BLOCK.sub("", text(page)), re.M)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_the_readme_is_the_front_door() -> None:
    readme = ROOT / "README.md"
    words = [" ".join(each) for each in commands(readme)]
    for typed in ("make run", "make test", "make demo", "pipx install", "uv tool install"):
        assert any(each.startswith(typed) for each in words), typed
    for page in (ROOT / "docs").glob("*.md"):
        assert f"(docs/{page.name})" in text(readme) or f"docs/{page.name}" in readme.read_text(
            encoding="utf-8"
        )


def test_a_command_that_is_none_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Type `specchat models\nlist` or\n\n```\nmake x && specchat ask -f - y | cat\n```\n"
    )
    assert called("specchat", page) == [["ask", "-f", "-", "y"], ["models", "list"]]
    assert called("make", page) == [["x"]]
