"""Mails become the text that mail programs show, with what is attached to it."""

from __future__ import annotations

import base64
import time
from email.message import EmailMessage
from pathlib import Path

from app.ingest.calendar_text import calendar_events
from app.ingest.mail import Mail, read_mail
from tests.ingest.helpers import intake, written
from tests.tables import table


def text_of(path: Path) -> str:
    return intake(path).documents[0].text


def read(source: str) -> Mail:
    mail = read_mail(source.encode(), lambda: None)
    assert mail is not None
    return mail


def multipart(kind: str, *parts: str, boundary: str = "b") -> str:
    """A part of several ones. Each is given with its headers."""
    inside = "".join(f"--{boundary}\n{part}\n" for part in parts)
    return f"Content-Type: multipart/{kind}; boundary={boundary}\n\n{inside}--{boundary}--\n"


PLAIN, PAGE = "Content-Type: text/plain\n\n", "Content-Type: text/html\n\n"


def test_a_mail(tmp_path: Path) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"] = "Zoë <zoe@example.org>", "ben@example.org"
    mail["Subject"] = "Kündigung"
    mail.set_content("Die Kündigungsfrist beträgt 30 Tage.\n", cte="base64")
    mail.add_alternative("<p>Not this one.</p>", subtype="html")
    mail.add_attachment("a;b\n1;2\n", filename="table.csv", subtype="csv")
    mail.add_attachment(b"\x89PNG", "image", "png", filename="plan.png")
    result = intake(written(tmp_path / "a.eml", bytes(mail)))
    assert result.documents[0].text == (
        "From: Zoë <zoe@example.org>\nTo: ben@example.org\nSubject: Kündigung\n\n"
        "Die Kündigungsfrist beträgt 30 Tage.\n\n"
        "[Attachment table.csv]\na;b\n1;2\n\n[Attachment plan.png, not read]\n"
    )
    assert [each.sentence for each in result.skipped] == [
        "a.eml has 1 attachment that cannot be read (plan.png): save what you need, and add that by"
        " name."
    ]


MAILS = {
    "only a page": (
        "a.eml",
        b"Content-Type: text/html; charset=utf-8\n\n<p>Yes</p><script>no</script>",
        "\nYes\n",
    ),
    "after a byte order mark": (
        "a.eml",
        b"\xef\xbb\xbfContent-Type: text/html\n\n<p>Yes</p>",
        "Yes\n",
    ),
    "quoted-printable": (
        "a.eml",
        b"Content-Transfer-Encoding: quoted-printable\nContent-Type: text/plain; charset=latin-1\n"
        b"\ngr=FC=\n=DFe",
        "grüße\n",
    ),
    "a wrong encoding": (
        "a.eml",
        b"Content-Type: text/plain; charset=us-ascii\n\ngr\xc3\xbc\xc3\x9fe",
        "grüße\n",
    ),
    "several": ("a.mbox", b"From x\nSubject: A\n\nOne\n\nFrom y\nSubject: B\n\nTwo\n", "Two\n"),
    "several in base64": (
        "a.mbox",
        b"From x\nSubject: A\nContent-Transfer-Encoding: base64\n\nT25l\n\n"
        b"From carl Tue\nSubject: B\n\nFrom here\n\nFrom there on",
        "Subject: A\n\nOne\n\nSubject: B\n\nFrom here\n\nFrom there on\n",
    ),
    "of Apple": ("a.emlx", b"20\nSubject: A\n\nOne\n", "Subject: A\n\nOne\n"),
    "an archive of a page": (
        "a.mht",
        b"MIME-Version: 1.0\nContent-Type: multipart/related; boundary=b\n\n--b\n"
        b"Content-Type: text/html\n\n<p>Yes\n--b\nContent-Type: image/png\n\nx\n--b--",
        "Yes\n",
    ),
    "UTF-8 in a header": ("a.eml", "Subject: Gehälter\n\nx".encode(), "Subject: Gehälter\n\nx\n"),
    "half a character": (
        "a.eml",
        b"Content-Type: text/plain; charset=utf-7\n\na +2D0- b",
        "a \ufffd b\n",
    ),
    "an encoding of no text": (
        "a.eml",
        b"Content-Type: text/plain; charset=unicode_escape\n\nC:\\new\\table",
        "C:\\new\\table\n",
    ),
    "parameters without end": ("a.eml", b"Content-Type: a" + b";x" * 200_000 + b"\n\nOne", "One"),
}


@table("case", MAILS)
def test_forms_of_mail(tmp_path: Path, case: str) -> None:
    name, data, text = MAILS[case]
    assert text_of(written(tmp_path / name, data)).endswith(text.lstrip("\n"))


def test_a_mail_with_bad_bytes_says_of_what_encoding(tmp_path: Path) -> None:
    head = b"Subject: a\nContent-Type: text/plain; charset=utf-8\n\n"
    (file,) = intake(written(tmp_path / "a.eml", head + "ä ö ü ".encode() + b"\xff")).files
    assert "is not entirely valid UTF-8" in file.sentence


def nested(depth: int) -> str:
    """The beginning of a mail whose parts are inside each other."""
    return "".join(
        f"Content-Type: multipart/mixed; boundary=b{i}\n\n--b{i}\n" for i in range(depth)
    )


def test_reading_a_mail_of_nested_parts_can_be_cancelled() -> None:
    head = nested(50)
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1

    read_mail(head.encode() + b"\nx" * 100_000, check)
    assert checks > 10


def test_the_depth_of_parts_does_not_multiply_the_time() -> None:
    def seconds(depth: int) -> float:
        start = time.process_time()
        read(nested(depth) + "\n" * 50_000)
        return time.process_time() - start

    few = min(seconds(20) for _ in range(3))
    assert seconds(600) < 3 * few + 0.05


# ------------------------------------------------------------------------------ several forms

FORMS = {
    "the plain one": (
        [f"{PLAIN}The price is 90 euros.", f"{PAGE}<p>The price is <b>90</b> euros. Hi.</p>"],
        "The price is 90 euros.\n",
    ),
    "the one that says more": (
        [
            f"{PLAIN}Open this mail in a program that shows HTML: https://example.org/a/b/c/d/e",
            f"{PAGE}<p>Order 4711 of 95 EUR ships on 5 March.<p>It has one lamp and a switch.</p>",
        ],
        "Order 4711 of 95 EUR ships on 5 March.\n\nIt has one lamp and a switch.\n",
    ),
    "an empty one": ([f"{PLAIN}\n", f"{PAGE}<p>A</p>"], "A\n"),
    "a template": ([f"{PAGE}<p>Dear {{{{name}}}}</p>"], "Dear {{name}}\n"),
    "one with pictures": (
        [
            f"{PLAIN}A",
            multipart(
                "related", f"{PAGE}<p>A B C</p>", "Content-Type: image/png\n\nx", boundary="c"
            ),
        ],
        "A B C\n",
    ),
    "an attachment in the other one": (
        [
            f"{PLAIN}See the terms below.",
            multipart(
                "mixed",
                f"{PAGE}<p>See the terms below.",
                "Content-Type: text/plain; name=terms.txt\n\n14 days.",
                "Content-Type: image/png; name=a.png\n\nx",
                boundary="c",
            ),
        ],
        "See the terms below.\n\n[Attachment terms.txt]\n14 days.\n\n"
        "[Attachment a.png, not read]\n",
    ),
    "one of another program": (
        ["Content-Type: text/x-amp-html\n\n<p>A B C D</p>", f"{PAGE}<p>A</p>"],
        "A\n",
    ),
    "one in another kind of text": (["Content-Type: text/enriched\n\nA"], "A\n"),
    "none": ([], ""),
}


@table("case", FORMS)
def test_forms_of_a_text(case: str) -> None:
    parts, text = FORMS[case]
    assert (
        read(f"Subject: S\n{multipart('alternative', *parts)}").text
        == f"Subject: S\n\n{text}".rstrip("\n") + "\n"
    )


def test_links_in_html_have_their_addresses() -> None:
    page = "<a href='https://example.org/terms'>the terms</a>"
    assert read(f"{PAGE}See {page}").text == "See the terms (https://example.org/terms)\n"
    saved = f"Content-Location: https://example.org/\n{PAGE}<title>T</title>See {page}"
    assert read(saved).text == "T\nSee the terms\n"


# ------------------------------------------------------------------------------ invitations

EVENT = """BEGIN:VCALENDAR
METHOD:REQUEST
BEGIN:VTIMEZONE
DTSTART:19700101T000000
END:VTIMEZONE
BEGIN:VEVENT
DTSTART;TZID=Europe/Berlin:20260305T140000
DTEND;TZID=Europe/Berlin:20260305T153000
SUMMARY:Budget\\, 2026
LOCATION:Room 7\\n
  second floor
RRULE:FREQ=WEEKLY;COUNT=4
ORGANIZER;CN="Berg; Anna":mailto:anna@example.org
ATTENDEE;CN=Ben;PARTSTAT=ACCEPTED:MAILTO:ben@example.org
ATTENDEE:mailto:c@example.org
DESCRIPTION:Please come.\\nBring figures.
BEGIN:VALARM
DESCRIPTION:Reminder
END:VALARM
END:VEVENT
END:VCALENDAR
"""
SHOWN = """[Invitation]
What: Budget, 2026
When: 2026-03-05 14:00 to 15:30 (Europe/Berlin)
Where: Room 7 second floor
Repeats: weekly, count=4
Organiser: Berg; Anna <anna@example.org>
Invited: Ben <ben@example.org> (accepted), c@example.org
"""
CALENDAR = f"Content-Type: text/calendar; method=REQUEST\n\n{EVENT}"
FILE = (
    "Content-Type: application/ics; name=invite.ics\nContent-Disposition: attachment\n"
    f"Content-Transfer-Encoding: base64\n\n{base64.encodebytes(EVENT.encode()).decode()}"
)
NO_EVENT = "Content-Type: text/calendar\n\nBEGIN:VFREEBUSY\nEND:VFREEBUSY"
INVITATIONS = {
    CALENDAR: f"{SHOWN}Please come.\nBring figures.\n",
    multipart("alternative", f"{PLAIN}Do come.", CALENDAR): (
        f"Do come.\n\n{SHOWN}Please come.\nBring figures.\n"
    ),
    multipart("alternative", f"{PLAIN}Please come.\n Bring figures.\nAnna", CALENDAR): (
        f"Please come.\n Bring figures.\nAnna\n\n{SHOWN}"
    ),
    multipart("mixed", f"{PLAIN}Please come. Bring figures.", CALENDAR, FILE): (
        f"Please come. Bring figures.\n\n{SHOWN}"
    ),
    multipart("mixed", FILE, f"{PLAIN}Please come. Bring figures."): (
        f"{SHOWN}\n[End of the event]\nPlease come. Bring figures.\n"
    ),
    NO_EVENT: "[Attachment calendar.ics]\nBEGIN:VFREEBUSY\nEND:VFREEBUSY\n",
}


@table("source", INVITATIONS)
def test_invitations(source: str) -> None:
    mail = read(source)
    assert mail.text == INVITATIONS[source]
    assert mail.unread == []


TIMES = {
    "DTSTART:20260305T140000Z": "2026-03-05 14:00 UTC",
    "DTSTART:20260305T140000": "2026-03-05 14:00",
    "DTSTART;VALUE=DATE:20260305\nDTEND;VALUE=DATE:20260306": "2026-03-05",
    "DTSTART;VALUE=DATE:20260305\nDTEND;VALUE=DATE:20260308": "2026-03-05 to 2026-03-07",
    "DTSTART;VALUE=DATE:20260305\nDURATION:P2D": "2026-03-05 to 2026-03-06",
    "DTSTART:20260305T230000Z\nDURATION:PT1H30M": "2026-03-05 23:00 to 2026-03-06 00:30 UTC",
    "DTSTART:20260305T230000Z\nDTEND;TZID=Asia/Tokyo:20260306T090000": (
        "2026-03-05 23:00 UTC to 2026-03-06 09:00 (Asia/Tokyo)"
    ),
    "DTSTART:soon": "soon",
    "DTSTART:20261305": "20261305",
    "DTSTART:00010101\nDTEND:00010101": "00010101",
}


@table("lines", TIMES)
def test_times_of_events(lines: str) -> None:
    ((event, details),) = calendar_events(f"BEGIN:VEVENT\n{lines}\nEND:VEVENT")
    assert (event, details) == (f"[Event]\nWhen: {TIMES[lines]}", "")


def test_a_cancelled_event_and_a_task() -> None:
    source = (
        "BEGIN:VCALENDAR\r\nMETHOD:CANCEL\r\nBEGIN:VEVENT\r\nSUMMARY:A\r\nSTATUS:CANCELLED\r\n"
        "RECURRENCE-ID:20260305T140000Z\r\nEND:VEVENT\r\nBEGIN:VTODO\r\nSUMMARY:B\r\n"
        "DUE;VALUE=DATE:20260305\r\nEND:VTODO\r\nEND:VCALENDAR"
    )
    assert [event for event, _ in calendar_events(source)] == [
        "[Cancelled event]\nWhat: A\nInstead of: 2026-03-05 14:00 UTC\nStatus: cancelled",
        "[Cancelled event]\nWhat: B\nDue: 2026-03-05",
    ]


@table("piece", ["a", "x:;a", 'x;"', "x;a=", "BEGIN:VEVENT\n", "BEGIN:VEVENT\nEND:VEVENT\n"])
def test_time_grows_with_the_size_of_a_calendar(piece: str) -> None:
    def seconds(times: int) -> float:
        start = time.process_time()
        list(calendar_events(piece * times))
        return time.process_time() - start

    few = min(seconds(1_000) for _ in range(3))
    assert seconds(20_000) < 80 * few + 0.05


# ------------------------------------------------------------------------------ attached mails

OLD = "Subject: =?utf-8?q?=C3=84lter?=\n\nWe accept.\n"
AS_MAIL = "Content-Type: message/rfc822\nContent-Transfer-Encoding:"
QUOTED = OLD.replace("=", "=3D").replace("accept", "acc=\nept")


@table(
    "part",
    [
        f"Content-Type: message/rfc822\n\n{OLD}",
        f"{AS_MAIL} base64\n\n{base64.encodebytes(OLD.encode()).decode()}",
        f"{AS_MAIL} base64\n\n{OLD}",
        f"{AS_MAIL} quoted-printable\n\n{QUOTED}",
    ],
)
def test_attached_mails(part: str) -> None:
    mail = read(multipart("mixed", part, f"{PLAIN}I refuse."))
    assert mail.text == (
        "[Attached mail]\nSubject: Älter\n\nWe accept.\n\n[End of the attached mail]\nI refuse.\n"
    )


def test_an_attached_mail_that_cannot_be_decoded_is_named() -> None:
    mail = read(multipart("mixed", f"{AS_MAIL} base64\n\n!!!"))
    assert (mail.text, mail.unread) == ("[Attachment a mail, not read]\n", ["a mail"])


def test_text_after_an_attachment_is_set_apart() -> None:
    attachment = "Content-Type: text/x-sh; name=a.sh\n\n# load\nrun"
    notes = "Content-Type: text/markdown; name=a.md\n\n# Notes"
    assert read(multipart("mixed", attachment, notes, f"{PLAIN}A")).text == (
        "[Attachment a.sh]\n # load\nrun\n\n[Attachment a.md]\n# Notes\n\n[End of a.md]\nA\n"
    )


def test_parts_that_are_no_text_are_named() -> None:
    mail = read(multipart("mixed", "Content-Type: image/png\n\nx", f"{PLAIN}A"))
    assert (mail.text, mail.unread) == ("[Attachment image/png, not read]\nA\n", ["image/png"])


ELSEWHERE = "Content-Type: message/external-body; access-type=anon-ftp"


@table("name, shown", [("; name=a.txt", "a.txt"), ("", "a file that is kept elsewhere")])
def test_files_that_are_not_in_the_mail_are_named(name: str, shown: str) -> None:
    mail = read(multipart("mixed", f"{ELSEWHERE}{name}\n\nContent-Type: text/plain\n\n"))
    assert (mail.text, mail.unread) == (f"[Attachment {shown}, not read]\n", [shown])


def test_a_mail_of_too_many_layers_says_so() -> None:
    source = f"{PLAIN}A"
    for number in range(22):
        source = multipart("mixed", source, boundary=f"b{number}")
    mail = read(source)
    assert mail.text == "[A part nested too deeply, not read]\n"
    assert mail.unread == ["a part nested too deeply"]


def test_a_report_says_why_a_mail_was_not_delivered() -> None:
    report = multipart(
        "report",
        f"{PLAIN}Could not deliver.",
        "Content-Type: message/delivery-status\n\nReporting-MTA: dns; mx.example.org\n\n"
        "Final-Recipient: rfc822; a@example.org\nDiagnostic-Code: smtp; 552 =?utf-8?q?full?=\n",
        "Content-Type: text/rfc822-headers\n\nReceived: x\nSubject: Invoice\n 4711\n",
    )
    assert read(report).text == (
        "Could not deliver.\n\n[Report]\nReporting-MTA: dns; mx.example.org\n\n"
        "Final-Recipient: rfc822; a@example.org\nDiagnostic-Code: smtp; 552 full\n\n"
        "[Headers of the returned mail]\nSubject: Invoice 4711\n"
    )
    receipt = "Content-Type: message/disposition-notification\n\nDisposition: manual; displayed\n"
    assert read(multipart("report", f"{PLAIN}Seen.", receipt)).text == (
        "Seen.\n\n[Report]\nDisposition: manual; displayed\n"
    )


# ------------------------------------------------------------------------------ lines

FLOWED = {
    "own \ntext is \nlong.\nNext": "own text is long.\nNext",
    "> quoted \n> text\n>> deep \n> other\nown": "> quoted text\n>> deep \n> other\nown",
    "A \n-- \nAnna": "A \n-- \nAnna",
    "  indented\n >mark\n From": " indented\n>mark\n From",
    "last ": "last",
}


@table("source", FLOWED)
def test_wrapped_lines_are_joined(source: str) -> None:
    head = "Content-Type: text/plain; format=flowed\n\n"
    assert read(head + source).text.rstrip() == FLOWED[source]


def test_wrapped_lines_without_their_spaces() -> None:
    head = "Content-Type: text/plain; charset=utf-8; format=flowed; DelSp=Yes\r\n\r\n"
    assert read(f"{head}The notice pe \r\nriod is  \r\nthirty \r\n days.\r\n").text == (
        "The notice period is thirty days.\n"
    )


def test_lines_of_a_mailbox() -> None:
    box = "From x\nSubject: A\n\n>From Monday on\n>>From us\n> From them\n"
    assert read(box).text == "Subject: A\n\nFrom Monday on\n>From us\n> From them\n"
    assert read(box.removeprefix("From x\n")).text.endswith(
        "\n>From Monday on\n>>From us\n> From them\n"
    )


def test_soft_hyphens_in_the_text_of_a_mail() -> None:
    source = f"{PLAIN}Kün\u00addi\u00adgung"
    assert read(source).text == "Kündigung\n"
