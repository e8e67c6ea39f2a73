"""Web pages become the text that a browser shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.ingest.web_page import mail_text, markup_text, page_text
from app.util.places import headings
from tests.ingest.helpers import intake, written
from tests.tables import table


def text_of(path: Path) -> str:
    return intake(path).documents[0].text


PAGES = {
    "scripts and styles": (
        "<script>if (a<b) write('<p>x</p>')</script><style>p{}</style><!-- <p>no -->Yes",
        "Yes",
    ),
    "paragraphs": ("<p>One\n  two</p><p>Three", "One two\n\nThree"),
    "blocks and breaks": ("<div>A<div>B</div></div>C<br>D", "A\nB\nC\nD"),
    "headings": ("<h1>A</h1><h3> B </h3>", "# A\n\n### B"),
    "lists": ("<ul><li>A<li><p>B</p></ul><ol><li>C<li>D</ol>", "- A\n- B\n\n1. C\n2. D"),
    "a table": (
        "<table><tr><th></th><th>A<tr><td>b</td><td>1</td></tr></table>",
        "|  | A |\n| --- | --- |\n| b | 1 |",
    ),
    "spanning cells": (
        "<table><tr><th colspan=2>A<th>B<tr><td rowspan=2>1<td>2<td>3"
        "<tr><td><p>4<p>5<td>a|b</table>",
        "| A |  | B |\n| --- | --- | --- |\n| 1 | 2 | 3 |\n|  | 4 5 | a\\|b |",
    ),
    "a table without cells": ("A<table></table><table><tr></table>B", "A\n\nB"),
    "a table that arranges a page": (
        "<table><tr><td>A<td><table><tr><td>1<td>2</table></table>",
        "A\n\n| 1 | 2 |\n| --- | --- |",
    ),
    "entities": ("a &lt; b &amp; c&nbsp;d &#8364;", "a < b & c\xa0d €"),
    "signs": ("1 < 2 and <3 & 5", "1 < 2 and <3 & 5"),
    "quotes in a tag": ("<a title='>' href=\">\">x</a>", "x"),
    "a quote that does not end": ('<a title=">x</a> rest', "x rest"),
    "code as it stands": ("<pre>a\n  {{ b }}</pre>", "```\na\n  {{ b }}\n```"),
    "pictures and fields": (
        "<img alt='A chart' src=x><input value=Anna><input type=hidden value=no>",
        "[A chart][Anna]",
    ),
    "hidden": (
        "<div hidden>no</div><div style='display: none'>no</div>"
        "<svg><text>no</text></svg><template>no</template>Yes",
        "Yes",
    ),
    "a comment without content": ("<p>One<!--><p>Two", "One\n\nTwo"),
    "a stray quote": ('<p class="x"">One<p title="y">Two', "One\n\nTwo"),
    "an apostrophe in a value": ("<p title=Bob's>One isn't<p>Two", "One isn't\n\nTwo"),
    "a number of many digits": (
        f"<p>&#{'9' * 5_000};<img alt='&#{'9' * 5_000};'>Yes",
        "\ufffd[\ufffd]Yes",
    ),
    "a script that closes itself": ("<script src=a.js /><p>Yes", "Yes"),
    "hidden without an end": ("<svg><p>Yes", "Yes"),
    "hidden by an attribute without an end": ("Yes<div hidden>no<p>no", "Yes"),
    "hidden, and a drawing without an end": ("<p hidden>no</p>Yes<svg>", "Yes"),
    "tags of Unicode": ("A&#xE0041;&#xE0042;\U000e0043B", "AB"),
}


@table("case", PAGES)
def test_the_text_of_a_web_page(tmp_path: Path, case: str) -> None:
    source, text = PAGES[case]
    assert text_of(written(tmp_path / "a.html", source)) == text + "\n"
    # Also without the name of one, as it comes through a pipe.
    page = f"<!DOCTYPE html>\n<html><body>{source}</body></html>"
    assert text_of(written(tmp_path / "a", page)) == text + "\n"


@pytest.mark.parametrize(
    "source",
    ["<p>{{ user.name }}</p>", "<?php echo 1 ?><p>x", "<div id=root></div><script>a()</script>"],
)
def test_templates_and_pages_without_text_stay_as_they_are(tmp_path: Path, source: str) -> None:
    assert text_of(written(tmp_path / "a.html", source)) == source


def test_a_page_that_names_its_encoding(tmp_path: Path) -> None:
    page = '<html><meta charset="windows-1257"><p>Ąžuolas</p></html>'.encode("cp1257")
    result = intake(written(tmp_path / "a.html", page))
    assert result.documents[0].text == "Ąžuolas\n"
    assert not result.files[0].doubtful


def test_a_page_that_is_called_a_text_is_read_as_it_is(tmp_path: Path) -> None:
    source = "<!DOCTYPE html><p>x</p>"
    assert text_of(written(tmp_path / "a.txt", source)) == source


SHORT = "<table><tr><td>Signature</td><td></td></tr></table>"
EMPTY = "| Signature |  |\n| --- | --- |"
AFTER_EMPTY = {
    f"{SHORT}<h1>Annex</h1>": f"{EMPTY}\n\n# Annex",
    f"{SHORT}The deposit is due.": f"{EMPTY}\n\nThe deposit is due.",
    f"{SHORT}<ol><li>Rent</ol>": f"{EMPTY}\n\n1. Rent",
    f"{SHORT}{SHORT}": f"{EMPTY}\n\n{EMPTY}",
    "<table><tr><td>A<td></td></table><pre>b</pre>": "| A |  |\n| --- | --- |\n\n```\nb\n```",
    "<ul><li>one<li></ul><p>After": "- one\n\nAfter",
    "<ul><li>one<li></li><li>three</ul>": "- one\n- three",
    "<ol><li>one<li><li>three</ol>": "1. one\n2.\n3. three",
    "<ol><li><ol><li>inner</ol></ol>": "1.\n  1. inner",
    "<h1></h1><p>After": "After",
    "<ul><li><h2></h2>one</ul>": "- one",
}


@table("source", AFTER_EMPTY)
def test_what_follows_an_empty_element(source: str) -> None:
    assert page_text(source) == AFTER_EMPTY[source] + "\n"


RAISED = {
    "It is <del>100</del><ins> 80</ins>, <s>not due</s>": "It is ~~100~~ 80, ~~not due~~",
    "10<sup>6</sup> units": "10^6 units",
    "10<sup>-6 </sup>m": "10^-6 m",
    "x<sup>n+1</sup>, x<sup><i>n</i>+1</sup>": "x^(n+1), x^(n+1)",
    "the 1<sup>st</sup> of H<sub>2</sub>O": "the 1st of H2O",
    "<span style='vertical-align: super'>1</span>a<b style='vertical-align:super'>2</b>": "1a^2",
    "a<span style='position:relative;top:-0.33em;font-size:0.58em'>2</span>": "a^2",
    "a<sup style='vertical-align:super; color:red'>2 </sup>b": "a^2 b",
    "<span style='TEXT-DECORATION: line-through'>100</span> 80": "~~100~~ 80",
    "<div style='text-decoration-line:line-through'>A<b>B</b></div>C": "~~AB~~\nC",
    "2024<sup><a href='#n1'>1</a></sup>.": "2024[1].",
    "2024<a style='vertical-align:super' href='#n1'>1</a>.": "2024[1].",
    "2024<a href='#n1'><sup>1</sup></a>.": "2024[1].",
    "2024<sup><a href='#n1'>[a]</a></sup>.": "2024[a].",
    "2024<sup><a href='#n1'>1</a>, <a href='#n2'>2</a></sup>.": "2024[1], [2].",
    "2024<a href='b.xhtml#n1' epub:type='noteref'>1</a>.": "2024[1].",
    "2024<a href='#n1' class='footnote-ref' role='doc-noteref'>*</a>.": "2024[*].",
    "10<sup><a href='b.html'>6</a></sup>": "10^6",
    "<a href='#s1'>1</a> text": "1 text",
    "<pre>10<sup>6</sup></pre>": "```\n10^6\n```",
}


@table("source", RAISED)
def test_raised_text_and_the_marks_of_notes(source: str) -> None:
    assert page_text(f"<p>{source}") == RAISED[source] + "\n"


UNSEEN = (
    *("font-size:0", "font-size: 0px", "FONT-SIZE: 0.0PT !important", "font-size:1px"),
    *(
        "font-size:0%",
        "opacity:0",
        "opacity:0;text-transform:uppercase",
        "opacity: .0",
        "visibility:hidden",
        "display:none",
    ),
    *("color:transparent", "color:rgba(9, 9, 9, 0)", "color:rgb(0 0 0 / 0%)", "color:#0000"),
    *("color:#12345600", "position:absolute;left:-9999px", "text-indent:-999em"),
    *("height:0;overflow:hidden", "max-height:0px;overflow-y:auto;overflow:hidden"),
    *("width:1px;height:1px;overflow:hidden", "height:0;padding:0;overflow-y:hidden"),
    *("text-indent:100%;white-space:nowrap;overflow:hidden", "content-visibility:hidden"),
    *("visibility:collapse", "opacity:.01", "opacity:1%", "opacity:1e-3", "filter:opacity(0)"),
    *("-webkit-filter:blur(2px) opacity(.5%)", "font:0/0 a", "font:bold 1px &quot;a&quot;"),
    *(r"dis\70lay:none", r"display:n\6f ne", "display:/**/none", "display:/*;*/none/* x"),
    *("display:none!important;display:block", "font-family:&quot;a;b&quot;;display:none"),
    *("display&#58;none", "-webkit-text-fill-color:transparent", "color:hsla(0 0% 0% / 0)"),
    *("color:red;-webkit-text-fill-color:#0000", "color:oklch(50% .2 30 / 0)"),
    *("color:#fffffe", "color:rgb(255 255 255)", "color:rgb(100%,100%,100%)", "color:snow"),
    *("color:hsl(0,0%,100%)", "color:#111;background:#101112", "color:red;background:red"),
    *("position:absolute;clip:rect(0,0,0,0)", "position:fixed;clip:rect(1px 1px 1px 1px)"),
    *("clip-path:inset(50%)", "clip-path:inset(0 0 100% 0 round 5px)", "clip-path:circle(0)"),
    *("clip-path:polygon(0 0, 0 0, 0 0)", "-webkit-clip-path:ellipse(0 50% at 1px 1px)"),
    *("position:absolute;right:-9999px", "position:absolute;inset:0 auto auto -9999px"),
    *("position:relative;left:-999em", "position:fixed;bottom:-9999px", "margin-top:-9999px"),
    *("position:absolute;left:-100vw", "margin-left:-9999px", "margin:0 0 0 -9999px"),
    *("transform:scale(0)", "-webkit-transform:scaleX(0)", "transform:rotate(3deg) scale3d(0,0,0)"),
    *("transform:translate(-9999px)", "transform:translateX(9999px)", "translate:-9999px"),
    *("transform:translate3d(0,-9999px,0)", "scale:.01", "left:calc(-9999px);position:fixed"),
)
SEEN = (
    *("font-size:.9em", "font-size:10px", "font-size:100%", "opacity:0.5", "color:rgb(0,0,0)"),
    *("height:0;overflow:hidden;padding-bottom:56%", "opacity:0;-webkit-transition:all 1s"),
    *("opacity:0;transform:translateY(9px)", "color:#000000", "color:rgba(0,0,0,.4)"),
    *("color:transparent;-webkit-background-clip:text", "text-indent:-20px", "height:0"),
    *("position:absolute;left:0", "overflow:hidden;height:10px", "overflow:hidden;width:100%"),
    *("font:400 12px Arial", "font:inherit", "font-family:&quot;display:none;&quot;"),
    *("clip:rect(0,0,0,0)", "position:absolute;clip:rect(auto,auto,auto,auto)"),
    *("clip-path:inset(10% 20%)", "clip-path:polygon(0 0, 100% 0, 100% 100%)"),
    *("clip-path:inset(0 100% 0 0);transition:clip-path 1s", "transform:none", "scale:1"),
    *("position:absolute;left:50%;margin-left:-960px;width:1920px", "margin-left:-100%"),
    *("position:absolute;left:50%;transform:translate(-50%,-50%)", "transform:translateX(-100%)"),
    *("position:absolute;bottom:1034px", "position:absolute;top:12000px"),
    *("position:absolute;left:9999px", "margin:0 -9999px;padding:0 9999px"),
    *("margin-left:700pt;text-indent:-700pt", "transform:translateY(12000px)"),
    *(
        "transform:translate3d(-3420px,0,0);width:7980px",
        "-webkit-text-fill-color:#000;color:#fff0",
    ),
    *("color:transparent;text-shadow:0 0 2px red", "color:transparent;-webkit-text-stroke:1px red"),
    *("color:#fff;background-image:url(a.png)", "color:#fff;background:linear-gradient(#000,#111)"),
    *("color:black;background:rgba(0,0,0,.1)", "color:inherit;background:inherit"),
)


@table("style", UNSEEN)
def test_what_a_style_hides_is_not_read(style: str) -> None:
    for name in ("p", "li", "span", "b", "font"):
        page = f'<html><body><p>Yes <{name} style="{style}">no <i>no</i></{name}><p>and yes'
        for text in (page_text(page), mail_text(page), markup_text(page)):
            assert "no" not in text
            assert text.split() == ["Yes", "and", "yes"]


@table("style", SEEN)
def test_what_a_style_does_not_hide_is_read(style: str) -> None:
    assert page_text(f'<html><p style="{style}">Yes') == "Yes\n"


INSIDE = {
    "<p style='font-size:0'>no<b style='font-size:12px'>A</b> no<p>B": "A\n\nB",
    "<p style='font-size:0'>no<b style='font-size:2em'>no</b> no<p>B": "B",
    "<p style='font-size:0'>no<b style='font:12px Arial'>A</b><img alt=B>": "A[B]",
    "<p style='color:transparent'>no<b style='color:red'>A</b> no<p>B": "A\n\nB",
    "<p style='color:#fff'>no<b style='color:#000'>A</b><font color=red>B</font> no": "AB",
    "<p style='color:#fff'>no<b style='background:#000'>A</b><b style='background:#fff'>no": "A",
    "<p style='-webkit-text-fill-color:#fff0'>no<b style='color:red'>no</b><p>B": "B",
    "<p style='color:#fff0'>no<b style='-webkit-text-fill-color:red'>A": "A",
    "<p style='opacity:0'>no<b style='opacity:1'>no</b><p>B": "B",
    "<p style='display:none'>no<b style='display:inline;visibility:visible'>no</b><p>B": "B",
    "<p style='visibility:hidden'>no<b style='visibility:visible'>A</b> no<p>B": "A\n\nB",
    "<ul style='visibility:hidden'><li>no<li style='visibility:visible'>A<ol><li>B</ul>": (
        "- A\n  1. B"
    ),
    "<div style='visibility:hidden'><img alt=no><input value=no><input type=radio><ol><li>no</ol>"
    "<select><option>no</select><math alttext=no></math><img alt=A style='visibility:visible'>": (
        "[A]"
    ),
    "<body style='visibility:hidden'>A": "A",
    "<td bgcolor=blue>A<td bgcolor=white><font color='#ffffff'>no</font>": "A",
    "<td bgcolor=black>A<font color='#000'>no</font>": "A",
    "<table background=''><tr><td>A<font color='#fff'>no</font></table>": "A",
    "<table background=a.png><tr><td><font color='#fff'>A</font></table>": "A",
    "<style>.b{background:red}</style><td bgcolor=white><a class=b style='color:#fff'>A": "A",
}


@table("source", INSIDE)
def test_texts_inside_of_unseen_ones_may_be_seen(source: str) -> None:
    assert page_text(f"<html>{source}") == INSIDE[source] + "\n"


SHEETS = {
    ".s { vertical-align: super }": "a^2 b",
    "@import 'a.css'; /* } */ b.x, i.s{font-size:58%;Vertical-Align:super}": "a^2 b",
    ".s { position: relative; top: -0.33em; font-size: 0.58em }": "a^2 b",
    ".s{text-decoration:line-through}": "a~~2~~ b",
    ".s{text-decoration-line:line-through} .s{vertical-align:super}": "a~~2~~ b",
    "@media print{.t{color:red} .s{vertical-align:super}}": "a2 b",
    "b.s, p .s, .s:hover, .S, .s i{vertical-align:super}": "a2 b",
    ".s{display:block} .s{display:none} .s{vertical-align:sub}": "a2 b",
    ".s{vertical-align:super": "a^2 b",
}


@table("sheet", SHEETS)
def test_classes_that_raise_or_strike(sheet: str) -> None:
    page = f"<html><style type='text/css'>{sheet}</style><p>a<i class='t s'>2</i> b"
    assert page_text(page) == SHEETS[sheet] + "\n"


MATH = {
    "<mfrac><mn>1</mn><mn>2</mn></mfrac>": "1/2",
    "<msup><mi>x</mi><mn>2</mn></msup><mo>&lt;</mo><mn>4</mn>": "x^2<4",
    "<semantics><mi>a</mi><annotation encoding='TeX'>{{a}}</annotation></semantics>": "a",
    "<m:mfrac><m:mi>a</m:mi><m:mi>b</m:mi></m:mfrac>": "a/b",
    "<mspace/><mi>y</mi>": "y",
}


@table("inside", MATH)
def test_formulas(inside: str) -> None:
    for prefix in ("", "m:"):
        formula = f"<{prefix}math alttext='other'>{inside}</{prefix}math>"
        assert page_text(f"<p>It is {formula}.") == f"It is {MATH[inside]}.\n"


def test_formulas_of_their_own() -> None:
    block = "<math display='block'><mi>a</mi></math>"
    assert page_text(f"<p>A{block}B") == "A\na\nB\n"
    assert page_text("<p>A <math alttext='x'></math>B") == "A xB\n"
    assert page_text("<p>A <math><mi>x<p>B") == "A x\n\nB\n"
    assert (
        page_text(f"<p><math>{'<mi>x y</mi>' * 20_000}</math>") == " ".join(["x y"] * 20_000) + "\n"
    )


RUBY = {
    "<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字<rt>じ</rt></ruby>を読む": "漢字 (かんじ)を読む",
    "<ruby>\n東<rb>京<rt>とう<rt>きょう</ruby>に": "東京 (とうきょう)に",
    "<ruby><rb>東</rb><rtc><rt>とう</rt></rtc></ruby>": "東 (とう)",
    "<ruby><ruby>東<rt>a</rt></ruby><rt>b</rt></ruby>": "東 (ab)",
    "<ruby>東</ruby>京": "東京",
    "a<rt>b</rt>": "ab",
}


@table("source", RUBY)
def test_words_with_readings(source: str) -> None:
    assert page_text(f"<p>{source}") == RUBY[source] + "\n"


LISTS = {
    "<ol start=3><li>C<li value=6>D<li>E</ol>": "3. C\n6. D\n7. E",
    "<ol start=0><li>A<li value=x>B</ol>": "0. A\n1. B",
    "<ol reversed><li>A<li>B</ol><ol reversed><li>C</ol>": "2. A\n1. B\n\n1. C",
    "<ol reversed start=9><li>A<li>B</ol>": "9. A\n8. B",
    "<ol type=a start=2><li>A<li>B</ol><ol type=I><li>C</ol>": "b. A\nc. B\n\nI. C",
    "<ol style='list-style-type: lower-roman'><li>A<li>B</ol>": "i. A\nii. B",
    "<ol><li style='list-style-type:upper-alpha'>A</ol>": "A. A",
    "<ul style='list-style:none'><li>A<li>B</ul>": "A\nB",
    "<ul><li>A<ol><li>B<li>C</ol><li>D</ul>": "- A\n  1. B\n  2. C\n- D",
    "<ul><li>A</li><ul><li>B</ul><li>C</ul>": "- A\n  - B\n- C",
    "<ul><li><p>A</p><p>B<br>C</p></li><li><p>D</p></ul>": "- A\n  B\n  C\n- D",
    "<ol><li><h3>A</h3>B</ol>": "### 1. A\n\n  B",
    "<ul><li>A<pre>b</pre><li>C</ul>": "- A\n\n```\nb\n```\n\n- C",
    "<nav><h2>Contents</h2><ol><li><a href=a>1 A</a><ol><li>1.1 B</ol><li>2 C</ol></nav>": (
        "## Contents\n\n1 A\n  1.1 B\n2 C"
    ),
    "<li>A<li>B": "- A\n- B",
    "<dl><dt>A<dd>B<dt>C</dl>D": "A\nB\nC\n\nD",
}


@table("source", LISTS)
def test_lists(source: str) -> None:
    assert page_text(source) == LISTS[source] + "\n"


FORMS = {
    "<select><option>A<option selected>B<option>C</select>": "[B]",
    "<select><option>A<optgroup label=x><option>B</optgroup></select> C": "[A] C",
    "<select multiple><option selected>A<option>B<option selected>C</select>": "[A, C]",
    "<select multiple><option>A</select>": "[ ]",
    "<select><option>&shy;</select>": "[ ]",
    "<select><option hidden selected>Choose<option>A</select>": "[Choose]",
    "<select><option>A<p>B": "[A]\n\nB",
    "<label><input type=checkbox checked>A</label><label><input type=checkbox> B</label>": (
        "[x] A [ ] B"
    ),
    "<input type=radio checked><label>A</label><br><input type=RADIO><label>B</label>": (
        "[x] A\n[ ] B"
    ),
    "<ul><li><input type=checkbox checked disabled> A</ul>": "- [x] A",
    "<label>Name</label><input value=Anna><button>Save</button><button>Send</button>": (
        "Name [Anna] Save Send"
    ),
    "<input type=password value=x><input type=image alt=Go value=x>": "[Go]",
}


@table("source", FORMS)
def test_choices_in_forms(source: str) -> None:
    assert page_text(source) == FORMS[source] + "\n"


LINKS = {
    "<h1>A<a class='headerlink' href='#a'>Link</a></h1>": "# A",
    "<h1>A<a href='#a'>¶</a></h1>": "# A",
    "<h2><a href='#a' aria-hidden=true>#</a>A<a class=x href='#a'>&#8203;</a></h2>": "## A",
    "<p>A <a href='#r1'>↩︎</a><a href='#r2'>↩2</a>": "A",
    "<p>See <a href='#s3'>§3</a> and <a href='#i12'>#12</a>": "See §3 and #12",
    "<p><a href='x.html'>#</a>": "#",
}


@table("source", LINKS)
def test_permalinks(source: str) -> None:
    assert page_text(source) == LINKS[source] + "\n"


HIDDEN = {
    "<p hidden>no<p>A": "A",
    "<ul><li hidden>no<li>A<li style='DISPLAY: None !important'>no</ul>B": "- A\n\nB",
    "<ol><li>A<li hidden>no<li>B</ol>": "1. A\n2. B",
    "<table><tr><td>A<td hidden>no<td>B<tr hidden><td>no<tr><td>C<td>D</table>": (
        "| A | B |\n| --- | --- |\n| C | D |"
    ),
    "<table><tr><td>A<td style='visibility:hidden'>no<td>B</table>": (
        "| A |  | B |\n| --- | --- | --- |"
    ),
    "A<img hidden alt=no><input style='display:none' value=no><br hidden>B": "AB",
    "<b hidden>no<p>no</b>A": "A",
    "<div><span style='display:none'>no<div>no</span>A</div>B": "AB",
    "<div hidden>no<span></div>A": "A",
    "<div hidden>no<div>no</div>no</div>A": "A",
    "<dialog>no</dialog><dialog open>A</dialog>": "A",
    "<p popover>no</p>A": "A",
    "<datalist><option>no</datalist>A": "A",
    "<div hidden/>A": "A",
    "<p style='color:#FFF'>no</p>A<font color=white>no</font>": "A",
    "<body bgcolor=black><p style='color:white'>A": "A",
    "<p style='color:white;background:#003'>A": "A",
    "<style>p{background:red}</style><p style='color:white'>A": "A",
    "<div hidden>A": "A",
    "<body hidden>A</body>": "A",
}


@table("source", HIDDEN)
def test_hidden_elements(source: str) -> None:
    assert page_text(source) == HIDDEN[source] + "\n"


WORDS = "x " * 600
TABLES = {
    "<table><tr><td colspan=3>A<td>B<tr><td colspan=3>C<td>D</table>": (
        "| A | B |\n| --- | --- |\n| C | D |"
    ),
    f"<table><tr><td>A<td>{WORDS}</table>": f"A | {WORDS.strip()}",
    f"<table><tr><th>A<th>B<tr><td>C<td>{WORDS}</table>": (
        f"| A | B |\n| --- | --- |\n| C | {WORDS.strip()} |"
    ),
    "<table role=presentation><tr><td>A<td>B<tr><td><h2>C</h2></table>": "A | B\n\n## C",
    "<table><tr><td>A<td><h2>B</h2><tr><td><pre># c</pre><td>D</table>": (
        "| A | B |\n| --- | --- |\n| # c | D |"
    ),
    "<table><tr><td><pre>1\n2</pre><td><pre># a\nb</pre></table>": (
        "```\n1\n2\n```\n\n```\n# a\nb\n```"
    ),
    "<table><caption>A</caption><tr><td>B<td>C</table>": "A\n\n| B | C |\n| --- | --- |",
    "<table><tr><td><ul><li>A<li>B</ul><td>C</table>": "| - A - B | C |\n| --- | --- |",
    "<table><tr><td>A<td><div>B</table>C": "| A | B |\n| --- | --- |\n\nC",
    "<table>" * 40 + "<tr><td>A<td>B" + "</table>" * 40: "A\nB",
    "<td>A<tr><td>B": "A\nB",
}


@table("source", TABLES)
def test_tables(source: str) -> None:
    assert page_text(source) == TABLES[source] + "\n"


@table(
    "source",
    [
        "<tr>" + "<td>x" * 1_000 + "<tr><td>y" * 1_000,
        "<tr>" + "<td colspan=100>x" * 100 + "<tr><td>y" * 2_000,
        "<tr>" + "<td rowspan=100>x" * 1_000 + "<tr><td>y" * 1_000,
        "<tr><td rowspan=100 colspan=100>x<td>y" * 1_000,
    ],
)
def test_the_text_of_a_table_is_in_proportion_to_its_source(source: str) -> None:
    text = page_text(f"<html><table>{source}</table>")
    assert text.count("x") + text.count("y") == source.count(">x") + source.count(">y")
    assert len(text) < 3 * len(source)


BLOCKS = {
    "<h1>A<br>B</h1>": "# A B",
    "<h1><div>A</div></h1>B": "# A\n\nB",
    "<h1>A<p>B</h1>C": "# A\n\nB\n\nC",
    "<h1>A<h2>B": "# A\n\n## B",
    "<p>A<br><br>B": "A\n\nB",
    "<div>A</div><div><br></div><div>B</div>": "A\n\nB",
    "<p>A<p>&nbsp;<p>&shy;<p>B": "A\n\nB",
    "<p>K&uuml;n&shy;di&shy;gungs&#8203;frist&#x2060;": "Kündigungsfrist",
    "A<span style='display:block'>B</span><b style='display: Block'>C</b>D": "A\nB\nC\nD",
    "A<img alt=B style='display:block'><br style='display:block'>C": "A\n[B]\n\nC",
    "<a style='display:block'>A</a><td style='display:block'>B": "A\nB",
    "<p># apt<p>```py": " # apt\n\n    ```py",
    "<pre>\n# load\r\n  x\n</pre>": "```\n# load\n  x\n```",
    "<pre>a\n```\nb</pre>": "````\na\n```\nb\n````",
    "<pre><div>a</div><div>b</div>c<br>d</pre>": "```\na\nb\nc\nd\n```",
    "<pre><table><tr><td>1<td>a<tr><td>2<td>b</table></pre>": "```\n1\ta\n2\tb\n```",
    "<pre> </pre>A": "A",
    "<pre>&shy;</pre>A": "A",
    "A &shy; B": "A B",
    "A<svg:style>p{}</svg:style>B</br>C": "AB\nC",
    "<p/>A<div/>B": "A\nB",
    "<img alt='{{a}}'>A": "[{{a}}]A",
    "A</p>B</br>C": "A\n\nB\nC",
    "<a href=x/>A</a>": "A",
    "<a href=x>A<p>B<a href=y>C": "A\n\nBC",
}


@table("source", BLOCKS)
def test_paragraphs_headings_and_code(source: str) -> None:
    assert page_text(source) == BLOCKS[source] + "\n"


QUOTES = {
    "<div>A</div><blockquote>B<br>C<p>D</blockquote>E": "A\n\n> B\n> C\n>\n> D\n\nE",
    "<blockquote>A<blockquote>B</blockquote>C</blockquote>": "> A\n>\n> > B\n>\n> C",
    "<blockquote>A</blockquote><blockquote>B</blockquote>": "> A\n\n> B",
    "<blockquote><ol><li>A<ul><li>B</ul></ol>": "> 1. A\n>   - B",
    "<blockquote><table><tr><td>A<td>B</table></blockquote>": "> | A | B |\n> | --- | --- |",
    "<ol><li><blockquote>A</blockquote>B</ol>": "1.\n\n> A\n\n  B",
    "<table><tr><td><blockquote>A</blockquote><td>B</table>": "| > A | B |\n| --- | --- |",
    "<table><tr><td><blockquote>A</table>B": "> A\n\nB",
    "<table role=presentation><tr><td><blockquote>A</blockquote><td>B</table>": "> A\n\nB",
    "A<blockquote> </blockquote>B": "A\n\nB",
    "<blockquote>" * 40 + "A": "> " * 20 + "A",
}


@table("source", QUOTES)
def test_quotes(source: str) -> None:
    assert page_text(source) == QUOTES[source] + "\n"
    assert mail_text(source) == QUOTES[source] + "\n"


def test_code_has_no_headings() -> None:
    text = page_text("<h1>Use</h1><pre># as root</pre><p># as root</p>")
    assert [each.title for each in headings(text)] == ["Use"]


MAILS = {
    "See <a href='https://example.org/terms'>the terms</a>.": (
        "See the terms (https://example.org/terms)."
    ),
    "<a href='https://example.org/'>example.org</a>": "example.org",
    "<a href='mailto:a@example.org'>Write</a>": "Write (a@example.org)",
    "<a href='https://example.org'><div>A</div></a>B": "A\n(https://example.org)\nB",
    "<a href='#top'>up</a> <a>x</a><a href='https://example.org'></a>": "up x",
    f"<a href='https://example.org/a?{'b' * 100}'>A</a>": "A (https://example.org/a?…)",
    "<title>no</title>{{name}}": "{{name}}",
    f"<table><tr><th>A<td>{WORDS}</table>": f"A | {WORDS.strip()}",
}


@table("source", MAILS)
def test_mails_in_html(source: str) -> None:
    assert mail_text(source) == MAILS[source] + "\n"


HOSTILE = """<|<a ='|<!--|<a |<a "|<a '" |</|<!|<script>|<svg>|<a b=|&|<ul>|<pre>|<table><tr><td>
    |<table><tr><td>x</table>|<ol reversed><li>|<b><p>|<p><b>|</div>|<b></i>|<sup>x
    |<sup><a href=#>1|<ruby>x<rt>y|<math>|<math><mi>x|<mrow>x|<math><mi>x<b/>|<select><option>x
    |<li><h1>x|<blockquote>x|<tr><td rowspan=100 colspan=100>x|<pre>x<div>|<button><p>|<nav><li>
    |<style>.a{/*|<style |<p hidden>|<b hidden>x|<a href=x>x
    |<a ="1>"|<p style='color:white'>|<label>|x<br>""".replace("\n    ", "").split("|")


@pytest.mark.parametrize("read", [page_text, markup_text])
@table("piece", HOSTILE)
def test_time_grows_with_the_size_of_a_page(read: Callable[[str], str], piece: str) -> None:
    def seconds(times: int) -> float:
        start = time.process_time()
        read("<math>" * (piece == "<mrow>x") + piece * times)
        return time.process_time() - start

    few = min(seconds(200) for _ in range(3))
    assert seconds(4_000) < 80 * few + 0.05
