"""The first day of a lawyer, a developer and an operator, recorded screen by screen: the real
program on the demo model, in a terminal, with their kinds of files.

    python -m tests.e2e.people [--person lawyer] [--size 80x24] [--look light] [--out FOLDER]

writes FOLDER/PERSON-SIZE-LOOK.txt: each step, and the screen after it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from sysconfig import get_path

import openpyxl

from benchmarks.first_questions_data import generated
from benchmarks.large_log import write_log
from benchmarks.terminal import own_folders
from tests import patience
from tests.e2e.terminal import PROGRAM, ROOT, Terminal
from tests.ingest.test_office import docx, paragraph

PATIENCE = 90.0 * patience.PATIENCE
PAUSE_SECONDS = 0.5
"""As a person pauses before Enter: the names of files that were offered are gone by then."""
WAITING = "Ask, paste a document, or type @ for a file"
LOOKS = {
    "dark": {"COLORFGBG": "15;0"},
    "light": {"COLORFGBG": "0;15"},
    "no-color": {"NO_COLOR": "1"},
}
SIZES = {"80x24": (80, 24), "120x36": (120, 36)}
LOG_BYTES = 70_000_000
"""More than the limit for a file that is read whole."""
CLAUSES = {
    "Rent": "The monthly rent for the two floors is 4,150 euros, due on the third working day.",
    "Term": "The lease begins on 1 March 2026 and ends on 28 February 2031.",
    "Deposit": "The tenant pays a deposit of 12,450 euros to an account that bears interest.",
    "Repairs": "The landlord maintains the roof, the lift and the outer walls. Other repairs up to"
    " 300 euros each are paid by the tenant.",
    "Sublease": "A sublease needs the written consent of the landlord, which may be refused only"
    " for an important reason in the person of the subtenant.",
    "Notice": "Either party may end the lease early with a notice of nine months if the building"
    " is sold.",
}
PRICES = (
    ("service", "euros a year"),
    ("parking", "7,200"),
    ("storage", "1,150"),
    ("signage", "480"),
)
MAIL = """\
From: Office <office@example.com>
To: Tenant <tenant@example.com>
Subject: Handover of the second floor
Date: Mon, 12 Jan 2026 10:15:00 +0100
Content-Type: text/plain; charset=utf-8

Dear tenant,

at the handover the door of the meeting room was broken. We deduct EUR 1,830 for the broken
door from the deposit of EUR 12,450. The rest is returned by 27 February 2026.

Kind regards, the office
"""


class Recorder:
    """Types into a terminal, and keeps what the screen shows after each step."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.steps: list[str] = []

    def sees(self, step: str, *texts: str) -> str:
        """Wait for all of `texts`, on a screen on which nothing goes on any more."""
        time.sleep(PAUSE_SECONDS)
        screen = self.terminal.wait_until(
            lambda screen: (
                all(each in screen for each in texts)
                and not any(each in screen for each in ("Esc stop", "⏎ queue", "loading"))
            ),
            PATIENCE,
            texts,
        )
        self.steps.append(f"=== {step}\n\n{screen.rstrip()}\n")
        return screen

    def asks(self, question: str, *answer: str, document: str = "") -> str:
        """Ask, in a new conversation if a document is attached."""
        if document:
            self.terminal.press("C-n")
            time.sleep(PAUSE_SECONDS)
            question = f"@{document} {question}"
        self.terminal.type(question)
        self.terminal.wait_until(lambda screen: question[-10:] in screen, PATIENCE)
        time.sleep(PAUSE_SECONDS)
        self.terminal.press("Enter")
        return self.sees(question, *answer, WAITING)


@contextmanager
def app(home: Path, folder: Path, size: str, look: str, *arguments: str) -> Iterator[Recorder]:
    environment = own_folders(home) | LOOKS[look] | {"PYTHONPATH": str(ROOT)}
    command = [*PROGRAM, *arguments]
    with Terminal(command, size=SIZES[size], folder=folder, environment=environment) as terminal:
        terminal.wait_for("next: AUTO", seconds=PATIENCE)
        yield Recorder(terminal)
        terminal.press("C-q")
        terminal.wait_for("exited with 0", seconds=PATIENCE)


def lawyer(root: Path, size: str, look: str) -> list[str]:
    """A licence, a lease in Word, a mail, and the lease again on another day."""
    rows = "".join(
        "<w:tr>" + "".join(f"<w:tc>{paragraph(cell)}</w:tc>" for cell in row) + "</w:tr>"
        for row in PRICES
    )
    body = "".join(
        paragraph(f"{number} {name}", "Heading1") + paragraph(text)
        for number, (name, text) in enumerate(CLAUSES.items(), 1)
    )
    (root / "lease.docx").write_bytes(docx(body + f"<w:tbl>{rows}</w:tbl>"))
    (root / "offer.eml").write_text(MAIL)
    with app(root / "home", root, size, look) as at:
        at.sees("the first start", "gpl-3.0.txt", "ready")
        at.terminal.press("Enter")
        at.sees("Enter asks about the sample", "patent against the party", "Read ", WAITING)
        at.terminal.press("C-n")
        at.terminal.wait_for(WAITING)
        at.terminal.type("What does parking cost? @laese.docx")
        at.terminal.press("Enter")
        at.sees("a name with a typing error", "laese.docx", "lease.docx")
        at.terminal.press("C-u")
        at.asks("What does parking cost?", "7,200", document="lease.docx")
        at.asks("May we sublet a room?")
        at.asks("How often does the word tenant occur?", "Counted in the text")
        at.terminal.press("C-s")
        at.sees("Ctrl+S: what was read", "What was read")
        at.terminal.press("Escape")
        at.terminal.wait_for(WAITING)
        at.asks("How much is deducted for the broken door?", "1,830", document="offer.eml")
    with app(root / "home", root, size, look) as later:
        later.sees("another day: the last conversation", "1,830", WAITING)
        later.terminal.press("C-o")
        later.sees("Ctrl+O: conversations and their documents", "lease.docx", "Type to find")
        later.terminal.press("Tab")
        later.sees("Tab: documents only", "lease.docx")
        later.terminal.type("lease")
        later.terminal.wait_until(lambda screen: "offer.eml" not in screen, PATIENCE)
        later.terminal.press("Enter")
        later.sees("Enter asks about it again", "▣ lease.docx", WAITING)
        later.asks("When does the lease end?", "28 February 2031")
        return [*at.steps, *later.steps]


def developer(root: Path, size: str, look: str) -> list[str]:
    """A package of another, with translations beside its sources."""
    project = root / "hub"
    shutil.copytree(Path(get_path("purelib")) / "huggingface_hub", project, ignore=_ignored)
    for language in ("de", "fr", "sr", "uk"):
        folder = project / "locale" / language
        folder.mkdir(parents=True)
        entries = [f'msgid "cache folder {n}"\nmsgstr "{language} {n}"\n' for n in range(400)]
        (folder / "hub.po").write_text("\n".join(entries))
    with app(root / "home", root, size, look, "hub") as at:
        at.sees("specchat hub: the folder is read", "▣ hub/", "ready")
        at.asks("Where is the number of retries of http_backoff checked?", "_http.py")
        at.terminal.press("C-f")
        at.sees("Ctrl+F: the files", "_http.py")
        at.terminal.press("Escape")
        at.terminal.wait_for(WAITING)
        at.asks("How often does RepositoryNotFoundError occur?", "more lines.")
        at.terminal.press("F1")
        at.sees("F1: the keys", "F1")
        at.terminal.press("Escape")
        at.terminal.wait_for(WAITING)
        return at.steps


def operator(root: Path, size: str, look: str) -> list[str]:
    """A log that is too large to be read whole, its last lines, tables and sheets."""
    write_log(root / "huge.log", LOG_BYTES)
    (root / "weather.csv").write_text(generated("weather.csv"))
    book = openpyxl.Workbook()
    book.remove(book.active)
    for number in range(1, 25):
        sheet = book.create_sheet(f"Branch {number:02}")
        sheet.append(["role", "name", "phone"])
        sheet.append(["manager", f"Manager{number * 37 % 101}", f"555-{number * 61 % 900:03}"])
        sheet.append(["cashier", f"Cashier{number * 53 % 101}", f"555-{number * 71 % 900:03}"])
    book.save(root / "branches.xlsx")
    with app(root / "home", root, size, look) as at:
        at.sees("the first start", "ready")
        at.asks("What was the rain on 28 January 2025?", "2025/01/28", document="weather.csv")
        at.asks("Who is the manager of Branch 07?", "Manager57", document="branches.xlsx")
        at.asks("Why was transfer 9917-XK rejected?", "rejected: balance", document="huge.log")
        at.asks("Which transfer was rejected?", document="huge.log#-500")
        return at.steps


def _ignored(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "__pycache__"]


PEOPLE: dict[str, Callable[[Path, str, str], list[str]]] = {
    "lawyer": lawyer,
    "developer": developer,
    "operator": operator,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.people", description=__doc__)
    parser.add_argument("--person", action="append", choices=PEOPLE)
    parser.add_argument("--size", action="append", choices=SIZES)
    parser.add_argument("--look", action="append", choices=LOOKS)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for person in options.person or PEOPLE:
        for size in options.size or SIZES:
            for look in options.look or LOOKS:
                with tempfile.TemporaryDirectory() as root:
                    steps = PEOPLE[person](Path(root), size, look)
                (options.out / f"{person}-{size}-{look}.txt").write_text("\n".join(steps))
                print(person, size, look, f"{len(steps)} steps", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
