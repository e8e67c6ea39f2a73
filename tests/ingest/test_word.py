"""Word documents: what Word shows of them."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import fromstring

from app.ingest.archive import Archive
from app.ingest.formulas import field_formula, linear
from app.ingest.list_numbers import formatted
from app.ingest.parts import Part
from app.ingest.symbols import symbol
from app.ingest.word import WordDocument
from tests.ingest.documents import DRAWING, WORD, links, zipped
from tests.ingest.helpers import intake, written
from tests.ingest.test_office import docx
from tests.tables import table

NAMES = (
    f'{WORD} {DRAWING} xmlns:w14="http://schemas.microsoft.com/office/word/2010/wordml"'
    ' xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
    ' xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    ' xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape"'
    ' xmlns:v="urn:schemas-microsoft-com:vml"'
)


def read(body: str, **parts: str | bytes) -> Part:
    """The text of a document. `parts` are other members below word/, by name."""
    data = docx("", **{f"word__{name}": content for name, content in parts.items()})
    archive = Archive(data)
    members: dict[str, str | bytes] = {name: archive.read(name) for name in archive.names}
    members["word/document.xml"] = f"<w:document {NAMES}><w:body>{body}</w:body></w:document>"
    return WordDocument(Archive(zipped(members))).read(0)


def p(*runs: str, style: str = "", properties: str = "") -> str:
    style = f'<w:pStyle w:val="{style}"/>' if style else ""
    inside = "".join(each if each.startswith("<") else r(each) for each in runs)
    return f"<w:p><w:pPr>{style}{properties}</w:pPr>{inside}</w:p>"


def r(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def tc(*paragraphs: str, properties: str = "") -> str:
    inside = "".join(each if each.startswith("<") else p(each) for each in paragraphs)
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{inside}</w:tc>"


def tbl(*rows: str) -> str:
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in rows)}</w:tbl>"


def mark(kind: str, inside: str = "") -> str:
    return f'<w:r><w:fldChar w:fldCharType="{kind}">{inside}</w:fldChar></w:r>'


def long_field(code: str, result: str = "", data: str = "") -> str:
    code = f"<w:r><w:instrText> {code} </w:instrText></w:r>"
    shown = mark("separate") + r(result) if result else ""
    return mark("begin", data) + code + shown + mark("end")


def sdt(properties: str, content: str) -> str:
    return f"<w:sdt><w:sdtPr>{properties}</w:sdtPr><w:sdtContent>{content}</w:sdtContent></w:sdt>"


def box(text: str) -> str:
    return f"<w:txbxContent>{p(text)}</w:txbxContent>"


def alternatives(choice: str, fallback: str = "") -> str:
    return (
        f'<mc:AlternateContent><mc:Choice Requires="wps">{choice}</mc:Choice>'
        f"<mc:Fallback>{fallback}</mc:Fallback></mc:AlternateContent>"
    )


RAISED, VANISH = '<w:vertAlign w:val="superscript"/>', "<w:vanish/>"
RUBY = (
    "<w:r><w:ruby><w:rt><w:r><w:t>とうきょう</w:t></w:r></w:rt>"
    f"<w:rubyBase>{r('東京')}</w:rubyBase></w:ruby></w:r>"
)
HALF = (
    "<m:oMath><m:f><m:num><m:r><m:t>a+b</m:t></m:r></m:num>"
    "<m:den><m:r><m:t>2</m:t></m:r></m:den></m:f></m:oMath>"
)
TICKED = "<w:ffData><w:checkBox><w:default w:val='0'/><w:checked/></w:checkBox></w:ffData>"
DRAWN = f"<w:drawing><wps:txbx>{box('B')}</wps:txbx></w:drawing>"
COPY = f"<w:pict><v:textbox>{box('B')}</v:textbox></w:pict>"
LISTED = '<w:listEntry w:val="France"/><w:listEntry w:val="Italy"/>'

CHECKED = '<w14:checked w14:val="1"/>'
DELETED = "<w:rPr><w:del/></w:rPr>"

TEXTS = {
    "struck words": (
        p("It is ", r("100", "<w:strike/>"), r(" euro", '<w:dstrike w:val="0"/>')),
        "It is ~~100~~ euro",
    ),
    "a raised digit": (p("10", r("6", RAISED), " units"), "10^6 units"),
    "raised text of two runs": (p("2", r("n", RAISED), r("+1", RAISED)), "2^(n+1)"),
    "the end of an ordinal": (p("the 1", r("st", RAISED), " of May"), "the 1st of May"),
    "a raised mark with its own brackets": (p("450", r("[1]", RAISED)), "450[1]"),
    "hidden text": (p("Pay 100. ", r("Go to 80.", VANISH)), "Pay 100. (hidden: Go to 80.)"),
    "hidden text in two runs": (p(r("Go ", VANISH), r("on.", VANISH)), "(hidden: Go on.)"),
    "hidden in the web view only": (p("1", r("7", "<w:webHidden/>")), "17"),
    "a soft hyphen": (p("Kün", "<w:r><w:softHyphen/></w:r>", "di\u00adgung"), "Kündigung"),
    "words with a reading": (p(RUBY, "に行く。"), "東京 (とうきょう)に行く。"),
    "an embedding from right to left": (
        p('<w:dir w:val="rtl">', "x").replace(
            '<w:dir w:val="rtl">', f'<w:dir w:val="rtl">{r("שלום")}</w:dir>'
        ),
        "שלוםx",
    ),
    "a tab and line ends": (
        p(
            "<w:r><w:t>a</w:t><w:ptab/><w:t>b</w:t><w:cr/><w:t>c</w:t>"
            "<w:br w:type='page'/><w:t>d</w:t></w:r>"
        ),
        "a\tb\nc\nd",
    ),
    "a hyphen that does not break": (
        p("<w:r><w:t>A</w:t><w:noBreakHyphen/><w:t>1</w:t></w:r>"),
        "A\u20111",
    ),
    "a simple field": (
        p("Table ", f'<w:fldSimple w:instr=" SEQ T ">{r("1")}</w:fldSimple>', ": Fees"),
        "Table 1: Fees",
    ),
    "a long field": (p("See ", long_field("REF _Ref1", "8.2"), "."), "See 8.2."),
    "a field in the code of a field": (
        p(
            mark("begin"),
            "<w:r><w:instrText>IF </w:instrText></w:r>",
            long_field("DATE", "1 May"),
            mark("separate"),
            r("yes"),
            mark("end"),
        ),
        "yes",
    ),
    "a field of a fraction": (p("It is ", long_field(r"EQ \f(1,2)"), "."), "It is 1/2."),
    "a symbol as a field": (p(long_field("SYMBOL 254 \\f Wingdings"), " yes"), "☑ yes"),
    "a symbol by a number with a zero": (p(long_field("SYMBOL 0183 \\f Symbol")), "•"),
    "a symbol": (p('<w:r><w:sym w:font="Wingdings" w:char="F0FC"/></w:r>', " done"), "✓ done"),
    "a letter of the font Symbol": (p('<w:r><w:sym w:font="Symbol" w:char="F061"/></w:r>'), "α"),
    "a tick as a control": (
        p(sdt('<w14:checkbox><w14:checked w14:val="1"/></w14:checkbox>', r("☒")), " yes"),
        "[x] yes",
    ),
    "no tick as a control": (
        p(sdt('<w14:checkbox><w14:checked w14:val="0"/></w14:checkbox>', r("☐")), " yes"),
        "[ ] yes",
    ),
    "an older tick": (
        p(
            long_field(
                "FORMCHECKBOX",
                data=TICKED,
            ),
            " yes",
        ),
        "[x] yes",
    ),
    "an older box without a tick": (
        p(
            long_field(
                "FORMCHECKBOX",
                data="<w:ffData><w:checkBox><w:default w:val='0'/></w:checkBox></w:ffData>",
            ),
            " yes",
        ),
        "[ ] yes",
    ),
    "a choice": (
        p(
            long_field(
                "FORMDROPDOWN",
                data=f"<w:ffData><w:ddList><w:result w:val='1'/>{LISTED}</w:ddList></w:ffData>",
            )
        ),
        "Italy",
    ),
    "a formula": (p("Half is ", HALF, "."), "Half is (a+b)/2."),
    "a formula of its own": (p(f"<m:oMathPara>{HALF}</m:oMathPara>"), "(a+b)/2"),
    "a text box without a copy": (
        p(
            "Before",
            f"<w:r>{alternatives(DRAWN)}</w:r>",
        ),
        "Before\n\nB",
    ),
    "a text box with its copy": (
        p(
            "A",
            f"<w:r>{alternatives(DRAWN, COPY)}</w:r>",
        ),
        "A\n\nB",
    ),
    "an outline level": (p("Notice", properties='<w:outlineLvl w:val="1"/>'), "## Notice"),
    "code that begins like a heading": (p("# load data"), " # load data"),
    "indentation": (
        p("<w:r><w:t>def f():</w:t><w:br/><w:t xml:space='preserve'>    return 1</w:t></w:r>"),
        "def f():\n    return 1",
    ),
    "a deleted end of a paragraph": (
        p("The fee", properties="<w:rPr><w:del/></w:rPr>") + p(" is 5."),
        "The fee is 5.",
    ),
    "deleted and inserted text": (
        p(
            "It is ",
            f"<w:del>{r('').replace('w:t', 'w:delText')}</w:del><w:ins>{r('80')}</w:ins>",
            ".",
        ),
        "It is 80.",
    ),
    "a table": (
        tbl(tc("A") + tc("B"), tc("C") + tc("")) + p("After"),
        "| A | B |\n| --- | --- |\n| C |  |\n\nAfter",
    ),
    "a table in a cell": (
        tbl(tc("A") + tc("B"), tc(tbl(tc("in") + tc("side"))) + tc("D")),
        "| A | B |\n| --- | --- |\n| in, side | D |",
    ),
    "a frame of one cell": (
        tbl(tc(p("Note", properties='<w:outlineLvl w:val="0"/>'), "Text")),
        "# Note\n\nText",
    ),
    "merged cells": (
        tbl(
            tc("Rate", properties='<w:vMerge w:val="restart"/>') + tc("x"),
            tc("5 %", properties="<w:vMerge/>") + tc("y"),
        ),
        "| Rate 5 % | x |\n| --- | --- |\n|  | y |",
    ),
    "an empty cell merged with one with text": (
        tbl(
            tc("Rate") + tc("x"),
            tc("", properties='<w:vMerge w:val="restart"/>') + tc("y"),
            tc("5 %", properties="<w:vMerge/>") + tc("z"),
        ),
        "| Rate | x |\n| --- | --- |\n| 5 % | y |\n|  | z |",
    ),
    "a wide cell": (
        tbl(tc("Wide", properties='<w:gridSpan w:val="2"/>'), tc("a") + tc("b")),
        "| Wide |  |\n| --- | --- |\n| a | b |",
    ),
    "a row that begins later": (
        tbl(tc("Item") + tc("2025"), '<w:trPr><w:gridBefore w:val="1"/></w:trPr>' + tc("30")),
        "| Item | 2025 |\n| --- | --- |\n|  | 30 |",
    ),
    "a deleted row": (
        tbl(tc("A") + tc("B"), "<w:trPr><w:del/></w:trPr>" + tc("C") + tc("D")),
        "| A | B |\n| --- | --- |",
    ),
    "a deleted end of a cell": (
        tbl(tc(p("a", properties=DELETED)) + tc("c")),
        "| a | c |\n| --- | --- |",
    ),
    "a deleted cell": (
        tbl(
            tc("A") + tc("B", properties="<w:cellDel/>") + tc("C"),
            tc("1") + tc("2", properties="<w:cellIns/>"),
        ),
        "| A | C |\n| --- | --- |\n| 1 | 2 |",
    ),
    "an inserted row": (
        tbl(tc("A") + tc("B"), "<w:trPr><w:ins/></w:trPr>" + tc("C") + tc("D")),
        "| A | B |\n| --- | --- |\n| C | D |",
    ),
    "moved text": (
        p(f"<w:moveFrom>{r('M')}</w:moveFrom>", "x", f"<w:moveTo>{r('M')}</w:moveTo>"),
        "xM",
    ),
    "an initial over several lines": (
        p("O", properties='<w:framePr w:dropCap="drop"/>') + p("nce upon a time"),
        "Once upon a time",
    ),
    "controls around rows, cells and blocks": (
        f"<w:tbl><w:tr>{sdt('', tc('A'))}{tc(sdt('', p('B')))}</w:tr>"
        + sdt("", f"<w:tr><w:customXml>{tc('C')}</w:customXml>{tc('D')}</w:tr>")
        + "</w:tbl>"
        + sdt("", p("E") + sdt("", p("F"))),
        "| A | B |\n| --- | --- |\n| C | D |\n\nE\n\nF",
    ),
    "a tick of its own": (sdt(f"<w14:checkbox>{CHECKED}</w14:checkbox>", p("☒")), "[x]"),
    "one of two forms of a row": (
        f"<w:tbl><w:tr>{tc('A')}{tc('B')}</w:tr>"
        + alternatives(f"<w:tr>{tc('C')}{tc('D')}</w:tr>", f"<w:tr>{tc('X')}{tc('Y')}</w:tr>")
        + "</w:tbl>",
        "| A | B |\n| --- | --- |\n| C | D |",
    ),
    "one of two forms of a text": (
        alternatives(p("B"), p("x"))
        + p(alternatives(r("R"), r("x")), f"<w:r>{alternatives('<w:t>T</w:t>')}</w:r>"),
        "B\n\nRT",
    ),
    "the second form, as the first is empty": (p(alternatives("", r("F"))), "F"),
    "smart tags": (
        p(f"<w:smartTag>{r('On 1 ')}<w:customXml>{r('May')}</w:customXml></w:smartTag>"),
        "On 1 May",
    ),
    "a field over paragraphs": (
        p(mark("begin"), "<w:r><w:instrText>TOC</w:instrText></w:r>", mark("separate"), "1 Aims\t3")
        + p("2 Ends\t4")
        + p(mark("end"))
        + p("After"),
        "1 Aims\t3\n\n2 Ends\t4\n\nAfter",
    ),
    "two fields of links": (
        p(
            long_field('HYPERLINK "https://a.org/x"', "one"),
            long_field('HYPERLINK "https://a.org/x"', "two"),
        ),
        "one (https://a.org/x)two (https://a.org/x)",
    ),
    "a field to type in": (p(long_field("MACROBUTTON NoMacro [Name]")), "[Name]"),
    "a mark for an index": (p("a", long_field('XE "a"'), "b", long_field('TC "b"')), "ab"),
    "letters drawn as a picture": (
        p('<w:r><w:pict><v:shape><v:textpath string="DRAFT"/></v:shape></w:pict></w:r>'),
        "[DRAFT]",
    ),
    "code in a cell": (
        tbl(tc(sdt("", p("x = 1", style="Code"))) + tc("B")),
        "| x = 1 | B |\n| --- | --- |",
    ),
    "a table in a table in a table": (
        tbl(
            tc("A") + tc("B"),
            tc(p("1") + tbl(tc("2") + tc(tbl(tc("3") + tc("4")))) + p("5")) + tc("C"),
        ),
        "| A | B |\n| --- | --- |\n| 1 2, 3, 4 5 | C |",
    ),
}


@table("name", TEXTS)
def test_what_word_shows(name: str) -> None:
    body, text = TEXTS[name]
    assert read(body, styles=STYLES).text == text


def numbering(*levels: str) -> str:
    listed = "".join(f'<w:lvl w:ilvl="{n}">{level}</w:lvl>' for n, level in enumerate(levels))
    return (
        f'<w:numbering {WORD}><w:abstractNum w:abstractNumId="0">{listed}</w:abstractNum>'
        '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>'
        '<w:num w:numId="2"><w:abstractNumId w:val="0"/><w:lvlOverride w:ilvl="0">'
        '<w:startOverride w:val="5"/></w:lvlOverride></w:num></w:numbering>'
    )


def level(pattern: str, kind: str = "decimal", start: int = 1, more: str = "") -> str:
    return (
        f'<w:start w:val="{start}"/><w:numFmt w:val="{kind}"/>{more}<w:lvlText w:val="{pattern}"/>'
    )


def item(text: str, at: int = 0, id: int = 1) -> str:
    numbers = f'<w:numPr><w:ilvl w:val="{at}"/><w:numId w:val="{id}"/></w:numPr>'
    return p(text, properties=numbers)


WINGDINGS = '<w:rPr><w:rFonts w:ascii="Wingdings"/></w:rPr>'
LISTS = {
    "nothing behind the number": (
        item("总则"),
        numbering(level("第%1章", "chineseCounting", more='<w:suff w:val="nothing"/>')),
        "第一章 总则",
    ),
    "items in cells": (
        tbl(tc(item("a") + item("b")) + tc(item("c"))),
        numbering(level("%1.")),
        "| 1. a 2. b | 3. c |\n| --- | --- |",
    ),
    "a list that goes on after a paragraph": (
        item("Term") + p("Text.") + item("Payment") + item("By card", 1) + item("Notice"),
        numbering(level("%1."), level("%1.%2")),
        "1. Term\n\nText.\n\n2. Payment\n  2.1 By card\n3. Notice",
    ),
    "a list that begins at 7": (
        item("Warranty") + item("Liability"),
        numbering(level("%1.", start=7)),
        "7. Warranty\n8. Liability",
    ),
    "an instance that begins again": (
        item("One") + item("Two") + item("Five", id=2) + item("Six", id=2),
        numbering(level("%1)")),
        "1) One\n2) Two\n5) Five\n6) Six",
    ),
    "letters and Roman numbers": (
        item("a") + item("b", 1) + item("c", 1) + item("d"),
        numbering(level("(%1)", "lowerLetter"), level("%2.", "upperRoman")),
        "(a) a\n  I. b\n  II. c\n(b) d",
    ),
    "a level in digits only": (
        item("a") + item("b", 1),
        numbering(level("%1", "upperRoman"), level("%1.%2", more="<w:isLgl/>")),
        "I. a\n  1.1 b",
    ),
    "a level that never begins again": (
        item("a") + item("b", 1) + item("c") + item("d", 1),
        numbering(level("%1."), level("%2)", more='<w:lvlRestart w:val="0"/>')),
        "1. a\n  1) b\n2. c\n  2) d",
    ),
    "an empty item is counted": (
        item("a") + item("") + item("c"),
        numbering(level("%1.")),
        "1. a\n2.\n3. c",
    ),
    "a further paragraph of an item": (
        item("a") + item("more", 1) + item("b"),
        numbering(level("%1."), level(" ", "bullet")),
        "1. a\n    more\n2. b",
    ),
    "bullets that are ticks": (
        item("a") + item("b", 1) + item("c", 2),
        numbering(
            level("\uf0fc", "bullet", more=WINGDINGS),
            level("û", "bullet", more=WINGDINGS),
            level("\uf0a7", "bullet", more=WINGDINGS),
        ),
        "- ✓ a\n  - ✗ b\n    - c",
    ),
    "a list without such numbers": (item("a", id=9), numbering(level("%1.")), "a"),
}


@table("name", LISTS)
def test_numbers_of_lists(name: str) -> None:
    body, numbers, text = LISTS[name]
    assert read(body, numbering=numbers).text == text


STYLES = f"""<w:styles {WORD}>
<w:style w:type="paragraph" w:default="1" w:styleId="N"><w:name w:val="Normal"/></w:style>
<w:style w:type="paragraph" w:styleId="H1"><w:name w:val="heading 1"/><w:basedOn w:val="N"/>
<w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr></w:style>
<w:style w:type="paragraph" w:styleId="Clause"><w:name w:val="Klausel"/><w:basedOn w:val="H1"/>
</w:style>
<w:style w:type="paragraph" w:styleId="H2"><w:name w:val="heading 2"/><w:basedOn w:val="N"/>
<w:pPr><w:numPr><w:ilvl w:val="1"/><w:numId w:val="1"/></w:numPr></w:pPr></w:style>
<w:style w:type="paragraph" w:styleId="Part"><w:name w:val="Part"/><w:basedOn w:val="H2"/></w:style>
<w:style w:type="paragraph" w:styleId="Code"><w:name w:val="Source Code"/></w:style>
<w:style w:type="paragraph" w:styleId="T"><w:name w:val="Title"/></w:style>
<w:style w:type="character" w:styleId="Gone"><w:name w:val="g"/><w:rPr><w:vanish/></w:rPr></w:style>
<w:style w:type="paragraph" w:styleId="Loop"><w:name w:val="x"/><w:basedOn w:val="Loop"/></w:style>
</w:styles>"""


def test_styles_say_what_is_a_heading_code_or_hidden() -> None:
    body = (
        p("Lease", style="T")
        + p("Scope", style="H1")
        + p("Fees", style="Clause")
        + p("Amount", style="H2")
        + p("Due date", style="Part")
        + p("# run it", style="Code")
        + p("  twice", style="Code")
        + p("A", r("B", '<w:rStyle w:val="Gone"/>'), style="Loop")
    )
    numbers = numbering(level("Article %1", more='<w:pStyle w:val="H1"/>'), level("%1.%2"))
    assert read(body, styles=STYLES, numbering=numbers).text == (
        "# Lease\n\n# Article 1 Scope\n\n# Article 2 Fees\n\n"
        "## 2.1 Amount\n\n## 2.2 Due date\n\n"
        "```\n# run it\n  twice\n```\n\nA(hidden: B)"
    )


def notes(kind: str, **texts: str) -> str:
    listed = "".join(
        f'<w:{kind} w:id="{id[1:]}" w:author="Anna">{p(text)}</w:{kind}>'
        for id, text in texts.items()
    )
    return f"<w:{kind}s {WORD}>{listed}</w:{kind}s>"


def test_notes_have_their_own_marks_and_follow_their_section() -> None:
    body = (
        p("A", '<w:r><w:footnoteReference w:id="2"/></w:r>')
        + p(
            "B",
            '<w:r><w:endnoteReference w:id="2"/></w:r>',
            '<w:r><w:commentReference w:id="0"/></w:r>',
        )
        + p(
            "Next",
            '<w:r><w:footnoteReference w:id="3"/></w:r>',
            properties='<w:outlineLvl w:val="0"/>',
        )
        + p("C")
        + p("D", '<w:r><w:footnoteReference w:customMarkFollows="1" w:id="4"/><w:t>*</w:t></w:r>')
    )
    found = read(
        body,
        footnotes=notes("footnote", n2="First.", n3="Second.", n4="Own."),
        endnotes=notes("endnote", n2="End."),
        comments=notes("comment", n0="Check this."),
    )
    assert found.text == (
        "A[^1]\n\nB[^i][Comment 1]\n\n[^1]: First.\n[^i]: End.\n[Comment 1]: Anna: Check this.\n\n"
        "# Next[^2]\n\nC\n\nD[^*]\n\n[^2]: Second.\n[^*]: Own."
    )


def test_sections_say_how_their_notes_are_numbered() -> None:
    def section(more: str) -> str:
        return f"<w:sectPr><w:footnotePr>{more}</w:footnotePr></w:sectPr>"

    def noted(text: str, kind: str, id: int, more: str = "") -> str:
        mark = f'<w:r><w:{kind}Reference w:id="{id}"/></w:r>'
        return p(text, mark, properties=more)

    letters, again = '<w:numFmt w:val="lowerLetter"/>', '<w:numRestart w:val="eachSect"/>'
    body = noted("A", "footnote", 1) + noted("B", "footnote", 2, section(letters))
    body += noted("C", "footnote", 3) + noted("D", "endnote", 1) + section(letters + again)
    found = read(
        body,
        footnotes=notes("footnote", n1="First.", n2="Second.", n3="Third."),
        endnotes=notes("endnote", n1="End."),
        settings=f'<w:settings {WORD}><w:endnotePr><w:numFmt w:val="decimal"/><w:numStart'
        ' w:val="4"/></w:endnotePr></w:settings>',
    )
    assert found.text == (
        "A[^a]\n\nB[^b]\n\n[^a]: First.\n[^b]: Second.\n\nC[^a]\n\nD[^4]\n\n"
        "[^a]: Third.\n[^4]: End."
    )


def test_headers_charts_links_and_imported_parts(tmp_path: Path) -> None:
    chart = (
        f"<c:chartSpace {DRAWING}><c:chart><c:plotArea><c:ser><c:tx><c:v>Rent</c:v></c:tx><c:cat>"
        '<c:pt idx="0"><c:v>Q1</c:v></c:pt><c:pt idx="1"><c:v>Q2</c:v></c:pt></c:cat><c:val>'
        '<c:pt idx="1"><c:v>900</c:v></c:pt></c:val></c:ser></c:plotArea></c:chart></c:chartSpace>'
    )
    body = (
        p("See ", f'<w:hyperlink r:id="l1">{r("the terms")}</w:hyperlink>', ".")
        + p('<w:r><w:drawing><c:chart r:id="c1"/></w:drawing></w:r>')
        + '<w:altChunk r:id="a1"/>'
        + '<w:sectPr><w:headerReference w:type="default" r:id="h1"/><w:headerReference'
        ' w:type="first" r:id="h2"/><w:headerReference w:type="even" r:id="h2"/><w:footerReference'
        ' w:type="default" r:id="f1"/></w:sectPr>'
    )
    page = p("Page ", long_field("PAGE", "3"), " of ", long_field("NUMPAGES", "9"))
    relations = links(
        c1="chart charts/chart1.xml",
        a1="aFChunk part.html",
        h1="header header1.xml",
        h2="header header2.xml",
        f1="footer footer1.xml",
    ).replace(
        "</Relationships>",
        '<Relationship Id="l1" Type="x/hyperlink" Target="https://example.org/terms"'
        ' TargetMode="External"/></Relationships>',
    )
    members = {
        "word/document.xml": f"<w:document {NAMES}><w:body>{body}</w:body></w:document>",
        "word/_rels/document.xml.rels": relations,
        "word/charts/chart1.xml": chart,
        "word/part.html": "<html><h2>Annex</h2><p>Imported.</p></html>",
        "word/header1.xml": f"<w:hdr {WORD}>{p('NDA v2 of 1 May')}</w:hdr>",
        "word/header2.xml": f"<w:hdr {WORD}>{p('Draft')}</w:hdr>",
        "word/footer1.xml": f"<w:ftr {WORD}>{page}</w:ftr>",
    }
    result = intake(written(tmp_path / "a.docx", zipped(members)))
    assert result.documents[0].text == (
        "[Header: NDA v2 of 1 May]\n\nSee the terms (https://example.org/terms).\n\n"
        "|  | Rent |\n| --- | --- |\n| Q1 |  |\n| Q2 | 900 |\n\n## Annex\n\nImported.\n"
    )
    for name, source in (
        (
            "document",
            members["word/document.xml"].replace("</w:sectPr>", "<w:titlePg/></w:sectPr>"),
        ),
        ("settings", f"<w:settings {WORD}><w:evenAndOddHeaders/></w:settings>"),
    ):
        other = WordDocument(Archive(zipped({**members, f"word/{name}.xml": source})))
        assert "\n\n[Header: Draft]\n\n" in other.read(0).text


def test_a_note_in_the_code_of_a_field_is_not_shown() -> None:
    note = '<w:r><w:footnoteReference w:id="2"/></w:r>'
    body = p(mark("begin"), note, mark("separate"), "yes", mark("end"))
    assert read(body, footnotes=notes("footnote", n2="First.")).text == "yes"


def test_fields_without_an_end_or_a_stored_number_are_said() -> None:
    found = read(p("a", long_field("LISTNUM X")) + p(mark("begin")) + p("gone"))
    assert found.text == "a"
    assert "does not know (LISTNUM, field without an end)" in found.said[0][0]


def test_changes_and_unknown_elements_are_said(tmp_path: Path) -> None:
    body = p("It is ", f"<w:ins>{r('80')}</w:ins>", ".") + "<w:hologram><w:t>x</w:t></w:hologram>"
    result = intake(written(tmp_path / "a.docx", docx(body)))
    assert [each.sentence for each in result.skipped] == [
        "a.docx has 1 tracked change, read as accepted: reject changes first if you want the old"
        " text.",
        "a.docx has 1 element that specchat does not know (hologram): save it as PDF, and add"
        " that.",
    ]


NUMBERS = [
    (28, "lowerLetter", "bb"),
    (6, "chicago", "††"),
    (1999, "lowerRoman", "mcmxcix"),
    (2, "ordinal", "2nd"),
    (12, "ordinal", "12th"),
    (3, "ordinalText", "Third"),
    (21, "ordinalText", "21st"),
    (7, "decimalZero", "07"),
    (23, "chineseCounting", "二十三"),
    (3, "russianLower", "в"),
    (2, "none", ""),
    (5, "of a later version", "5"),
]


@table("number, kind, text", NUMBERS)
def test_formats_of_numbers(number: int, kind: str, text: str) -> None:
    assert formatted(number, kind) == text


def math(inside: str) -> str:
    return f'<m:oMath xmlns:m="m">{inside}</m:oMath>'


def m(text: str) -> str:
    return f"<m:r><m:t>{text}</m:t></m:r>"


FORMULAS = [
    (math(f"<m:sSup><m:e>{m('x')}</m:e><m:sup>{m('2')}</m:sup></m:sSup>"), "x^2"),
    (
        math(
            f"<m:sSubSup><m:e>{m('x')}</m:e><m:sub>{m('i')}</m:sub><m:sup>{m('n+1')}</m:sup></m:sSubSup>"
        ),
        "x_i^(n+1)",
    ),
    (math(f"<m:rad><m:radPr/><m:deg/><m:e>{m('x+1')}</m:e></m:rad>"), "√(x+1)"),
    (math(f"<m:rad><m:deg>{m('3')}</m:deg><m:e>{m('x')}</m:e></m:rad>"), "∛(x)"),
    (
        math(
            f'<m:nary><m:naryPr><m:chr m:val="∑"/></m:naryPr><m:sub>{m("i=1")}</m:sub>'
            f"<m:sup>{m('n')}</m:sup><m:e>{m('i')}</m:e></m:nary>"
        ),
        "∑_(i=1)^n i",
    ),
    (
        math(
            '<m:d><m:dPr><m:begChr m:val="["/><m:endChr m:val="]"/></m:dPr>'
            f"<m:e>{m('a')}</m:e></m:d>"
        ),
        "[a]",
    ),
    (
        math(
            f"<m:m><m:mr><m:e>{m('1')}</m:e><m:e>{m('0')}</m:e></m:mr><m:mr><m:e>{m('0')}</m:e><m:e>{m('1')}</m:e></m:mr></m:m>"
        ),
        "[1, 0; 0, 1]",
    ),
    (
        "<math><mfrac><mn>1</mn><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow></mfrac></math>",
        "1/(a+b)",
    ),
    ("<math><msup><mi>m</mi><mn>2</mn></msup></math>", "m^2"),
    ("<math><semantics><mi>x</mi><annotation>TeX</annotation></semantics></math>", "x"),
    ("<math><msqrt><mi>a</mi><mo>+</mo><mn>1</mn></msqrt></math>", "√(a+1)"),
    ('<math><mfrac linethickness="0"><mi>n</mi><mi>k</mi></mfrac></math>', "(n choose k)"),
]


@table("source, text", FORMULAS)
def test_formulas_in_one_line(source: str, text: str) -> None:
    assert linear(fromstring(source)) == text


@table(
    "code, text",
    [
        (r"EQ \f(1,2)", "1/2"),
        (r"EQ \r(3,x)", "∛(x)"),
        (r"EQ \f(a+1;2)", "(a+1)/2"),
        (
            r'EQ \* jc2 \* "Font:MS Mincho" \* hps11 \o\ad(\s\up 10(とうきょう),東京)',
            "東京 (とうきょう)",
        ),
        ("EQ " + r"\f(" * 500, ""),
    ],
)
def test_formulas_of_fields(code: str, text: str) -> None:
    assert field_formula(code) == text or not text


@table(
    "font, code, sign",
    [
        ("Wingdings", 0xF0FE, "☑"),
        ("Wingdings 2", 0x52, "☑"),
        ("MS Gothic", 0x2612, "☒"),
        ("Symbol", 0xF0B3, "≥"),
        ("Own", 0xF041, "\ufffd"),
    ],
)
def test_characters_of_fonts_of_signs(font: str, code: int, sign: str) -> None:
    assert symbol(font, code) == sign


def test_boxes_in_boxes_end() -> None:
    body = "x"
    for _ in range(60):
        body = p(
            f"<w:r><w:pict><v:textbox><w:txbxContent>{p(body)}</w:txbxContent></v:textbox></w:pict></w:r>"
        )
    assert read(body).text == ""
