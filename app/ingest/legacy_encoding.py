"""Guesses the encoding of a text that is not UTF-8, from letters and words of languages.

A byte beyond ASCII is a letter in most encodings, and only the language tells which. So each
encoding is tried with each language, and the most likely pair is chosen.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass

ENCODING_NAMES = {
    "utf-8": "UTF-8",
    "utf-16-le": "UTF-16",
    "utf-16-be": "UTF-16",
    "utf-32-le": "UTF-32",
    "utf-32-be": "UTF-32",
    "cp437": "DOS (US)",
    "cp850": "DOS (Western European)",
    "cp852": "DOS (Central European)",
    "cp857": "DOS (Turkish)",
    "cp866": "DOS (Cyrillic)",
    "cp874": "Windows-874 (Thai)",
    "cp1250": "Windows-1250 (Central European)",
    "cp1251": "Windows-1251 (Cyrillic)",
    "cp1252": "Windows-1252 (Western European)",
    "cp1253": "Windows-1253 (Greek)",
    "cp1254": "Windows-1254 (Turkish)",
    "cp1255": "Windows-1255 (Hebrew)",
    "cp1256": "Windows-1256 (Arabic)",
    "cp1257": "Windows-1257 (Baltic)",
    "iso8859_2": "ISO 8859-2 (Central European)",
    "iso8859_5": "ISO 8859-5 (Cyrillic)",
    "iso8859_6": "ISO 8859-6 (Arabic)",
    "iso8859_7": "ISO 8859-7 (Greek)",
    "iso8859_15": "ISO 8859-15 (Western European)",
    "koi8_r": "KOI8-R (Russian)",
    "koi8_u": "KOI8-U (Ukrainian)",
    "mac_roman": "Mac Roman (Western European)",
    "mac_latin2": "Mac (Central European)",
    "mac_cyrillic": "Mac (Cyrillic)",
    "mac_turkish": "Mac (Turkish)",
    "cp932": "Shift JIS (Japanese)",
    "euc_jp": "EUC-JP (Japanese)",
    "iso2022_jp": "ISO-2022-JP (Japanese)",
    "gb18030": "GB 18030 (Chinese)",
    "big5": "Big5 (Chinese)",
    "cp949": "CP949 (Korean)",
}

_WINDOWS = ("cp1250", "cp1251", "cp1254", "cp1257", "cp1253", "cp1255", "cp1256", "cp874")
_UNIX = ("iso8859_2", "iso8859_15", "koi8_r", "koi8_u", "iso8859_5", "iso8859_7", "iso8859_6")
_OLD = ("cp850", "cp852", "cp866", "cp857", "cp437")
_MAC = ("mac_roman", "mac_latin2", "mac_cyrillic", "mac_turkish")
_TWO_BYTES = ("cp932", "euc_jp", "gb18030", "big5", "cp949")
# Penalty of each encoding: the rarer, the larger.
_HANDICAPS = (
    {"cp1252": 0.0}
    | dict.fromkeys((*_WINDOWS, *_TWO_BYTES), -1.0)
    | dict.fromkeys(_UNIX, -2.0)
    | dict.fromkeys((*_OLD, *_MAC), -4.0)
)
# Letters beyond ASCII, most frequent first, and frequent words in ASCII.
_LANGUAGES = {
    "English": ("éïèêüñöçà", "the of and to a in is that it for as with be by on are this or"),
    "German": ("üäößéà", "der die und in den von zu das mit ist des im nicht ein auf dem"),
    "French": ("éàèêçùûîôâëïœ", "de la le les et des en un du une que est dans au pour par"),
    "Spanish": ("óíáéñúü", "de la que el en y a los se del las por con un no es"),
    "Portuguese": ("ãçéáíóêâõúàô", "de a o que e do da em um para os com uma se dos no"),
    "Italian": ("àèùìòéî", "di e che la il in per un del non con si le dei da della"),
    "Catalan": ("àéóíèçúòïü", "de la i que el en a les per un amb del es una"),
    "Dutch": ("éëïóèöüê", "de van het een en in is dat op te met voor zijn niet"),
    "Afrikaans": ("êëéôïöèû", "die van en is nie in wat het te vir om kan met word nie"),
    "Basque": ("ñçüé", "eta da ez bat du dira ere dela behar izan edo"),
    "Irish": ("áéíóú", "an na agus ar le i go is ag do"),
    "Finnish": ("äöåšž", "ja on ei se oli tai sen kun mutta ovat joka hänen sekä"),
    "Swedish": ("äåöé", "och i att det som en av med den till om ett inte på"),
    "Danish, Norwegian": ("åøæéöä", "og i at det en af til er som med den ikke de av for på"),
    "Icelandic": ("ðáíþóæöúéý", "og er um sem ekki en til af hann var með"),
    "Estonian": ("äõüöšž", "ja on ei et see ta oli kui ning ka mis"),
    "Polish": ("łęążśóćńź", "i w z na do nie jest od o za przez oraz dla po jak to"),
    "Czech": ("íáěéřčýžšůúťďňó", "a v na je se o za z do od pro jako by podle nebo s"),
    "Slovak": ("áíúčýéžšľťňôďóäĺŕ", "a v na je sa o za z do od pre ako by alebo s k"),
    "Hungarian": ("éáöóőíüúű", "a az egy hogy nem is meg ez van ha vagy csak de"),
    "Romanian": ("ăîşţâșț", "de la cu pe din nu este sau un o se care ale in"),
    "Croatian": ("čšžćđ", "i u na je se za od da ne su s o koji ili"),
    "Slovenian": ("čšž", "in v na je se za da ne so z o od ki ali pri"),
    "Turkish": ("ıüşğçöâîi̇", "ve bir bu da de ile olarak veya en her o mi gibi"),
    "Latvian": ("āīēšņūļžčķģ", "un ir no uz ar par vai ka tas kas"),
    "Lithuanian": ("ėųšžąįūčę", "ir yra kad su ne tai o arba iki"),
    "Albanian": ("ëç", "e i se me dhe nuk nga per si"),
    "Russian": ("оеаинтсрвлкмдпуяыьгзбчйхжшюцщэфъё", ""),
    "Ukrainian": ("оаинівертслкудмпязьбгчйхцшюжїєщфґ", ""),
    "Bulgarian": ("аиоентрсвлкдпмзуябгъчщцжйхшюфь", ""),
    "Serbian": ("аоиенрстјувкмдплзгбчшцжњхљћђфџ", ""),
    "Greek": ("αοιετσνηυρπκμλςόίάγέδήθωχύφβώξζψϊ", ""),
    "Hebrew": ("יוהלאתרמבשנםדחעקפטגזסכןצךףץ", ""),
    "Arabic": ("اليمنتروبعدسفهكقحأةجشصطخضىذثغزئءظإؤآ", ""),
    "Thai": ("านรกอเงม่ยลวด้ทีสตัะปิบคหแจพชขใไึ์ืโูำุผซธณญศษฐถภฟ็ๆฏฎฬฆฮฤฑฒฯ", ""),
}
_WESTERN = frozenset("àáâãäåæçèéêëìíîïñòóôõöøùúûüßœ")
_COMMON = frozenset("’‘“”„‚‹›«»–—…•·€£§°©®™¿¡½²³×±´µªº״׳\u200e\u200f\xa0\xad")
_OPENING, _CLOSING = frozenset("“‘«„‚‹¿¡"), frozenset("”’»›…")
_IN_WORDS = frozenset("’·µªº°״׳\xad")

_MAX_BYTES = 4_096
"""Maximum bytes that are examined, from parts of lines with characters beyond ASCII."""
_LETTER_ELSEWHERE, _LETTER_OF_NO_LANGUAGE = math.log(1e-4), math.log(1e-5)
_QUOTE, _PUNCTUATION, _LINE, _CORNER, _SYMBOL, _CONTROL = map(
    math.log, (0.1, 1e-2, 0.5, 5e-3, 1e-4, 1e-8)
)
_FRAMES = frozenset("─│┌┐└┘├┤┬┴┼═║╔╗╚╝╠╣╦╩╬")
_ODD, _ALONE = -7.0, -3.0
"""Penalty of a capital within a word or a symbol between letters, and of a letter that stands
alone."""
_WORD, _OTHER_WORD = math.log(0.25 / 0.02), math.log(0.75 / 0.98)
_MIN_SCORE, _MIN_WIDE_SCORE = -6.5, -4.6
"""Minimum mean score per byte beyond ASCII for an encoding and a language to match a text."""
_BEYOND_ASCII = re.compile("[^\x00-\x7f]")
_NEAR_BEYOND_ASCII = re.compile(rb"[\t -\x7f]{0,80}(?:[\x80-\xff][\t -\x7f]{0,80})+")
_ASCII_WORD = re.compile(rb"(?<![\x80-\xffA-Za-z])[A-Za-z]+(?![\x80-\xffA-Za-z])")

# Scores of two-byte characters, in the encodings of their language.
_KANA, _HANGUL, _HAN, _RARE, _PRIVATE = -4.5, -8.5, -8.5, -11.0, -16.0
_FREQUENT = -5.0
_WIDE_PUNCTUATION = frozenset("、。，；：？！「」『』（）《》“”・ー　")
_FREQUENT_HAN = {
    "gb18030": frozenset(
        "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而好文件同约定通知期限租"
    ),
    "big5": frozenset(
        "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而好嗎文件同約定通知期限租檔"
    ),
    "cp932": frozenset("日一国人年大本中者会十出上月事場分行時間合同見方今業自地的定新後"),
    "cp949": frozenset(
        "이다는의을에가하고를은한로지사기인대도어자시리서해정들니그나수부일라전아있구조주제게원과장"
        "소보상화여면세국공유만성동생방경비신오안위요간내관계약우문선중적용무명연행체결물통발법권"
        "미진영습녕글말"
    ),
}
_FREQUENT_HAN["euc_jp"] = _FREQUENT_HAN["cp932"]


def _letter_scores(letters: str) -> dict[str, float]:
    """Score of each letter, which decreases with its position in `letters`."""
    total = sum(1 / (place + 1) for place in range(len(letters)))
    return {letter: -math.log((place + 1) * total) for place, letter in enumerate(letters)}


_LETTERS = {name: _letter_scores(letters) for name, (letters, _) in _LANGUAGES.items()}
_WORDS = {name: frozenset(words.encode().split()) for name, (_, words) in _LANGUAGES.items()}


def guess_encoding(sample: bytes) -> str | None:
    """Guess the encoding of a text with bytes beyond ASCII. None if no known encoding fits."""
    lines = b"\n".join(_NEAR_BEYOND_ASCII.findall(sample))[:_MAX_BYTES]
    found = [word.lower() for word in _ASCII_WORD.findall(lines)]
    words = {
        name: sum(_WORD if word in known else _OTHER_WORD for word in found)
        for name, known in _WORDS.items()
    }
    best, best_score, best_fit = None, -math.inf, 0.0
    for encoding, handicap in _HANDICAPS.items():
        text = lines.decode(encoding, "replace")
        if encoding in _TWO_BYTES:
            fit = sum(_wide_score(hit[0], encoding) for hit in _BEYOND_ASCII.finditer(text))
            score = fit + max(words.values(), default=0.0)
        else:
            read = _read(text)
            fits = {name: read.score(letters) for name, letters in _LETTERS.items()}
            name = max(fits, key=lambda name: fits[name] + words[name])
            fit = fits[name]
            score = fit + words[name] + handicap
        if score > best_score:
            best, best_score, best_fit = encoding, score, fit
    beyond_ascii = len(lines) - len(lines.translate(None, bytes(range(128, 256))))
    enough = _MIN_WIDE_SCORE if best in _TWO_BYTES else _MIN_SCORE
    return best if best_fit > enough * beyond_ascii else None


@dataclass(frozen=True, slots=True)
class _Text:
    """A decoded text: its letters beyond ASCII in lower case, and the score of everything else,
    such as symbols and oddly placed characters."""

    letters: Counter[str]
    rest: float

    def score(self, letters: dict[str, float]) -> float:
        """The text's score for a language, given the scores of its letters."""
        return self.rest + sum(
            times * letters.get(letter, _score_elsewhere(letter))
            for letter, times in self.letters.items()
        )


def _score_elsewhere(letter: str) -> float:
    return _LETTER_ELSEWHERE if letter in _WESTERN else _LETTER_OF_NO_LANGUAGE


def _read(text: str) -> _Text:
    letters, rest = Counter[str](), 0.0
    for hit in _BEYOND_ASCII.finditer(text):
        character, at = hit[0], hit.start()
        before, after = text[at - 1 : at] if at else " ", text[at + 1 : at + 2] or " "
        is_letter = character.isalpha() and character not in _IN_WORDS
        if is_letter or "\u0e30" <= character <= "\u0e4e":
            letters[character.lower()] += 1
            rest += _ODD if _is_odd(before, character, after) else 0.0
            rest += 0.0 if before.isalpha() or after.isalpha() else _ALONE
            continue
        if character in _COMMON:
            opens = character in _OPENING and not before.isalnum() and not after.isspace()
            closes = character in _CLOSING and not before.isspace()
            rest += _QUOTE if opens or closes else _PUNCTUATION
        elif character in _FRAMES:
            rest += _LINE if character in (before, after) else _CORNER
        else:
            unlikely = "\x80" <= character < "\xa0" or character == "\ufffd"
            rest += _CONTROL if unlikely else _SYMBOL
        if before.isalpha() and after.isalpha() and character not in _IN_WORDS:
            rest += _ODD
    return _Text(letters, rest)


def _is_odd(before: str, letter: str, after: str) -> bool:
    """Whether it is unusual for a letter to stand between these two characters."""
    if (letter.isupper() and before.islower()) or (letter.islower() and after.isupper()):
        return True
    if before == letter == after:
        return True
    is_latin = "\xc0" <= letter <= "\u024f" or "\u1e00" <= letter <= "\u1eff"
    return not is_latin and any(each.isascii() and each.isalpha() for each in (before, after))


def _wide_score(character: str, encoding: str) -> float:
    if character in _WIDE_PUNCTUATION or character in _FREQUENT_HAN[encoding]:
        return _FREQUENT
    if "\u3041" <= character <= "\u30fe" and encoding in ("cp932", "euc_jp"):
        return _KANA
    if "\uac00" <= character <= "\ud7a3":
        return _HANGUL
    if "\u4e00" <= character <= "\u9fff" and encoding != "cp949":
        return _HAN
    return _PRIVATE if "\ue000" <= character <= "\uf8ff" or character == "\ufffd" else _RARE
