"""Rich Text as Word, LibreOffice, pandoc and others write it."""

from __future__ import annotations

import pytest

from app.ingest.rtf import read_rtf, rtf_text
from tests.tables import table

FONTS = (
    r"{\fonttbl{\f0\fcharset0 Arial;}{\f1\fcharset2 Symbol;}{\f2\fcharset2 Wingdings;}"
    r"{\f3\fcharset2 Signs;}{\f4\fcharset204 Arial;}{\f5\fcharset128{\*\falt Arial} Gothic;}}"
)
STYLES = (
    r"{\stylesheet{\snext0 Normal;}{\s1\sbasedon0 heading 1;}{\s2\sbasedon1{\*\keycode x} Clause;}"
    r"{\s3\outlinelevel2 Any;}{\s4 Title;}{\s5 Preformatted Text;}{\s6\sbasedon7 a;}"
    r"{\s7\sbasedon6 b;}{\cs8\v hidden;}{\s9\sbasedon1\outlinelevel9 Body;}}"
)
LISTS = (
    r"{\*\listtable{\list{\listlevel\levelnfc0\levelstartat3{\leveltext\'03(\'00);}}"
    r"{\listlevel\levelnfc4\levelstartat1{\leveltext\'04\'00.\'01.;}}\listid7}"
    r"{\list{\listlevel\levelnfc23{\leveltext\'01\u8226 ?;}}\listid8}}"
    r"{\*\listoverridetable{\listoverride\listid7\ls1}{\listoverride\listid8\ls2}"
    r"{\listoverride\listid7{\lfolevel\listoverridestartat\levelstartat9}\ls3}}"
)


def text_of(source: str) -> str:
    return rtf_text(f"{{\\rtf1\\ansi\\ansicpg1252 {source}}}".encode("latin-1"))


# ------------------------------------------------------------------------------- characters

CHARACTERS = {
    r"Gr\'fc\'dfe\par Two\line Three": "Grüße\n\nTwo\nThree",
    r"\ansicpg1250 \'9elu\'9d": "žluť",
    r"\mac \'8a": "ä",
    r"\ansicpg99999 \'e4": "ä",
    r"{\fonttbl{\f0\fcharset0 A;}{\f1\fcharset204 B;}}\f0 A \f1\'cf\'f0\f0 B": "A ПрB",
    r"{\fonttbl{\f0\fcharset128 Gothic;}}\f0\'93\'fa\'96\'7b": "日本",
    r"{\fonttbl{\f0\fcharset128 Gothic;}}\f0\'96\tab x": "–\tx",  # not a letter of that font
    r"{\fonttbl\f0\fcharset204 A;\f1\cpg1253 B;}\f0\'cf\f1\'e1": "Пα",
    r"\deff1{\fonttbl{\f1\fcharset204 A;}}\'cf{\f7\'cf}\plain\'cf": "ПÏП",
    r"\uc1 caf\u233 e \u8211 - \u-10179 ?\u-8704 ?": "café – 😀",
    r"\uc2\u26085\'93\'fa\uc0\u26412x {\uc1\u228 ?}": "日本x ä",
    r"\u228 \'3f\u228\tab x": "ääx",
    r"{\upr{a?}{\*\ud{a\u228 ?}}} b": "aä b",
    r"Die K\'fcn\-di\u173?gungs\u173\'adfrist\u8203 ?": "Die Kündigungsfrist",
    r"a\{b\}\\c\~d\_e\emdash\ldblquote x\rdblquote": "a{b}\\c\xa0d\u2011e—“x”",
    "one\r\ntwo\\\nthree\\\r\nfour": "onetwo\n\nthree\n\nfour",
    r"8{\b\revdttm-2015295488 90}\b12345678901234567890 x": "890x",
    FONTS + r"\f1 a\'b3{\f0 a}\f2\'fe \f3 a\f4\'cf": "α≥a☑ aП",
    FONTS + r"{\f2\u61694 ?}{\f1\u-3999 ?}{\f3\u-3999 ?}{\f0\u8226 ?}": "☑α\ufffd•",
    "x{\\pict\\bin5 }}{}{}y": "xy",
    r"}}}} x \'zz \q": " x zz",
}


def test_bytes_after_the_end() -> None:
    assert rtf_text(b"{\\rtf1 a}\0\0 x") == "a"


LEFT_OUT = [
    r"{\*\generator X;}",
    r"{\info{\title T}{\author {\b A}}}",
    STYLES,
    FONTS,
    r"{\*\unknown x{y}\}\'7d}",
    r"{\*\unknown\bin3 }}}x}",
    r"{\pict\pngblip 8950{\*\picprop{\sp{\sn wzName}{\sv Logo}}}4e47}",
    r"{\nonshppict{\pict{\*\picprop{\sp{\sn wzDescription}{\sv Logo}}}}}",
    r"{\xe {\b Rent}}{\tc Rent}{\*\bkmkstart rent}{\*\bkmkend rent}",
    r"{\*\background{\shp{\*\shpinst{\shptxt draft\par}}}}",
    r"{\*\ftnsep\chftnsep}{\*\pgdsctbl{\pgdsc0{\header Lease 4711\par}}}",
    r"{\*\pnseclvl1\pndec{\pntxta .}}",
]


@table("source", LEFT_OUT)
def test_groups_without_text(source: str) -> None:
    assert text_of(f"a{source}b") == "ab"


RAISED = {
    r"At most 10{\super 6} units.": "At most 10^6 units.",
    r"5 m\super 2\nosupersub  and H{\sub 2}O": "5 m^2 and H2O",
    r"5 m{\*\updnprop8000\up8 2}": "5 m",
    r"5 m{{\*\updnprop8000}\up8\loch 2}{\dn6 x}": "5 m^2x",
    r"x{\up2 y}": "xy",
    r"2{\super nd} of {\super a}": "2nd of a",
    r"Pay 100.{\v  Go down to 80.}": "Pay 100.(hidden: Go down to 80.)",
    r"\v secret\v0  open": "(hidden: secret) open",
    r"{\v secret\plain  open}": "(hidden: secret) open",
}


# ------------------------------------------------------------------------------- paragraphs

PARAGRAPHS = {
    r"{\pard\s1\outlinelevel0\b Termination\par}\pard Thirty days.\par": (
        "# Termination\n\nThirty days."
    ),
    STYLES + r"\s1 A\par\s2 B\par\s3 C\par\s4 D\par\pard\s9 E\par\s6 F": (
        "# A\n\n# B\n\n### C\n\n# D\n\nE\n\nF"
    ),
    STYLES + r"\pard\s1\outlinelevel9 A\par\pard\s1 B": "A\n\n# B",
    STYLES + r"\pard\s5 def f():\par     return 1\par\pard Done.": (
        "```\ndef f():\n    return 1\n```\n\nDone."
    ),
    STYLES + r"{\pard\s1\par}{\pard\s1{\listtext 1.\tab}\par}a": "a",
    r"\pard\outlinelevel1 Scope": "## Scope",
    r"\pard     return 1\line # load\par": "    return 1\n # load",
    r"a\sect b\page c\column d": "a\n\nb\nc\nd",
    r"{\pard\s1{\listtext 2.\tab}\outlinelevel0 Fees\par}": "# 2. Fees",
    r"{\pard{\listtext\f1\'b7\tab}\outlinelevel0 Fees\par}": "# Fees",
}


ITEMS = {
    r"\pard{\listtext\pard\plain 7.\tab}\ls1\ilvl0 One\par{\listtext 8.\tab}Two\par\pard After": (
        "7. One\n8. Two\n\nAfter"
    ),
    r"{\pntext\f1\'B7\tab}{\*\pn\pnlvlblt\pnf1{\pntxtb\'B7}}One\par{\pntext\f1\'B7\tab}Two": (
        "- One\n- Two"
    ),
    FONTS + r"{\listtext\f1\'b7\tab}a\par{\listtext\f2\'a8\tab}b\par{\listtext o\tab}c": (
        "- a\n- ☐ b\n- c"
    ),
    r"{\listtext\tab}a\par{\listtext Article 1\tab}b\par{\listtext (ii)\tab}c": (
        "a\n\nArticle 1 b\n(ii) c"
    ),
    r"\ls1\ilvl0{\listtext 1.\tab}a\par\ls1\ilvl1{\listtext a)\tab}b\par\ilvl0{\listtext 2.}c": (
        "1. a\n  a) b\n2. c"
    ),
    r"\li360{\pntext 1.}a\par\li720{\pntext -}b\par\li360{\pntext 2.}c": "1. a\n  - b\n2. c",
    r"\li1080\ls1\ilvl1{\listtext 1.}a\par\li1440\ls2\ilvl0{\listtext -}b": "  1. a\n    - b",
    r"\ls1{\listtext 1.\tab}a\par more\par{\listtext 2.\tab}b": "1. a\n  more\n2. b",
    LISTS + r"\ls1 a\par\ilvl1 b\par c\par\ilvl0 d\par\pard\ls2 e\par\pard\ls9 f": (
        "(3) a\n  3.a. b\n  3.b. c\n(4) d\n- e\n\nf"
    ),
    LISTS + r"\pard\ls1 a\par\pard\ls3 b\par c\par\pard\ls1 d": "(3) a\n(9) b\n(10) c\n(11) d",
    LISTS + r"\ls1\par a": "(3)\n(4) a",
    r"The fee is \strike 100\strike0  80": "The fee is ~~100~~ 80",
    LISTS.replace(
        r"\listoverridestartat", r"\listoverrideformat{\listlevel\levelnfc1{\leveltext\'02\'00.;}}"
    )
    + r"\pard\ls1 a\par\pard\ls3 b": "(3) a\nIV. b",
    r"{\li360\fi-360 1.\tx360\tab Warranty\par}{\li720\fi-360\endash\tab a\par}"
    r"{\li360\fi-360 2.\tab b\par}": "1. Warranty\n  - a\n2. b",
    r"{\li360\fi-360 Lessor\tab A. Smith\par}{\li0 1.\tab a\par}": "Lessor\tA. Smith\n\n1.\ta",
}


# ----------------------------------------------------------------------------------- tables


def row(*cells: str, end: str = "\\cell") -> str:
    places = "".join(rf"\cellx{2000 * n}" for n in range(1, len(cells) + 1))
    inside = "".join(rf"\pard\intbl {each}{end}" for each in cells)
    return rf"\trowd{places}{inside}\row"


HEAD = "| Name | Price |\n| --- | --- |\n"
NESTED = (
    r"\trowd\cellx2\cellx4\pard\intbl a\par\pard\intbl\itap2 i\nestcell\pard\intbl\itap2 j"
    r"\nestcell{\*\nesttableprops\trowd\cellx1\cellx2\nestrow}{\nonesttables\par}"
    r"\pard\intbl b\cell c\cell\row"
)
TABLES = {
    r"\trowd Name\cell Price\cell\row Basic\cell 17\cell\row": HEAD + "| Basic | 17 |",
    row("Name", "Price") + row("", "17") + r"\pard After\par": HEAD + "|  | 17 |\n\nAfter",
    row("Name", "Price", end=r"\par\cell") + "{" + row("a{\\par}b", "{x|}") + "}": (
        HEAD + "| a b | x\\| |"
    ),
    r"{\trowd\cellx1\cellx2\intbl{{{\pard\intbl Name\par}\cell}{{\pard\intbl Price\par}\cell}}"
    r"\intbl\row}{\trowd\intbl{{\cell}{{\pard\intbl 7\par}\cell}}\intbl\row}": HEAD + "|  | 7 |",
    r"\trowd\cellx1\cellx2{\intbl Name\cell Price\cell}{\trowd\cellx1\cellx2\row }\pard\par a": (
        HEAD + "\na"
    ),
    row("Name", "Price") + r"\pard\par" + row("Name", "Price"): HEAD + "\n" + HEAD[:-1],
    row("one") + row(r"{\outlinelevel0 two\par}three"): "one\n\n# two\n\nthree",
    r"\trowd\cellx2000\cellx6000 a\cell b\cell\row\trowd\cellx2010\cellx4000\cellx6000 "
    r"c\cell d\cell e\cell\row": "| a | b |  |\n| --- | --- | --- |\n| c | d | e |",
    r"\trowd\cellx4000\cellx6000 a\cell b\cell\row\trowd\cellx2000\cellx4000\cellx6000 "
    r"c\cell d\cell e\cell\row": "| a |  | b |\n| --- | --- | --- |\n| c | d | e |",
    r"\trowd\cellx1000\cellx2000\cellx3000 a\cell b\cell c\cell\row\trowd\trleft1000\cellx2000"
    r"\cellx3000 d\cell e\cell\row": "| a | b | c |\n| --- | --- | --- |\n|  | d | e |",
    r"\trowd\clmgf\cellx1\clmrg\cellx2\cellx3 a\cell x\cell b\cell\row": (
        "| a x |  | b |\n| --- | --- | --- |"
    ),
    r"\trowd\clvmgf\cellx1\cellx2 a\cell b\cell\row\trowd\clvmrg\cellx1\cellx2 x\cell c\cell\row"
    r"\trowd\cellx1\cellx2 y\cell d\cell\row": "| a x | b |\n| --- | --- |\n|  | c |\n| y | d |",
    NESTED: "| a i, j b | c |\n| --- | --- |",
    r"\pard\intbl\itap-3 a\cell b\cell\row\pard\itap99 c\nestcell": (
        "| a | b |\n| --- | --- |\n| c |  |"
    ),
    r"\pard\intbl a\cell b": "| a | b |\n| --- | --- |",
    r"\trowd a\cell b\cell\row c": "| a | b |\n| --- | --- |\n\nc",
    row("{\\pard\\intbl{\\listtext 1.}a\\par}", "{\\deleted x}") + row("b", "c"): (
        "| 1. a |  |\n| --- | --- |\n| b | c |"
    ),
}


# -------------------------------------------------------------------------- notes and fields

NOTES = {
    r"a{\super\chftn{\footnote\pard\plain{\super\chftn} Unless renewed.}} b": (
        "a[^1] b\n\n[^1]: Unless renewed."
    ),
    r"a{\super\chftn}{\*\footnote\chftn\~\plain\pard{\pard Twice.\par}} b{\chftn{\footnote c}}": (
        "a[^1] b[^2]\n\n[^1]: Twice.\n[^2]: c"
    ),
    r"a{\super\chftn{\*\footnote\ftnalt\chftn\pard End.}}": "a[^i]\n\n[^i]: End.",
    r"\ftnnauc\saftnnar\ftnstart3 a{\chftn{\footnote b}}{\chftn{\footnote\ftnalt c}}": (
        "a[^C][^1]\n\n[^C]: b\n[^1]: c"
    ),
    r"\ftnrestart a{\chftn{\footnote b}}\sect c{\chftn{\footnote d}}": (
        "a[^1]\n\n[^1]: b\n\nc[^1]\n\n[^1]: d"
    ),
    r"\ftnstart3 a{\chftn{\footnote b}}\sect\sectd\sftnrestart c{\chftn{\footnote d}}\sect"
    r"\sectd\sftnrstcont e{\chftn{\footnote f}}": (
        "a[^3]\n\n[^3]: b\n\nc[^3]\n\ne[^4]\n\n[^3]: d\n[^4]: f"
    ),
    r"a{\super *{\*\footnote *\pard\plain * Custom.}} 10{\super 6}": (
        "a[^*] 10^6\n\n[^*]: Custom."
    ),
    r"a{\footnote b} c": "a[^1] c\n\n[^1]: b",
    r"{\pard\outlinelevel0 Scope\chftn{\footnote a}\par}b\par{\outlinelevel0 Fees\par}": (
        "# Scope[^1]\n\nb\n\n[^1]: a\n\n# Fees"
    ),
    row(r"a\chftn{\footnote\pard b\par c}", "d") + r"\pard e": (
        "| a[^1] | d |\n| --- | --- |\n\ne\n\n[^1]: b c"
    ),
    r"a{\*\atnid X}{\*\atnauthor Ann}\chatn{\*\annotation{\*\atndate 1}\pard It is 6.} b"
    r"{\*\annotation c}": "a[Comment 1] b[Comment 2]\n\n[Comment 1]: Ann: It is 6.\n[Comment 2]: c",
    r"{\header Lease 4711, page {\field{\*\fldinst PAGE}{\fldrslt 1}}\par}{\footerf Ann\par Smith}"
    r"{\headerl Page \chpgn}a\sect{\header\pard Lease 4711, page {\b\par}}b": (
        "[Header: Lease 4711, page]\n\na\n\nb\n\n[Footer: Ann / Smith]"
    ),
    r"a{\field{\*\fldinst PAGE}{\fldrslt 1}}": "a1",
}


FORM = r"{\field{\*\fldinst{ FORM%s {\*\formfield{\fftype%d%s{\*\ffname X}}}}}{\fldrslt %s}}"
READING = r"EQ \\* jc3 \\* hps12 \\o\\ad(\\s\\up 11(\u12392 ?),\u26481 ?\u20140 ?)"
FIELDS = {
    r'{\field{\*\fldinst HYPERLINK "https://a.org/x"}{\fldrslt{\ul terms}}}.': (
        "terms (https://a.org/x)."
    ),
    r'{\field{\*\fldinst{HYPERLINK "https://a.org"}}{\fldrslt https://a.org}}': "https://a.org",
    r'{\field{\*\fldinst HYPERLINK \\l "x"}{\fldrslt{\field{\*\fldinst REF x}{\fldrslt 4.2}}}}': (
        "4.2"
    ),
    r"{\field{\*\fldinst IF {\field{\*\fldinst A}{\fldrslt b}} = c}{\fldrslt d}}": "d",
    r"{\field{\*\fldinst{ " + READING + r"}}{\fldrslt {}}}": "東京 (と)",
    r"{\field{\*\fldinst EQ \\f(a+b,2)}}": "(a+b)/2",
    r'{\field{\*\fldinst SYMBOL 254 \\f "Wingdings"}{\fldrslt{\f2}}}': "☑",
    r'{\field{\*\fldinst SYMBOL 0x61 \\f "Symbol"}}': "α",
    r"{\field{\*\fldinst SYMBOL 99999999}}x": "x",
    FORM % ("CHECKBOX", 1, r"\ffres1", ""): "[x]",
    FORM % ("CHECKBOX", 1, r"\ffres25\ffdefres1", r"{\f2\'fe}"): "[x]",
    FORM % ("CHECKBOX", 1, r"\ffres25\ffdefres0", ""): "[ ]",
    FORM % ("DROPDOWN", 2, r"\ffres1{\*\ffl One}{\*\ffl Two}", "One"): "Two",
    FORM % ("DROPDOWN", 2, r"\ffres7{\*\ffl One}", "") + "x": "x",
    FORM % ("TEXT", 0, r"{\*\ffdeftext c}", "Ann"): "Ann",
    r"{\mmath{\*\moMath{\mf{\mfPr{\mctrlPr x}}{\mnum{\mr a}{\mr +b}}{\mden{\mr{\i 2}}}}}"
    r"{\mmathPict{\pict 89}}} m": "(a+b)/2 m",
    r"{\*\moMathPara{\moMath{\mnary{\mnaryPr{\mchr\u8721 ?}}{\msub{\mr i}}{\msup{\mr n}}{\me"
    r"{\mr i}}}{\md{\mdPr{\mbegChr [}{\mendChr }}{\me{\mr x}}}}}": "∑_i^n i[x",
}


BOXES = {
    r"a{\shp{\*\shpinst\shpleft0{\sp{\sn shapeType}{\sv 202}}{\shptxt\pard Net.\par}}"
    r"{\shprslt{\*\do{\dptxbxtext Net.}}}} b\par c": "a b\n\nNet.\n\nc",
    r"{\*\do\dobxpage{\dptxbxtext\pard Net.\par}\dpx0}a": "a\n\nNet.",
    r"{\shptxt{\trowd a\cell b\cell\row}}c": "c\n\n| a | b |\n| --- | --- |",
    row(r"{\shptxt in}a", "b") + row("c", "d"): "| a in | b |\n| --- | --- |\n| c | d |",
    r"{\*\shppict{\pict{\*\picprop{\sp{\sn wzDescription}{\sv A map}}}8950}}a": "[A map]a",
    r"{\shp{\*\shpinst{\sp{\sn gtextUNICODE}{\sv DRAFT}}}}": "DRAFT",
    r"{\object\objemb{\*\objclass Excel}{\result a\cell b\cell\row}}": "| a | b |\n| --- | --- |",
}


TEXTS = [CHARACTERS, RAISED, PARAGRAPHS, ITEMS, TABLES, NOTES, FIELDS, BOXES]


@table("source, text", [each for texts in TEXTS for each in texts.items()])
def test_texts(source: str, text: str) -> None:
    assert text_of(source) == text


# ------------------------------------------------------------------------- what is said

CHANGES = "has {}, read as accepted"
SAID = {
    r"The price is {\deleted 100}{\revised 80} euros.": (
        "The price is 80 euros.",
        [CHANGES.format("2 tracked changes")],
    ),
    r"{\revised 9{\b 0}}{\b days}": ("90days", [CHANGES.format("1 tracked change")]),
    r"a{\deleted b\par }c{\deleted0 d}\par{\mvf e}": (
        "acd",
        [CHANGES.format("2 tracked changes")],
    ),
    r"a{\deleted\chftn{\footnote x}} b": ("a b", []),
    r"{\object{\*\objdata 0105{}}{\result{\pict 89}}}a": (
        "a",
        ["has 1 embedded file that cannot be read"],
    ),
    r"Yes: {\field{\*\fldinst FORMCHECKBOX }{\fldrslt {}}}": (
        "Yes:",
        ["has 1 form field of unknown state"],
    ),
    "{" * 2000 + "a": ("", ["is nested too deeply to be read completely"]),
    r"a{\footnote b" * 20: (
        "",
        ["is nested too deeply to be read completely"],
    ),
}


@table("source", SAID)
def test_what_is_said(source: str) -> None:
    part = read_rtf(f"{{\\rtf1 {source}}}".encode())
    text, said = SAID[source]
    assert [each for each, _ in part.said] == said
    assert not text or part.text == text


# ------------------------------------------------------------------------- hostile files

HOSTILE = [
    "{",
    "}",
    r"{\v a",
    r"\par a\cell",
    r"a\cell b\cell\row",
    r"\trowd\clvmrg\cellx1 a\cell b\cell\row",
    r"\trowd\cellx1\cellx2 a\cell b\cell\row\trowd\cellx3 c\cell\row",
    r"\itap9 a\nestcell\itap8 b\nestcell\nestrow",
    r"{\field{\*\fldinst EQ \\s\\up(}{\fldrslt a",
    r"{\moMath{\mf",
    r"a\chftn{\footnote b}",
    r"{\upr{",
    r"{\upr{a}{\*\ud{b",
    r"{\field{\*\fldinst A}{\fldrslt a",
    r"{\shptxt a\par ",
    r"{\pict\bin99999999 ",
]


@table("piece", HOSTILE)
def test_hostile_files_are_read_in_linear_time(piece: str) -> None:
    checks = []
    for times in (200, 2000):
        count = 0

        def check() -> None:
            nonlocal count
            count += 1

        read_rtf(b"{\\rtf1 " + piece.encode() * times, check)
        checks.append(count)
    assert checks[1] <= 15 * checks[0] + 100


def test_reading_can_be_cancelled() -> None:
    def check() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        rtf_text(b"{\\rtf1 a}", check)
