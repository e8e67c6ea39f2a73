"""PowerPoint presentations: what their slides show."""

from __future__ import annotations

from xml.etree.ElementTree import fromstring

from app.ingest.archive import Archive
from app.ingest.charts import chart_lines
from app.ingest.parts import Part
from app.ingest.slides import Slides
from tests.ingest.documents import DRAWING, links
from tests.ingest.test_office import pptx, slide
from tests.tables import table

NAMES = f'{DRAWING} xmlns:m="m" xmlns:a14="a14" xmlns:mc="mc" xmlns:cx="cx"'


def read(*shapes: str, **parts: str) -> Part:
    """The first slide. `parts` are members that it links to, by their kind."""
    linked = {f"r{n}": f"{kind} ../{kind}{n}.xml" for n, kind in enumerate(parts, 1)}
    members: dict[str, str | bytes] = {
        f"ppt__{kind}{n}.xml": each for n, (kind, each) in enumerate(parts.items(), 1)
    }
    members["ppt__slides___rels__slide1.xml.rels"] = links(**linked)
    data = pptx(slide(*shapes).replace(DRAWING, NAMES, 1), **members)
    return Slides(Archive(data)).read(0)


def sp(*paragraphs: str, role: str = "", more: str = "") -> str:
    role = f'<p:ph type="{role}"/>' if role else ""
    return (
        f"<p:sp><p:nvSpPr><p:cNvPr{more}/><p:cNvSpPr/><p:nvPr>{role}</p:nvPr></p:nvSpPr>"
        f"<p:txBody>{''.join(paragraphs)}</p:txBody></p:sp>"
    )


def p(text: str, properties: str = "") -> str:
    inside = text if text.startswith("<") else run(text)
    return f"<a:p>{properties}{inside}</a:p>"


def run(text: str, properties: str = "") -> str:
    return f"<a:r>{properties}<a:t>{text}</a:t></a:r>"


def numbered(kind: str, start: str = "") -> str:
    return f'<a:pPr><a:buAutoNum type="{kind}"{start}/></a:pPr>'


HALF = (
    "<m:oMath><m:f><m:num><m:r><m:t>a</m:t></m:r></m:num><m:den><m:r><m:t>2</m:t></m:r></m:den>"
    "</m:f></m:oMath>"
)
TEXTS = {
    "a raised digit": (sp(p(run("10") + run("6", '<a:rPr baseline="30000"/>'))), "10^6"),
    "a lowered digit": (sp(p(run("H") + run("2", '<a:rPr baseline="-25000"/>'))), "H2"),
    "a title": (sp(p("Plan"), role="title"), "# Plan"),
    "bullets of the layout": (sp(p("One"), p("Two"), role="body"), "- One\n- Two"),
    "numbers from 5": (
        sp(p("a", numbered("arabicPeriod", ' startAt="5"')), p("b", numbered("arabicPeriod"))),
        "5. a\n6. b",
    ),
    "letters in brackets": (sp(p("a", numbered("alphaLcParenBoth"))), "(a) a"),
    "a hidden shape": (sp(p("Old plan"), more=' hidden="1"'), "(hidden: Old plan)"),
    "a formula": (
        sp(
            p(
                f"<mc:AlternateContent><mc:Choice><a14:m>{HALF}</a14:m></mc:Choice></mc:AlternateContent>"
            )
        ),
        "a/2",
    ),
    "two boxes": (sp(p("- no item")) + sp(p("B")), "- no item\n\nB"),
    "a field": (sp(p('<a:fld type="datetime1"><a:t>1 May</a:t></a:fld>')), "1 May"),
}


@table("name", TEXTS)
def test_what_powerpoint_shows(name: str) -> None:
    shapes, text = TEXTS[name]
    assert read(shapes).text == text


def test_notes_and_comments_follow_the_slide() -> None:
    notes = slide(sp(p("Say hello"), role="body"), sp(p("7"), role="sldNum"))
    comments = f"<p:cmLst {DRAWING}><p:cm><p:text>The price is old.</p:text></p:cm></p:cmLst>"
    found = read(sp(p("Price 5")), notesSlide=notes, comments=comments)
    assert found.text == ("Price 5\n\nSpeaker notes:\nSay hello\n\n[Comment 1]: The price is old.")


def points(*values: str | None) -> str:
    listed = enumerate(values)
    return "".join(f'<c:pt idx="{n}"><c:v>{v}</c:v></c:pt>' for n, v in listed if v is not None)


def chart(categories: str, values: str, code: str = "General") -> str:
    return (
        f"<c:chartSpace {DRAWING}><c:ser><c:tx>{points('Sales')}</c:tx><c:cat>{categories}</c:cat>"
        f"<c:val><c:formatCode>{code}</c:formatCode>{values}</c:val></c:ser></c:chartSpace>"
    )


LEVELS = f"<c:lvl>{points('Q1', 'Q2', 'Q1')}</c:lvl><c:lvl>{points('2024', None, '2025')}</c:lvl>"
NEWER = (
    '<cx:chartSpace xmlns:cx="cx"><cx:chartData><cx:data id="0"><cx:strDim><cx:lvl>'
    '<cx:pt idx="0">Rent</cx:pt><cx:pt idx="1">Wages</cx:pt></cx:lvl></cx:strDim><cx:numDim>'
    '<cx:lvl formatCode="0%"><cx:pt idx="0">0.5</cx:pt><cx:pt idx="1">-1</cx:pt></cx:lvl>'
    "</cx:numDim></cx:data></cx:chartData></cx:chartSpace>"
)
CHARTS = {
    "an empty value": (
        chart(points("Q1", "Q2", "Q3"), points("10", None, "30")),
        "|  | Sales |\n| --- | --- |\n| Q1 | 10 |\n| Q2 |  |\n| Q3 | 30 |",
    ),
    "categories of two levels": (
        chart(LEVELS, points("1", "2", "3")),
        "|  | Sales |\n| --- | --- |\n| 2024 Q1 | 1 |\n| 2024 Q2 | 2 |\n| 2025 Q1 | 3 |",
    ),
    "dates and percent": (
        chart(f"<c:formatCode>mmm\\-yy</c:formatCode>{points('45292')}", points("0.25"), "0%"),
        "|  | Sales |\n| --- | --- |\n| Jan-24 | 25% |",
    ),
    "a newer chart": (NEWER, "|  |  |\n| --- | --- |\n| Rent | 50% |\n| Wages | -100% |"),
}


@table("name", CHARTS)
def test_the_values_of_charts(name: str) -> None:
    source, text = CHARTS[name]
    assert "\n\n".join(chart_lines(fromstring(source))) == text
