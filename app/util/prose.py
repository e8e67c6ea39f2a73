"""Distinguishes prose, whose lines may be re-wrapped, from text whose line breaks matter."""

from __future__ import annotations

import re

MIN_WRAPPED = 40
"""Minimum characters of a line of wrapped prose, except for the last line of a paragraph."""
_CODE_END = ("{", "}", ";", "(", "[", "):", "],", "),", "};", "=>", "->", "\\")
_CODE_PART = re.compile(
    r"[=!<>+*/|&-]=|\w\(\)|\w\[\w|[\w)\]] [=<>] [\w(\[\"']|=>|->|::|&&|\|\||</\w|\w\(\w+[,)=]"
)
_CODE_START = re.compile(
    r"(?:def|class|import|from|return|if|elif|else|for|while|try|except|with|func|fn|let|const|var"
    r"|public|private|static|struct|#include|#define|@\w+|\$|//|/\*|>>>|#!)(?![\w-])"
)
_CODE_LINE = re.compile(r"[\w.\[\]]+(?:: ?[\w.\[\], |]+)? ?[-+*/|&]?=[^=]")
_BACKTICKS = re.compile(r"`++")
_CELL_END = re.compile(r"[,;](?=\S)|[\t|]")
_PROSE_START = re.compile(r"[^\W\d_]|[\"'“„«(‘]")


def is_code(text: str) -> bool:
    """Whether most lines of `text` look like source code."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return sum(map(_is_code_line, lines)) * 2 >= max(len(lines), 1)


def keeps_lines(text: str) -> bool:
    """Whether line breaks matter in `text`, as in code, tables, lists and logs."""
    return "\n" in text and not all(map(_is_wrapped, text.split("\n\n")))


def reflow(text: str) -> str:
    """Put each paragraph of `text` on one line, unless its line breaks matter."""
    if keeps_lines(text):
        return text
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def as_markdown(text: str) -> str:
    """Markdown that shows `text` with the line breaks that matter."""
    if not keeps_lines(text):
        return text
    fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def _is_wrapped(paragraph: str) -> bool:
    """Whether a paragraph is prose that was wrapped at a width."""
    lines = [line.strip() for line in paragraph.split("\n") if line.strip()]
    if len(lines) < 2:
        return True
    if len(cells := {len(_CELL_END.findall(line)) for line in lines}) == 1 and min(cells) > 1:
        return False  # rows of a table
    if lines[1][0].islower():
        lines[0] = lines[0].ljust(MIN_WRAPPED)  # the text may begin in the middle of a line
    if any(len(line) < MIN_WRAPPED for line in lines[:-1]) or is_code(paragraph):
        return False
    starting = sum(_PROSE_START.match(line) is not None for line in lines[1:])
    return starting * 4 >= (len(lines) - 1) * 3


def _is_code_line(line: str) -> bool:
    if line.endswith(_CODE_END) and not line.endswith("etc.);"):
        return True
    if _CODE_START.match(line) and line.endswith((":", ")", "]", '"', "'")):
        return True
    return bool(_CODE_LINE.match(line) or _CODE_PART.search(line))
