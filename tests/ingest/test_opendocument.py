"""OpenDocument texts, spreadsheets and presentations: what Writer, Calc and Impress show."""

from __future__ import annotations

from pathlib import Path

from app.ingest.archive import Archive
from app.ingest.opendocument import OpenDocument
from app.ingest.parts import Part
from tests.ingest.documents import OPEN_DOCUMENT, zipped
from tests.ingest.helpers import intake, written
from tests.tables import table


def document(kind: str, body: str, styles: str = "", named: str = "", **parts: str) -> bytes:
    """`styles` are those of content.xml, `named` the content of styles.xml; `parts` are objects."""
    content = (
        f"<office:document-content {OPEN_DOCUMENT}><office:automatic-styles>{styles}"
        f"</office:automatic-styles><office:body><office:{kind}>{body}</office:{kind}>"
        "</office:body></office:document-content>"
    )
    members: dict[str, str | bytes] = {
        "mimetype": f"application/vnd.oasis.opendocument.{kind}",
        "content.xml": content,
        "styles.xml": f"<office:document-styles {OPEN_DOCUMENT}>{named}</office:document-styles>",
    }
    members |= {f"{name.replace('_', ' ')}/content.xml": each for name, each in parts.items()}
    return zipped(members)


def read(kind: str, body: str, styles: str = "", named: str = "", **parts: str) -> Part:
    return OpenDocument(Archive(document(kind, body, styles, named, **parts))).read(0)


def style(name: str, properties: str, family: str = "text") -> str:
    return (
        f'<style:style style:name="{name}" style:family="{family}">'
        f"<style:{family}-properties {properties}/></style:style>"
    )


def p(content: str, style: str = "") -> str:
    return f'<text:p text:style-name="{style}">{content}</text:p>'


def span(style: str, content: str) -> str:
    return f'<text:span text:style-name="{style}">{content}</text:span>'


def items(*texts: str, style: str = "L", more: str = "") -> str:
    listed = "".join(f"<text:list-item>{each}</text:list-item>" for each in texts)
    return f'<text:list text:style-name="{style}"{more}>{listed}</text:list>'


def cell(content: str, more: str = "") -> str:
    return f"<table:table-cell{more}>{content}</table:table-cell>"


def tr(*cells: str, more: str = "") -> str:
    return f"<table:table-row{more}>{''.join(cells)}</table:table-row>"


STYLES = (
    style("S", 'style:text-position="super 58%"')
    + style("H", 'text:display="none"')
    + style("K", 'style:text-line-through-style="solid"')
    + '<text:list-style style:name="L"><text:list-level-style-number text:level="1"'
    ' style:num-format="1" style:num-suffix="."/><text:list-level-style-number text:level="2"'
    ' style:num-format="a" style:num-prefix="(" style:num-suffix=")"/></text:list-style>'
    '<text:list-style style:name="N"><text:list-level-style-number text:level="1"'
    ' style:num-format="1" style:num-suffix="."/><text:list-level-style-number text:level="2"'
    ' style:num-format="1" text:display-levels="2"/></text:list-style>'
    '<text:list-style style:name="B"><text:list-level-style-bullet text:level="1"'
    ' text:bullet-char="•"/></text:list-style>'
    '<text:list-style style:name="T"><text:list-level-style-bullet text:level="1"'
    ' text:bullet-char="\uf0fc"><style:list-level-properties/><style:text-properties'
    ' style:font-name="Wingdings"/></text:list-level-style-bullet></text:list-style>'
)
MATH = "<math><mfrac><mi>a</mi><mn>2</mn></mfrac></math>"

INNER = tr(cell(p("x")), cell(p("y")))
NINE = cell("", ' office:value-type="float" office:value="9"')


def annotation(text: str, author: str = "Anna") -> str:
    return f"<office:annotation><dc:creator>{author}</dc:creator>{p(text)}</office:annotation>"


TEXTS = {
    "struck words": (p(f"It is {span('K', '100')} euro"), "It is ~~100~~ euro"),
    "the title of the document": (
        p("<text:title>Annual report</text:title>, page <text:page-number>3</text:page-number>"),
        "Annual report, page 3",
    ),
    "a raised digit": (p(f"10{span('S', '6')} units"), "10^6 units"),
    "hidden text": (p(f"Pay. {span('H', 'Less.')}"), "Pay. (hidden: Less.)"),
    "a hidden section": (
        f'<text:section text:display="none">{p("Old.")}</text:section>{p("New.")}',
        "(hidden: Old.)\n\nNew.",
    ),
    "words with a reading": (
        p(
            "<text:ruby><text:ruby-base>東京</text:ruby-base><text:ruby-text>とうきょう"
            "</text:ruby-text></text:ruby>に"
        ),
        "東京 (とうきょう)に",
    ),
    "indentation": (p("if x:") + p('<text:s text:c="4"/>return 1'), "if x:\n\n    return 1"),
    "code": (
        p("# run", "Preformatted_20_Text") + p("x", "Preformatted_20_Text"),
        "```\n# run\nx\n```",
    ),
    "a list that is continued": (
        items(p("a"), p("b")) + p("Text.") + items(p("c"), more=' text:continue-numbering="true"'),
        "1. a\n2. b\n\nText.\n\n3. c",
    ),
    "another list begins again": (items(p("a")) + p("x") + items(p("b")), "1. a\n\nx\n\n1. b"),
    "letters in brackets": (
        items(p("a") + items(p("b"), p("c"), style="")),
        "1. a\n  (a) b\n  (b) c",
    ),
    "numbers of two levels": (
        items(p("a") + items(p("b"), style="N"), style="N"),
        "1. a\n  1.1 b",
    ),
    "a start of an item": (
        f'<text:list text:style-name="L"><text:list-item text:start-value="7">{p("a")}'
        f"</text:list-item><text:list-item>{p('b')}</text:list-item></text:list>",
        "7. a\n8. b",
    ),
    "two paragraphs of an item": (items(p("a") + p("more")), "1. a\n  more"),
    "bullets": (items(p("a"), style="B"), "- a"),
    "bullets that are ticks": (items(p("a"), style="T"), "- ✓ a"),
    "a number that the file says": (
        f'<text:list text:style-name="L"><text:list-item><text:number>§ 5</text:number>{p("a")}'
        "</text:list-item></text:list>",
        "§ 5 a",
    ),
    "a comment": (
        p(f"The fee is 5{annotation('Is it 6?')} euros."),
        "The fee is 5[Comment 1] euros.\n\n[Comment 1]: Anna: Is it 6?",
    ),
    "an address": (
        p('<text:a xlink:href="https://example.org/a">terms</text:a>'),
        "terms (https://example.org/a)",
    ),
    "a table in a table": (
        f"<table:table>{tr(cell(p('A')), cell(p('B')))}"
        f"{tr(cell(f'<table:table>{INNER}</table:table>'), cell(p('D')))}"
        "</table:table>",
        "| A | B |\n| --- | --- |\n| x, y | D |",
    ),
    "a formula": (
        p('Half is <draw:frame><draw:object xlink:href="./Object 1"/></draw:frame>.'),
        "Half is a/2.",
    ),
    "a picture": (
        p("<draw:frame><draw:image/><svg:desc>A plan</svg:desc></draw:frame>"),
        "[A plan]",
    ),
    "a text box": (
        p(f"Before<draw:frame><draw:text-box>{p('In it')}</draw:text-box></draw:frame>"),
        "Before\n\nIn it",
    ),
    "a tick": (
        '<office:forms><form:form><form:checkbox form:id="c" form:label="Insured"'
        ' form:current-state="checked"/></form:form></office:forms>'
        + p('<draw:control draw:control="c"/>'),
        "[x] Insured",
    ),
}


@table("name", TEXTS)
def test_what_writer_shows(name: str) -> None:
    body, text = TEXTS[name]
    assert read("text", body, STYLES, Object_1=MATH).text == text


def test_headings_have_their_numbers_and_pages_their_headers() -> None:
    named = (
        '<text:outline-style><text:outline-level-style text:level="1" style:num-format="1"'
        ' style:num-suffix="."/><text:outline-level-style text:level="2" style:num-format="1"'
        ' text:display-levels="2"/></text:outline-style><style:master-page><style:header>'
        f"{p('Contract K-4711')}</style:header><style:footer>{p('Page <text:page-number/>')}"
        "</style:footer></style:master-page>"
    )
    body = "".join(
        f'<text:h text:outline-level="{level}">{title}</text:h>'
        for level, title in ((1, "Scope"), (1, "Fees"), (2, "Monthly"))
    )
    assert read("text", body, named=named).text == (
        "[Header: Contract K-4711]\n\n# 1. Scope\n\n# 2. Fees\n\n## 2.1 Monthly"
    )


def test_changes_are_read_as_accepted_and_said(tmp_path: Path) -> None:
    body = f"<text:tracked-changes><text:changed-region>{p('Old')}</text:changed-region>"
    body += f"</text:tracked-changes>{p('New')}"
    result = intake(written(tmp_path / "a.odt", document("text", body)))
    assert result.documents[0].text == "New\n"
    assert "1 tracked change, read as accepted" in result.skipped[0].sentence


def value(kind: str, attributes: str, content: str = "") -> str:
    return cell(content, f' office:value-type="{kind}" {attributes}')


def test_what_calc_shows() -> None:
    rows = (
        tr(cell(p("Rate")), value("float", 'office:value="4.5"'), cell(annotation("Old") + p("77")))
        + tr(
            value("percentage", 'office:value="0.25"'),
            value("boolean", 'office:boolean-value="true"'),
        )
        + tr(value("date", 'office:date-value="2024-02-01"', p("01/02/24")))
        + tr(cell(p("gone")), more=' table:visibility="collapse"')
        + tr(cell("", ' table:formula="of:=SUM([.A1:.A2])"'))
    )
    sheet = f'<table:table table:name="T" table:style-name="t">{rows}</table:table>'
    hidden = style("t", 'table:display="false"', "table")
    found = read("spreadsheet", sheet, hidden)
    assert found.mark == "[Sheet T (hidden)]"
    assert found.text == (
        "| Rate | 4.5 | 77 |\n| --- | --- | --- |\n| 25% | TRUE |  |\n| 2024-02-01 |  |  |\n"
        "| (hidden) gone |  |  |\n| =SUM([.A1:.A2]) (not calculated) |  |  |\n\n"
        "[Comment on C1]: Anna: Old"
    )
    assert "1 formula without a value" in found.said[0][0]


def test_what_impress_shows() -> None:
    frame = '<draw:frame presentation:class="{}"><draw:text-box>{}</draw:text-box></draw:frame>'
    chart = (
        f"<office:document-content {OPEN_DOCUMENT}><office:chart><chart><title>{p('Sales')}</title>"
        f"<axis><title>{p('EUR')}</title></axis><table:table>"
        f"{tr(cell(''), cell(p('Q1')))}{tr(cell(p('Rent')), NINE)}"
        "</table:table></chart></office:chart></office:document-content>"
    )
    page = (
        '<draw:page draw:style-name="dp">'
        + frame.format("title", p("Plan"))
        + frame.format("outline", items(p("One"), style="B"))
        + '<draw:frame><draw:object xlink:href="./Object 1"/></draw:frame>'
        + f'<draw:rect draw:display="none">{p("Old plan")}</draw:rect>'
        + "<presentation:notes><draw:page-thumbnail/>"
        + frame.format("notes", p("Say hello"))
        + '<draw:frame presentation:class="page-number"><draw:text-box>'
        + p("<text:page-number>&lt;number&gt;</text:page-number>")
        + "</draw:text-box></draw:frame></presentation:notes></draw:page>"
    )
    hidden = style("dp", 'presentation:visibility="hidden"', "drawing-page")
    found = read("presentation", page, STYLES + hidden, Object_1=chart)
    assert found.mark == "[Slide 1 (hidden)]"
    assert found.text == (
        "# Plan\n\n- One\n\nSales\n\nEUR\n\n|  | Q1 |\n| --- | --- |\n| Rent | 9 |\n\n"
        "(hidden: Old plan)\n\nSpeaker notes:\nSay hello"
    )


FORM = (
    '<office:forms><form:form><form:listbox form:id="l"><form:option form:label="A"/>'
    '<form:option form:label="B" form:current-selected="true"/></form:listbox>'
    '<form:text form:id="t" form:current-value="Jane"/><form:password form:id="w"'
    ' form:current-value="secret"/><form:radio form:id="r" form:label="Yes" form:selected="true"/>'
    "</form:form></office:forms>"
)
SPANNED = '<table:table-cell table:number-columns-spanned="2">{}</table:table-cell>'
COVERED = "<table:covered-table-cell/>"
FRAMED = "<draw:frame>{}</draw:frame>"
BOX = FRAMED.format("<draw:text-box>{}</draw:text-box>")
COMMENTED = f"{annotation('Why?')}A"
ANOTHER = {
    "a hidden paragraph": (
        p('<text:hidden-paragraph text:is-hidden="true"/>Old.')
        + p('<text:hidden-paragraph text:is-hidden="false"/>New.'),
        "(hidden: Old.)\n\nNew.",
    ),
    "conditional and hidden text": (
        p(
            '<text:conditional-text text:string-value-if-true="T" text:string-value-if-false="F">T'
            '</text:conditional-text> <text:hidden-text text:string-value="gone"/>'
            '<text:hidden-text text:string-value="here" text:is-hidden="false"/>'
        ),
        "T (hidden: gone)here",
    ),
    "paragraphs with numbers": (
        "".join(
            f'<text:numbered-paragraph text:list-id="q" text:style-name="L">{p(each)}'
            "</text:numbered-paragraph>"
            for each in "ab"
        ),
        "1. a\n2. b",
    ),
    "fields of forms": (
        FORM + p("".join(f'<draw:control draw:control="{id}"/>; ' for id in "ltrw")),
        "B; Jane; [x] Yes; ;",
    ),
    "a script is no text": (p("a<text:script>alert(1)</text:script>b"), "ab"),
    "an empty item": (items(p(""), p("b")), "1.\n2. b"),
    "text after an empty cell": (
        f"<table:table>{tr(cell(p('A')), cell(p('')))}</table:table>{p('Annex')}",
        "| A |  |\n| --- | --- |\n\nAnnex",
    ),
    "an index": (
        "<text:table-of-content><text:table-of-content-source><text:index-title-template>Contents"
        f"</text:index-title-template></text:table-of-content-source><text:index-body>"
        f"<text:index-title>{p('Contents')}</text:index-title>{p('Aims<text:tab/>3')}"
        "</text:index-body></text:table-of-content>",
        "Contents\n\nAims\t3",
    ),
    "fields of users, and references": (
        '<text:user-field-decls><text:user-field-decl office:string-value="X"/>'
        "</text:user-field-decls>"
        + p(
            "<text:user-field-get>X</text:user-field-get> <text:bookmark-ref>4</text:bookmark-ref>"
        ),
        "X 4",
    ),
    "sections in sections": (
        f"<text:section>{p('A')}<text:section>{p('B')}</text:section></text:section>",
        "A\n\nB",
    ),
    "sections with conditions": (
        f'<text:section text:display="condition">{p("A")}</text:section>'
        f'<text:section text:display="condition" text:is-hidden="true">{p("B")}</text:section>',
        "A\n\n(hidden: B)",
    ),
    "deleted text": (
        "<text:tracked-changes><text:changed-region><text:deletion>"
        f"{p('gone')}</text:deletion></text:changed-region></text:tracked-changes>"
        + p("a<text:change/>b<text:change-start/>c<text:change-end/>"),
        "abc",
    ),
    "merged cells": (
        f"<table:table>{tr(SPANNED.format(p('W')), COVERED)}{tr(cell(p('a')), cell(p('b')))}"
        f"{tr(COVERED, cell(p('c')))}</table:table>",
        "| W |  |\n| --- | --- |\n| a | b |\n|  | c |",
    ),
    "a table in a frame": (
        p(FRAMED.format(f"<table:table>{tr(cell(p(COMMENTED)), cell(p('B')))}</table:table>")),
        "| [Comment 1]A | B |\n| --- | --- |\n\n[Comment 1]: Anna: Why?",
    ),
    "a box in a box": (
        p(BOX.format(p("Out" + BOX.format(p("In"))))),
        "Out\n\nIn",
    ),
}


@table("name", ANOTHER)
def test_more_that_writer_shows(name: str) -> None:
    body, text = ANOTHER[name]
    assert read("text", body, STYLES).text == text


def test_pages_of_a_drawing(tmp_path: Path) -> None:
    shape = f"<draw:custom-shape>{p('Pump')}</draw:custom-shape>"
    pages = f"<draw:page>{shape}</draw:page><draw:page>{BOX.format(p('B'))}</draw:page>"
    result = intake(written(tmp_path / "a.odg", document("drawing", pages)))
    assert result.documents[0].text == "[Page 1]\nPump\n\n[Page 2]\nB\n\n"


def test_a_list_style_and_a_formula_of_other_programs() -> None:
    body = items(p("a"), style="Own") + p(FRAMED.format('<draw:object xlink:href="./Formula-1"/>'))
    named = (
        '<text:list-style style:name="Own"><text:list-level-style-number text:level="1"'
        ' style:num-format="I" style:num-suffix=")"/></text:list-style>'
    )
    members = {"Formula-1": MATH}
    assert read("text", body, named=named, **members).text == "I) a\n\na/2"


def test_shapes_over_a_sheet() -> None:
    def box(text: str) -> str:
        return f"<draw:custom-shape>{p(text)}</draw:custom-shape>"

    shapes = f"<table:shapes>{box('Draft')}</table:shapes>"
    sheet = f'<table:table table:name="T">{shapes}{tr(cell(p("A") + box("B2")))}</table:table>'
    assert read("spreadsheet", sheet).text == "| A |\n| --- |\n\nB2\n\nDraft"
