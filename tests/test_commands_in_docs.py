"""What README and docs tell one to type can be typed, and what they link to is there. Nothing is
run: command lines are given to the parser."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from app.cli.main import parser
from app.errors import UserError
from benchmarks.__main__ import parsed as benchmarks_options
from tests.tables import table

ROOT = Path(__file__).resolve().parent.parent
PAGES = tuple(
    page
    for page in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        ROOT / "packaging" / "RELEASE.md",
        ROOT / "assets" / "pair" / "README.md",
        *(
            each
            for top in ("docs", "benchmarks", "findings")
            for each in (ROOT / top).rglob("*.md")
        ),
    )
    if page.exists()
)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
SHELLS = ("", "sh", "bash")
FOR_ANY = {"contract.txt", "src/", "-", "F"}
"""Files of the reader's own that pages name."""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
PROGRAMS = {"specchat": parser().parse_args, "benchmarks": benchmarks_options}
RAN_UP_TO = re.compile(r"\b[Tt]his\s+command\s+ran\s+up\s+to\s+commit\s+([0-9a-f]{7,40})\b")
"""What a page says after a command that no longer runs."""


class Command(NamedTuple):
    """A command on a page. `in_block`: in a block of code, so it is meant to be typed. Others may
    be the name of a command in a sentence. `ran_up_to`: the last commit at which it ran, for one
    that the page says no longer runs."""

    words: list[str]
    in_block: bool = False
    ran_up_to: str = ""


def text(page: Path) -> str:
    """Without what is not shown."""
    return re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.S)


def without_blocks(shown: str) -> str:
    """With spaces in their place."""
    return BLOCK.sub(lambda block: re.sub(r"\S", " ", block[0]), shown)


def commands(page: Path) -> list[Command]:
    """Every command that stands in a block of code, or between backticks, in their order."""
    shown = text(page)
    found: list[tuple[int, Command]] = []
    for block in BLOCK.finditer(shown):
        if block[1] in SHELLS:
            for line in block[2].replace("\\\n", " ").splitlines():
                found += [(block.start(), Command(words, True)) for words in _split(line)]
    for inline in re.finditer(r"`([^`]+)`", without_blocks(shown)):
        if "…" not in inline[1] and "..." not in inline[1]:
            line = " ".join(inline[1].split())
            found += [(inline.start(), Command(words)) for words in _split(line)]
    found.sort(key=lambda each: each[0])
    for mark in RAN_UP_TO.finditer(shown):
        before = [
            n for n, (place, each) in enumerate(found) if place < mark.start() and calls(each)
        ]
        assert before, f"{page.name}: '{mark[0]}' follows no command"
        place, command = found[before[-1]]
        found[before[-1]] = place, command._replace(ran_up_to=mark[1])
    return [command for _, command in found]


def _split(line: str) -> Iterator[list[str]]:
    """The words of each command of a line."""
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
        return


def calls(command: Command) -> tuple[str, list[str]] | None:
    """`specchat` or `benchmarks` with its arguments, if it is one of these."""
    words = command.words
    if Path(words[0]).name == "specchat":
        return "specchat", words[1:]
    if words[1:3] in (["-m", "app"], ["-m", "benchmarks"]):
        return {"app": "specchat"}.get(words[2], words[2]), words[3:]
    return None


def called(program: str, page: Path) -> list[list[str]]:
    """The arguments with which a page calls it."""
    every = [command.words for command in commands(page)]
    return [words[1:] for words in every if Path(words[0]).name == program]


def problem(program: str, words: list[str], in_block: bool) -> str | None:
    """Why the program refuses these arguments, if it does. In a sentence a command may be named
    without what it is given."""
    try:
        options = (
            benchmarks_options(words) if program == "benchmarks" else parser().parse_args(words)
        )
    except UserError as error:
        missing = re.search(r"arguments are required: ([A-Z]+(?:, [A-Z]+)*)$", error.problem)
        if in_block or not missing:
            return error.problem
        named = words and "WHAT" not in missing[1]
        return problem(program, words + missing[1].split(", "), True) if named else None
    for name in ("paths", "files", "saved", "report", "json", "right_in", "target"):
        value = getattr(options, name, None)
        for each in value if isinstance(value, list | tuple) else filter(None, [value]):
            if lacks(name, str(each)):
                return f"there is no {each}"
    return None


def lacks(option: str, name: str) -> bool:
    """Whether a file or folder of ours is not there. Those in .cache/ are fetched, and the folder
    of a report is needed, not the report."""
    path = ROOT / name
    if name in FOR_ANY or name.startswith(".cache/"):
        return False
    if option in ("report", "json"):
        return name != "True" and not path.parent.is_dir()
    if option == "target":
        return name.startswith("assets/") and not path.exists()
    return not path.exists()


def is_known(commit: str) -> bool:
    """Whether it is in the history, if that is there."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["git", "-c", "safe.directory=*", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    whole = git("rev-parse", "--is-shallow-repository").stdout.strip() == "false"
    return not whole or git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0


def wrong_command_lines(page: Path) -> Iterator[str]:
    for command in commands(page):
        if (call := calls(command)) is None:
            continue
        said, line = problem(*call, command.in_block), shlex.join(command.words)
        if not command.ran_up_to:
            yield from [f"{line}: {said}"] if said else []
        elif said is None:
            yield f"{line}: runs today, although the page says that it does not"
        elif not is_known(command.ran_up_to):
            yield f"{line}: there is no commit {command.ran_up_to}"


def on_pages(wrong: Callable[[Path], Iterator[str]]) -> list[str]:
    """What is wrong on any page, after the page's name."""
    return [f"{page.relative_to(ROOT)}: {each}" for page in PAGES for each in wrong(page)]


def test_every_command_line_on_a_page_can_be_typed() -> None:
    assert len(PAGES) > 60
    assert on_pages(wrong_command_lines) == []


def test_every_target_is_in_the_makefile() -> None:
    def missing(page: Path) -> Iterator[str]:
        for words in called("make", page):
            yield from (word for word in words if "=" not in word and word not in TARGETS)

    assert on_pages(missing) == []


def test_every_script_and_every_test_is_there() -> None:
    def missing(page: Path) -> Iterator[str]:
        for words in called("python", page):
            for word in words:
                if word.endswith(".py") or word.startswith("tests/"):
                    inside = "" if "/" in word else str(page.parent.relative_to(ROOT)) + "/"
                    yield from [] if (ROOT / f"{inside}{word}").exists() else [word]
            if words[:1] == ["-m"] and words[1].startswith(("app.", "benchmarks.", "tests.")):
                module = ROOT / words[1].replace(".", "/")
                yield from [] if module.with_suffix(".py").exists() else [words[1]]

    assert on_pages(missing) == []


def test_every_link_and_every_picture_leads_somewhere() -> None:
    def broken(page: Path) -> Iterator[str]:
        for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(text(page))):
            if link.startswith(("http://", "https://")):
                continue
            file, _, heading = link.partition("#")
            there = page.parent / file if file else page
            if not there.exists() or (heading and heading not in _headings(there)):
                yield link

    assert on_pages(broken) == []


def _headings(page: Path) -> set[str]:
    """As links name them."""
    titles = re.findall(r"^#+ (.*)$", without_blocks(text(page)), re.M)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_the_readme_is_the_front_door() -> None:
    readme = ROOT / "README.md"
    words = [" ".join(each.words) for each in commands(readme)]
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
    assert called("specchat", page) == [["models", "list"], ["ask", "-f", "-", "y"]]
    assert called("make", page) == [["x"]]


QUALITY = "python -m benchmarks quality --suite needle-single"


@table(
    "shown, wrong",
    [
        ("`specchat ask` and `specchat models pull`", ""),
        ("```\nspecchat models pull\n```", "required: NAME"),
        ("`specchat models pull --bogus`", "--bogus"),
        ("`specchat ask --keep`", "expected one argument"),
        ("`specchat ask --keep 2 why`", "'2' is not a valid keep"),
        ("`specchat ask -f none.txt why`", "there is no none.txt"),
        ("`python -m benchmarks`", ""),
        ("`python -m benchmarks none`", "none"),
        (f"`{QUALITY}`", ""),
        (f"`{QUALITY} --scoring lookahead,both`", "no scoring 'lookahead'"),
        (f"`{QUALITY} --tune layers=1`", "no tuning parameter 'layers=1'"),
        (f"`{QUALITY} --suite perplexity`", "no suite 'perplexity'"),
        (f"`{QUALITY} --scoring both --draft builtin`", "needs a draft model"),
        (f"`{QUALITY} --report docs/none/x.md`", "there is no docs/none/x.md"),
        ("`python -m benchmarks decode --shape huge`", "no shape 'huge'"),
        ("`python -m benchmarks draft --length 512`", "attended to densely"),
        ("`python -m benchmarks ttft --draft embedded`", "A draft needs a target"),
        ("`python -m benchmarks all --report docs/x.md --only tftt`", "no benchmark 'tftt'"),
        (f"`{QUALITY} --scoring question`. This command ran up to commit 16a831d0.", ""),
        (f"```\n{QUALITY} --scoring question\n```\n\nThis command ran up to\ncommit 16a831d0.", ""),
        (f"`{QUALITY}`. This command ran up to commit 16a831d0.", "runs today"),
        (
            f"`{QUALITY} --scoring x`, then `{QUALITY}`: this command ran up to commit 16a831d0.",
            "'x'",
        ),
        (f"`{QUALITY} --scoring question`. This command ran up to commit 0123456789.", "no commit"),
    ],
)
def test_a_command_line_that_does_not_run_is_found(shown: str, wrong: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(shown)
    if wrong == "no commit" and is_known("0123456789"):
        return  # without the history
    found = list(wrong_command_lines(page))
    assert bool(found) == bool(wrong)
    assert wrong in "".join(found[:1])
