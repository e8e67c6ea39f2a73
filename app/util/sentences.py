"""Splits a text into units (sentences, or lines of code and tables), and a message into questions
that are searched for separately."""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.util.calendar_words import DAY_BEFORE_MONTH, SHORT
from app.util.prose import is_code

MAX_HEADING_WORDS = 12
LONGEST = 400
"""Maximum characters of a unit. Longer sentences, code and tables are cut at lines or words."""
MAX_QUESTIONS, MAX_PARTS = 8, 16
"""Maximum questions of a message that are searched for separately, and approximate maximum parts of
a long message."""
_END = re.compile(r"[.?!؟][\"')\]”»]*(?=\s)|[。！？]")
_AFTER_QUESTION = re.compile(r"(?<=[?？؟])\s+")
"""Matches white space after a question, even if the next sentence begins in lower case."""
_MARKER = re.compile(r"(?:[-*+•]|\(?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,5})[.)])(?=\s|$)")
"""Matches the beginning of a list item."""
_NUMBERED = re.compile(r"(?:\d+(?:\.\d+)*\.?|[A-Z]\.|§|Chapter|Section|Article|Appendix)\s+\S")
_DOTS = ("....", ". . .", "……", "· · ·")
"""Leaders between a heading and its page number in a table of contents."""
_ABBREVIATION = re.compile(
    r"(?:e\.g|i\.e|cf|vs|mrs?|ms|dr|st|prof|sect?|nos?|fig|pp?|art|ch|vol|approx|ca|z\.b|d\.h|bzw"
    r"|vgl|nr|s|abs)\."
)


@dataclass(frozen=True, slots=True)
class Unit:
    """Characters `start:end` of a text, in paragraph number `paragraph`. `is_heading`: it is a
    heading, a line of a table of contents or another fragment. `is_inner`: it begins inside a
    sentence. `is_open`: it ends inside a sentence."""

    start: int
    end: int
    paragraph: int
    is_heading: bool = False
    is_inner: bool = False
    is_open: bool = False


def units(text: str) -> list[Unit]:
    """Split a text into units, in order. They cover everything but white space; each has at most
    LONGEST characters."""
    found: list[Unit] = []
    for number, (start, end, fenced) in enumerate(_paragraphs(text)):
        paragraph = text[start:end]
        code = fenced or is_code(paragraph)
        heading = not code and _is_heading(paragraph)
        sentences = [(start, end)] if code or heading else _sentences(text, start, end)
        opening = paragraph.lstrip().partition("\n")[0]
        is_tail = not code and opening[:1].islower() and not is_code(opening)
        for first, last in sentences:
            begins_inside = first == start and is_tail
            while first < last:
                cut = _cut(text, first, last)
                part = text[first:cut]
                if bare := part.strip():
                    at = first + part.index(bare)
                    inner, is_open = begins_inside and not code, cut < last and not code
                    found.append(Unit(at, at + len(bare), number, heading, inner, is_open))
                    begins_inside = True
                first = cut
    return found


def _paragraphs(text: str) -> list[tuple[int, int, bool]]:
    """Paragraphs as (start, end, whether it is in a Markdown code fence). Blank lines separate
    them. A Markdown heading, a line of a table of contents and a line of prose that is too long to
    be wrapped are separate paragraphs."""
    found: list[tuple[int, int, bool]] = []
    at, start, fence = 0, -1, ""
    for line in text.split("\n"):
        bare, end = line.strip(), at + len(line)
        is_fence = bare.startswith(fence or ("```", "~~~"))
        alone = not fence and (
            (bare.startswith("#") and " " in bare)
            or _is_contents(bare)
            or (len(bare) > LONGEST and not is_code(bare))
        )
        if (not bare or alone or is_fence) and start >= 0:
            closes = is_fence and fence
            found.append((start, end if closes else at, bool(fence)))
            start = -1
            if closes:
                fence, at = "", end + 1
                continue
        if is_fence:
            fence = "" if fence else bare[:3]
            start = at if fence else -1
            if not fence:
                found.append((at, end, True))
        elif alone:
            found.append((at, end, False))
        elif bare and start < 0:
            start = at
        at = end + 1
    if start >= 0:
        found.append((start, len(text), bool(fence)))
    return found


def _is_contents(line: str) -> bool:
    """Whether `line` belongs to a table of contents: it has leaders and a page number."""
    return line[-1:].isalnum() and line.rstrip("0123456789ivxlc ").endswith(_DOTS)


def _is_heading(paragraph: str) -> bool:
    bare = paragraph.strip()
    if "\n" not in bare and _is_contents(bare):
        return True
    if len(bare) > LONGEST or len(bare.split()) >= MAX_HEADING_WORDS:
        return False
    if bare.startswith("#") or ("\n" not in bare and _NUMBERED.match(bare)):
        return True
    return not bare.rstrip("\"')]”»").endswith((".", "?", "!", ":", ",", ";", "。", "！", "？"))


def _sentences(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Sentences of a paragraph of prose, as (start, end). A piece that begins in lower case, or
    closes a bracket that it did not open, is joined to the sentence before."""
    found: list[tuple[int, int]] = []
    first = start
    for match in _END.finditer(text, start, end):
        if _ends_sentence(text, match.start(), match.end(), start, end):
            found.append((first, match.end()))
            first = match.end()
    if text[first:end].strip() or not found:
        found.append((first, end))
    merged: list[tuple[int, int]] = []
    for first, last in found:
        closes = text.count(")", first, last) > text.count("(", first, last)
        if merged and closes and not _MARKER.match(text[first:last].lstrip()[:8]):
            first, _ = merged.pop()
        merged.append((first, last))
    return merged


def _ends_sentence(text: str, mark: int, after: int, start: int, end: int) -> bool:
    follows = text[after : min(after + 80, end)].lstrip()
    if not follows:
        return True
    if follows[0].islower() and not _MARKER.match(follows):
        return False
    if text[mark] != ".":
        return True
    begin = max(mark - 24, start)
    word = text[begin : mark + 1].split()[-1].lstrip("([\"'“").casefold()
    if _ABBREVIATION.fullmatch(word) or (follows[0].isdigit() and word.rstrip(".") in SHORT):
        return False
    number = word.rstrip(".").replace(".", "")
    if number.isdigit() and len(number) < 3 and DAY_BEFORE_MONTH.match(text, mark + 1):
        return False
    if not number.isdigit():
        return not _MARKER.fullmatch(word) or text[begin:mark].count(" ") > 1
    dotted = "." in word.rstrip(".")
    line = text[max(text.rfind("\n", begin, mark) + 1, begin) : mark + 1]
    return not dotted and line.strip().casefold() != word


def _cut(text: str, start: int, end: int) -> int:
    """The end of the unit that begins at `start`."""
    if end - start <= LONGEST:
        return end
    last = start + LONGEST
    places = (text.rfind(mark, start, last) + 1 for mark in ("\n", " "))
    return next((place for place in places if text[start:place].strip()), last)


def questions_in(message: str) -> list[str]:
    """The searches of a message: its questions and instructions, each alone and, if the message
    says anything else, with that as context. Pleasantries and instructions about the form of the
    answer are not searched for, unless there is nothing else.

    A message without questions is searched for by sentence. Sentences of a long message are joined
    to parts of up to LONGEST characters, about MAX_PARTS if possible.
    """
    found = [
        message[start:end].strip()
        for unit in units(message)
        for start, end in _sentences(message, unit.start, unit.end)
    ]
    sentences = [part for each in found for part in _AFTER_QUESTION.split(each)]
    said = [each for each in sentences if not _says_nothing(each)] or sentences
    is_list = any(map(_MARKER.match, said))
    said = [_without_marker(each) for each in said]
    judged = [(each, asks(each)) for each in said]
    asked = [each for each, is_asked in judged if is_asked]
    context = " ".join(each for each, is_asked in judged if not is_asked)
    few = len(asked) <= MAX_QUESTIONS
    if asked and few and not is_list and 0 < len(context) < LONGEST:
        return [search for each in asked for search in (each, f"{context} {each}")]
    size = min(len(message) // MAX_PARTS, LONGEST)
    parts: list[str] = []
    for sentence, is_asked in judged:
        alone = not parts or (few and (is_asked or asks(parts[-1])))
        if alone or len(parts[-1]) + len(sentence) >= size:
            parts.append(sentence)
        else:
            parts[-1] += f" {sentence}"
    return parts or [message]


def asks(sentence: str) -> bool:
    """Whether a sentence is a question or an instruction."""
    ends = sentence.rstrip("\"')]”»")
    if ends.endswith(("?", "？", "؟")) or _INSTRUCTION.match(sentence):
        return True
    return not ends.endswith((".", "!", "。", "！")) and _QUESTION_WORD.match(sentence) is not None


def begins_as_request(text: str) -> bool:
    """Whether the first words of a message are those of a question or an instruction, also of one
    that would be a statement in a document: `Change the name`."""
    asks_or_tells = _INSTRUCTION.match(text) or _QUESTION_WORD.match(text)
    return bool(asks_or_tells or _REQUEST.match(text))


def asks_for_overview(message: str) -> bool:
    """Whether a message asks for a document as a whole and names nothing in it: "What is this
    about?", "Summarise the text." """
    if len(message) > LONGEST:
        return False
    asked = questions_in(message)[0]
    rest, east_asian = _EAST_ASIAN_OVERVIEW.subn(" ", asked.casefold())
    words = set(_WORD.findall(_EAST_ASIAN_FILLER.sub(" ", rest) if east_asian else rest))
    topics = words & _OVERVIEW
    if topics == {"about"} and not words & {"is", "s", "are", "was"}:  # such as "What about it?"
        return False
    return bool(topics or east_asian) and words <= _OVERVIEW | _WHOLE | _COURTESY


def _without_marker(sentence: str) -> str:
    marker = _MARKER.match(sentence)
    return sentence if marker is None else sentence[marker.end() :].strip() or sentence


def _says_nothing(sentence: str) -> bool:
    """Whether a sentence is a pleasantry, or says only how to answer or what to leave out."""
    if _ABOUT_THE_ANSWER.match(sentence):
        return True
    words = _WORD.findall(_EAST_ASIAN_COURTESY.sub(" ", sentence).casefold())
    return all(word in _COURTESY for word in words)


_WORD = re.compile(r"[^\W_]+")
_LEADS = (
    r"(?:(?:please|kindly|and|also|then|now|next|finally|first|bitte|und|dann|et|puis|veuillez|y"
    r"|luego|por favor|и|затем|пожалуйста|و|ثم|من فضلك)\b[\s,]*|请|請|并|然后|再)*+"
)
"""Words that may stand before the verb of an instruction."""
_INSTRUCTION = re.compile(
    rf"\W*+{_LEADS}(?:(?:list|name|tell|show|find|give|explain|describe|summari[sz]e|compare|quote"
    r"|cite|say|state|write|translate|extract|check|look up|count|outline|define|identify|provide"
    r"|search|report|mention|calculate|determine|decide|discuss|analy[sz]e|"
    r"(?:i|we) (?:want|need|would like)|i'd like|i am looking for|i'm looking for"
    r"|nenne|nennen|liste|zeige?|zeigen|finde|suche|gib|geben|erkläre?|erklären|beschreibe?"
    r"|beschreiben|fasse|fassen|vergleiche|vergleichen|zitiere|zitieren|sage?|sagen|zähle?"
    r"|prüfe|prüfen|übersetze|übersetzen|schreibe?|schreiben|ich will"
    r"|ich möchte|ich brauche|ich suche"
    r"|listez|nomme|nommez|montre|montrez|donne|donnez|explique|expliquez|décris|décrivez|résume"
    r"|résumez|citez|comparez|trouve|trouvez|cherche|cherchez|indique|indiquez|dis|dites"
    r"|traduis|traduisez|je veux"
    r"|je voudrais|je cherche"
    r"|lista|enumera|nombra|muestra|dime|di|da|dame|explica|describa|resume|compara|cita|busca"
    r"|encuentra|indica|traduce|quiero|quisiera|necesito"
    r"|riassumi|spiega|trova|elenca|traduci|resuma|encontre|traduza|vat|leg|zoek|vertaal"
    r"|перечисли|назови|покажи|объясни|опиши|найди|сравни|скажи|приведи|укажи|расскажи|процитируй"
    r"|перечислите|назовите|покажите|объясните|опишите|найдите|сравните|скажите|приведите|укажите"
    r"|расскажите|хочу|мне нужно|мне нужен"
    r"|اذكر|اشرح|عدد|لخص|قارن|أخبرني|صف|ابحث|أعط)\b"
    r"|列出|列举|说明|解释|告诉|总结|概括|比较|找出|描述|介绍|给出)"
    r"|.*(?:教えて|挙げて|説明して|要約して|比較して|探して|示して|述べて)",
    re.IGNORECASE,
)
"""Matches an instruction, in English, German, French, Spanish, Italian, Portuguese, Dutch, Russian,
Arabic, Chinese or Japanese."""
_QUESTION_WORD = re.compile(
    r"\W*+(?:(?:who|whose|whom|what|when|where|which|why|how|is|are|do|does|did|can|may|must|should"
    r"|wer|was|wann|wo|welche[rs]?|warum|wie"
    r"|qui|que|quand|où|quel(?:le)?s?|pourquoi|comment"
    r"|quién|qué|cuándo|dónde|cuál(?:es)?|cómo|cosa|come si|chi|quando|dove"
    r"|perché|quale|quali|qual|quais|quem|onde|porque|wat|waar|wanneer|waarom|welke"
    r"|кто|что|когда|где|какой|какая|какие|почему|как"
    r"|من|ما|ماذا|متى|أين|كيف|لماذا)\b|谁|什么|何|いつ|どこ|誰|なぜ)",
    re.IGNORECASE,
)
"""Matches the beginning of a question, which may lack its question mark."""
_REQUEST = re.compile(
    rf"\W*+{_LEADS}(?:review|rewrite|rephrase|fix|implement|add|remove|change|update|refactor|create"
    r"|make|generate|draft|convert|improve|correct|proofread|help|use|answer|look|sum|was|were|could"
    r"|would|will|has|have|based on|according to|gibt|ist|sind|kannst)\b",
    re.IGNORECASE,
)
"""Matches the beginning of a message that asks for something."""
_ABOUT_THE_ANSWER = re.compile(
    rf"\W*+{_LEADS}(?:(?:(?:only |just )?(?:answer|reply|respond|use|rely on|ignore|skip|omit"
    r"|exclude|disregard|leave out)|don[’']?t|do not|never|avoid|keep it|be (?:brief|short|concise"
    r"|precise|specific|honest|careful)"
    r"|antworte|antworten sie|verwende|benutze|ignoriere|lass|sei kurz"
    r"|réponds|répondez|utilise|utilisez|ignore|ignorez|sois bref|soyez bref"
    r"|responde|contesta|usa|utiliza|ignora|no menciones|no incluyas|sé breve"
    r"|ответь|ответьте|отвечай|отвечайте|используй|используйте|игнорируй|игнорируйте"
    r"|не упоминай|не упоминайте|أجب|تجاهل|استخدم)\b"
    r"|用.{{1,6}}回答|回答|忽略|不要|简短)(?!.*[?？؟])"
    r"|.*(?:答えてください|無視してください)。?$",
    re.IGNORECASE,
)
"""Matches an instruction about the form of the answer, or about what to leave out."""
_EAST_ASIAN_COURTESY = re.compile(
    r"你好|您好|早上好|下午好|晚上好|(?:能|可以|可否|能不能)?(?:请)?(?:您|你)?(?:帮(?:我|个)?忙?|帮助我)(?:一下)?吗?"
    r"|(?:非常|多)?(?:谢谢|感谢)(?:您|你|大家)?|我有(?:一)?个问题|请问|麻烦(?:您|你)?了?"
    r"|こんにちは|おはようございます|こんばんは|(?:どうも)?ありがとう(?:ございます|ございました)?"
    r"|(?:よろしく)?お願い(?:いた)?(?:し)?ます|助けて(?:ください|くれますか)?|手伝って(?:ください|くれますか)?"
    r"|質問があります|すみません(?:が)?"
)
_COURTESIES = """
hi hello hey dear there all everyone team good morning afternoon evening day thanks thank thx you
very so much lot many in advance cheers regards best kind sincerely please help helps helping me us
with this that it can could would may might i ask something have some a an one question questions
quick sorry to bother disturb any is appreciated how are do need your be great nice ok okay hope
well assist assistance for and
hallo guten tag morgen abend danke vielen dank im voraus bitte kannst kann können du sie ich mir uns
helfen dabei hilfe habe eine frage fragen etwas dich darf mal freundliche grüße mit freundlichen
grüßen viele liebe könnten könntest sehr schön und
bonjour bonsoir salut merci beaucoup d avance j ai une je peux peut pouvez vous tu pourriez m aider
aide nous svp s il te plaît plait cordialement besoin de
hola buenos buenas días tardes gracias muchas por favor puedes puede podrías podría ayudarme ayuda
ayudar tengo una pregunta saludos de antemano
здравствуйте привет добрый день вечер доброе утро спасибо большое заранее можете можешь вы ты мне
нам помочь помогите помоги пожалуйста у меня есть вопрос благодарю
مرحبا أهلا السلام عليكم شكرا شكراً جزيلا لك هل يمكنك مساعدتي من فضلك ساعدني لدي سؤال
"""
"""Words of pleasantries, and words that say nothing alone."""
_COURTESY = frozenset(_COURTESIES.split())
_OVERVIEWS = """
about summary summarise summarize summarised summarized overview gist topic topics theme themes tldr
worum fasse fass zusammen zusammenfassung überblick handelt wovon hauptpunkte
résume résumé résumer résumez aperçu quoi
resume resumen resumir trata
чём кратко резюме обзор изложи перескажи суть
لخص ملخص يتحدث
"""
"""Words that ask for a text as a whole."""
_WHOLES = """
what s the these those document documents text texts file files attached paste report article paper
book page pages contract letter story code repository folder project manual licence license of on
few two three five short brief long words sentence sentences bullet point points paragraph
paragraphs line lines give make write tell show does describe whole entire all main key most
important provide create get as was quickly briefly
geht es hier handelt sich text dokument datei vertrag buch artikel bericht kurz das der den die dem
diese dieser dieses diesem ganze ganzen mal gib wesentliche sätzen in von
de ce cet cette texte document fichier livre article rapport parle agit il est moi le la les s en
points principaux phrases court donne fais
qué este esta texto documento archivo libro contrato artículo informe el se en breve frases puntos
principales da haz hazme dame me
о это этот эта этого тексте текст текста документ документа файл книга статья в дай сделай изложи
содержание краткое
عن ماذا ما هو هذا هذه النص المستند الوثيقة لي
"""
"""Words that may stand beside them: they name nothing in a text."""
_OVERVIEW, _WHOLE = frozenset(_OVERVIEWS.split()), frozenset(_WHOLES.split())
_EAST_ASIAN_OVERVIEW = re.compile(
    r"总结|概括|概述|摘要|大意|主要内容|(?:讲|说|写)(?:的是|了|的)?什么|(?:是)?关于什么"
    r"|要約|概要|まとめて|何について|どんな内容|何が書"
)
_EAST_ASIAN_FILLER = re.compile(
    r"请|請|给我|帮我|用|一下|这|該|该|本|篇|份|个|個|文档|文件|文章|文本|书|合同|报告|的|是|了|吗|呢|内容|简短|几句话"
    r"|この|その|文書|文章|テキスト|ファイル|本|記事|契約|報告|書|の|を|は|に|して|ください|くれますか|教えて"
    r"|です|か|ますか|かれていますか|いて|あります|短く|簡単|書かれて"
)
