"""Real texts: Django's messages in twelve languages and its code. And odd ones, written here."""

from __future__ import annotations

import gettext
import zipfile
from collections.abc import Iterable

from tests.real.packages import DJANGO, fetch_wheel

LANGUAGES = ("ar", "de", "el", "he", "hi", "ja", "ko", "ru", "th", "tr", "vi", "zh_Hans")
_CODE = ("django/db/models/query.py", "django/contrib/admin/static/admin/js/SelectBox.js")

ODD = (
    *("", " ", "  ", " a", "a ", "  a  ", "\ta\t\tb", "   leading", "trailing   ", "a  b   c"),
    *("\n", "\n\n\n", " \n \n", "\r", "a\r\nb\r\n", "\r\n\r\n  x", " " * 40, "\t" * 20),
    *("🙂", "a🙂b", "👩\u200d👩\u200d👧 family", "🇩🇪🇯🇵", "𝕳𝖊𝖑𝖑𝖔", "e\u0301 é", "ﬁ", "İ ı"),
    *("\u200b\u200d\ufeff", "\u00a0a\u00a0\u00a0b", "全角　スペース", "\u2028x\u2029", "\x85"),
    *("\x00a\x01\x7f", "a\x0bb\x0cc", "1234567890", "3.14  1,000   7", "x1y22z333", "١٢٣٤"),
    *("½²³ Ⅷ", "don't I'll we've THEY'RE 'S", "_a_ __init__", "h://a.b/c?d=e&f=%20"),
    *("----====####", "((((", ")))]]]}}}", "!!!???..."),
    *("\\n\\t\\\\", "<bos>", "a<bos>b", " <bos> ", "<eos>x", "<unk>"),
    *("<start_of_turn>user\nhi<end_of_turn>\n", "<unused7>", "<unused99> <unused1>", "<0x41>"),
    *("<|im_start|>user\nhi<|im_end|>\n", "x <|im_start|> y", "<|endoftext|>", " <|im_end|> "),
    *("<repo_name>a/b<file_sep>", "<h1>t</h1>", "<table><tr><td>a</td></tr></table>", "▁a▁b"),
)


def passages() -> dict[str, list[str]]:
    """Lines by language, each once; those of `code` end as in the file. And `odd`. ModelError."""
    found = {"odd": [*ODD]}
    with zipfile.ZipFile(fetch_wheel(DJANGO)) as wheel:
        names = sorted(wheel.namelist())
        for language in LANGUAGES:
            ours = [each for each in names if f"/locale/{language}/" in each]
            found[language] = _unique(
                line for name in ours if name.endswith(".mo") for line in _messages(wheel, name)
            )
        found["code"] = _unique(
            line for name in _CODE for line in wheel.read(name).decode().splitlines(keepends=True)
        )
    return found


def _messages(wheel: zipfile.ZipFile, name: str) -> Iterable[str]:
    with wheel.open(name) as file:
        catalogue = gettext.GNUTranslations(file)._catalog
    return (message for original, message in catalogue.items() if original and message)


def _unique(lines: Iterable[str]) -> list[str]:
    return [*dict.fromkeys(lines)]
