"""PowerPoint presentations: what their slides show."""

from __future__ import annotations

from xml.etree.ElementTree import fromstring

from app.ingest.archive import Archive
from app.ingest.charts import chart_lines, diagram_lines
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


def group(inside: str, more: str = "") -> str:
    return f"<p:grpSp><p:nvGrpSpPr><p:cNvPr{more}/></p:nvGrpSpPr>{inside}</p:grpSp>"


def graphic(inside: str, more: str = "") -> str:
    return (
        f"<p:graphicFrame><p:nvGraphicFramePr><p:cNvPr{more}/></p:nvGraphicFramePr><a:graphic>"
        f"<a:graphicData>{inside}</a:graphicData></a:graphic></p:graphicFrame>"
    )


def tc(text: str, merged: str = "") -> str:
    merged = f' {merged}="2"' if merged else ""
    return f"<a:tc{merged}><a:txBody>{p(text)}</a:txBody></a:tc>"


def either(choice: str, fallback: str) -> str:
    return (
        f"<mc:AlternateContent><mc:Choice>{choice}</mc:Choice>"
        f"<mc:Fallback>{fallback}</mc:Fallback></mc:AlternateContent>"
    )


TEXTS = {
    "a raised digit": (sp(p(run("10") + run("6", '<a:rPr baseline="30000"/>'))), "10^6"),
    "struck words": (sp(p(run("5", '<a:rPr strike="sngStrike"/>') + run(" 6"))), "~~5~~ 6"),
    "a lowered digit": (sp(p(run("H") + run("2", '<a:rPr baseline="-25000"/>'))), "H2"),
    "a title": (sp(p("Plan"), role="title"), "# Plan"),
    "bullets of the layout": (sp(p("One"), p("Two"), role="body"), "- One\n- Two"),
    "numbers from 5": (
        sp(p("a", numbered("arabicPeriod", ' startAt="5"')), p("b", numbered("arabicPeriod"))),
        "5. a\n6. b",
    ),
    "numbers that begin again": (
        sp(
            p("a", numbered("arabicPeriod")),
            p("b", "<a:pPr lvl='1'><a:buChar/></a:pPr>"),
            p("c", numbered("arabicPeriod")),
            p("d", numbered("arabicPeriod", ' startAt="5"')),
            p("e", numbered("alphaLcPeriod")),
            p("f", "<a:pPr><a:buChar/></a:pPr>"),
            p("g", numbered("alphaLcPeriod")),
        ),
        "1. a\n  - b\n2. c\n5. d\na. e\n- f\na. g",
    ),
    "bullets that are ticks": (
        sp(
            p("a", '<a:pPr><a:buFont typeface="Wingdings"/><a:buChar char="ü"/></a:pPr>'),
            p("b", '<a:pPr><a:buChar char="✗"/></a:pPr>'),
            p("c", '<a:pPr><a:buChar char="ü"/></a:pPr>'),
        ),
        "- ✓ a\n- ✗ b\n- c",
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
    "shapes in groups": (group(sp(p("A")) + group(sp(p("B")))), "A\n\nB"),
    "a hidden group": (group(sp(p("A")), ' hidden="1"'), "(hidden: A)"),
    "a hidden table": (
        graphic(f"<a:tbl><a:tr>{tc('A')}{tc('B')}</a:tr></a:tbl>", ' hidden="1"'),
        "(hidden)\n\n| A | B |\n| --- | --- |",
    ),
    "merged cells": (
        graphic(
            f"<a:tbl><a:tr>{tc('W', 'gridSpan')}{tc('', 'hMerge')}</a:tr>"
            f"<a:tr>{tc('a', 'rowSpan')}{tc('b')}</a:tr>"
            f"<a:tr>{tc('', 'vMerge')}{tc('c')}</a:tr></a:tbl>"
        ),
        "| W |  |\n| --- | --- |\n| a | b |\n|  | c |",
    ),
    "a graphic with a description": (graphic("", ' descr="Sales  grow"'), "[Sales grow]"),
    "a shape without text": (sp(p(""), more=' descr="A map"'), "[A map]"),
    "one of two forms": (either(sp(p("new")), sp(p("old"))), "new"),
    "a form that is empty": (either("", sp(p("old"))), "old"),
    "a line end in a title": (sp(f"<a:p>{run('A')}<a:br/>{run('B')}</a:p>", role="title"), "# A B"),
    "levels, and one without a mark": (
        sp(p("a"), p("b", '<a:pPr lvl="1"/>'), p("c", "<a:pPr><a:buNone/></a:pPr>"), role="body"),
        "- a\n  - b\n\nc",
    ),
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


def test_elements_that_are_not_known_are_said() -> None:
    found = read(graphic(f"<a:hologram>{p('x')}</a:hologram><a:oleObj/>"))
    assert found.said == (
        (
            "has 1 element that specchat does not know (Slide 1: hologram)",
            "save it as PDF, and add that",
        ),
    )


def test_replies_follow_their_comments() -> None:
    reply = f"<n:reply>{body('Yes.')}</n:reply>"
    comments = (
        f'<n:cmLst {DRAWING} xmlns:n="n"><n:cm><n:replyLst>{reply}</n:replyLst>'
        f"{body('Is it', 'old?')}</n:cm></n:cmLst>"
    )
    found = read(sp(p("Price 5")), comments=comments)
    assert found.text == "Price 5\n\n[Comment 1]: Is it old?\n[Comment 1]: Yes."


def body(*paragraphs: str) -> str:
    return f"<n:txBody>{''.join(map(p, paragraphs))}</n:txBody>"


def test_a_link_has_its_address_once() -> None:
    link = '<a:rPr><a:hlinkClick r:id="r7"/></a:rPr>'
    relations = links(r7="hyperlink https://example.org/a").replace(
        'Target="', 'TargetMode="External" Target="'
    )
    shown = sp(f"<a:p>{run('the ', link)}{run('terms', link)}{run('.')}</a:p>")
    data = pptx(slide(shown), **{"ppt__slides___rels__slide1.xml.rels": relations})
    assert Slides(Archive(data)).read(0).text == "the terms (https://example.org/a)."


def test_lines_of_a_diagram() -> None:
    diagram = f"<d xmlns:a='a'><a:p>{run('One')}<a:br/>{run('more')}</a:p><a:p/></d>"
    assert [*diagram_lines(fromstring(diagram))] == ["- One more"]


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
TITLE = "<c:title><c:tx><c:f>A!B1</c:f><a:p><a:r><a:t>{}</a:t></a:r></a:p></c:tx></c:title>"
AXES = "".join(
    f"<c:{kind}>{TITLE.format(text)}</c:{kind}>"
    for kind, text in (("catAx", "Quarter"), ("valAx", "EUR million"))
)
CHARTS = {
    "titles of axes only": (
        chart(points("Q1"), points("10")).replace("</c:chartSpace>", f"{AXES}</c:chartSpace>"),
        "Quarter; EUR million\n\n|  | Sales |\n| --- | --- |\n| Q1 | 10 |",
    ),
    "titles of a chart and its axes": (
        f"<c:chartSpace {DRAWING}><c:chart>{AXES}{TITLE.format('Sales')}</c:chart></c:chartSpace>",
        "Sales\n\nQuarter; EUR million",
    ),
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
