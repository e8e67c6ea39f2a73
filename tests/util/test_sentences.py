"""What a message asks for: its questions and instructions, with their context and without
pleasantries."""

from __future__ import annotations

import pytest

from app.util.sentences import (
    LONGEST,
    MAX_PARTS,
    MAX_QUESTIONS,
    asks_for_overview,
    questions_in,
    units,
)
from tests.tables import table

ONE_SEARCH = [
    # A question or an instruction among pleasantries.
    ("Who leads it?", "Who leads it?"),
    ("Hi! Who leads it?", "Who leads it?"),
    ("Hello there,\n\nwho leads it?", "who leads it?"),
    ("Can you help me? Who leads it?", "Who leads it?"),
    ("Could you please help me with this? When does the lease end?", "When does the lease end?"),
    ("I have a question. When does the lease end?", "When does the lease end?"),
    ("When does the lease end? Thanks in advance!", "When does the lease end?"),
    ("When does the lease end? Thank you very much.", "When does the lease end?"),
    ("Please help. When does the lease end?", "When does the lease end?"),
    ("Good morning! How are you? When does the lease end?", "When does the lease end?"),
    ("List the fees. Thanks!", "List the fees."),
    ("Sorry to bother you. Where is the key kept? Best regards", "Where is the key kept?"),
    ("Where is the key kept? Any help is appreciated.", "Where is the key kept?"),
    ("May I ask you something? Where is the key kept?", "Where is the key kept?"),
    ("Thanks, that helps. And where is the key kept?", "And where is the key kept?"),
    # How to answer, and what to leave out, is in no passage.
    ("List the fees. Ignore the annex.", "List the fees."),
    ("Which fees are there? Answer in one sentence.", "Which fees are there?"),
    ("Which fees are there? Be brief.", "Which fees are there?"),
    ("Which fees are there? Please reply in German.", "Which fees are there?"),
    ("Which fees are there? Don't mention the annex.", "Which fees are there?"),
    ("Which fees are there? Use bullet points.", "Which fees are there?"),
    ("Which fees are there? Only use the document.", "Which fees are there?"),
    # Other languages.
    ("Kannst du mir helfen? Wann endet der Vertrag?", "Wann endet der Vertrag?"),
    ("Guten Tag! Wann endet der Vertrag? Vielen Dank im Voraus.", "Wann endet der Vertrag?"),
    ("Nenne die Gebühren. Antworte auf Deutsch.", "Nenne die Gebühren."),
    ("Bonjour, j'ai une question. Quand finit le bail ? Merci !", "Quand finit le bail ?"),
    ("Pouvez-vous m'aider ? Quand finit le bail ?", "Quand finit le bail ?"),
    ("Hola. ¿Puedes ayudarme? ¿Cuándo termina el contrato?", "¿Cuándo termina el contrato?"),
    ("¿Cuándo termina el contrato? ¡Muchas gracias!", "¿Cuándo termina el contrato?"),
    ("Здравствуйте! Когда кончается договор? Спасибо.", "Когда кончается договор?"),
    ("Можете мне помочь? Когда кончается договор?", "Когда кончается договор?"),
    ("你好！能帮我吗？合同什么时候结束？", "合同什么时候结束？"),
    ("合同什么时候结束？谢谢。", "合同什么时候结束？"),
    ("こんにちは。契約はいつ終わりますか？ありがとうございます。", "契約はいつ終わりますか？"),
    ("مرحبا! هل يمكنك مساعدتي؟ متى ينتهي العقد؟ شكرا", "متى ينتهي العقد؟"),
    # Written after these rules.
    (
        "Hey, quick question: when does the warranty expire?",
        "Hey, quick question: when does the warranty expire?",
    ),
    (
        "Hi all! Hope you are well. Which port does the server use?",
        "Which port does the server use?",
    ),
    ("Would you be so kind? Which port does the server use?", "Which port does the server use?"),
    (
        "Which port does the server use? Many thanks and best regards",
        "Which port does the server use?",
    ),
    ("Which port does the server use? Keep it short.", "Which port does the server use?"),
    ("Describe the back-up procedure. Do not include examples.", "Describe the back-up procedure."),
    ("Which port does the server use? Do not guess.", "Which port does the server use?"),
    ("Könnten Sie mir bitte helfen? Welcher Port wird benutzt?", "Welcher Port wird benutzt?"),
    ("Welcher Port wird benutzt? Danke schön!", "Welcher Port wird benutzt?"),
    ("Beschreibe das Verfahren. Ignoriere den Anhang.", "Beschreibe das Verfahren."),
    ("Salut ! Tu peux m'aider ? Quel port utilise le serveur ?", "Quel port utilise le serveur ?"),
    ("Décris la procédure. Réponds en anglais.", "Décris la procédure."),
    (
        "Buenos días, tengo una pregunta. ¿Qué puerto usa el servidor?",
        "¿Qué puerto usa el servidor?",
    ),
    (
        "Привет! Помогите, пожалуйста. Какой порт использует сервер?",
        "Какой порт использует сервер?",
    ),
    ("您好，我有个问题。服务器用哪个端口？", "服务器用哪个端口？"),
    (
        "すみません、質問があります。サーバーはどのポートを使いますか？",
        "サーバーはどのポートを使いますか？",
    ),
    ("Tell me who leads it.", "Tell me who leads it."),
    # Nothing else is said.
    ("Can you help me?", "Can you help me?"),
    ("Thanks!", "Thanks!"),
    ("", ""),
    ("?", "?"),
    ("fees", "fees"),
    ("What is this about", "What is this about"),
]


@table("message, search", ONE_SEARCH)
def test_pleasantries_and_forms_of_answers_are_not_searched(message: str, search: str) -> None:
    assert questions_in(message) == [search]


SEVERAL = [
    ("Who leads it? And where is it?", ["Who leads it?", "And where is it?"]),
    ("谁负责？在哪里？", ["谁负责？", "在哪里？"]),
    ("(Who leads it?) Say where Mr. X is.", ["(Who leads it?)", "Say where Mr. X is."]),
    ("Who leads it? Then list the fees.", ["Who leads it?", "Then list the fees."]),
    ("List the fees. Name the parties.", ["List the fees.", "Name the parties."]),
    ("List the fees; who pays them?", ["List the fees; who pays them?"]),
    ("Erkläre die Kündigung. Wer zahlt?", ["Erkläre die Kündigung.", "Wer zahlt?"]),
    ("Explique la résiliation. Qui paie ?", ["Explique la résiliation.", "Qui paie ?"]),
    ("Перечисли взносы. Кто платит?", ["Перечисли взносы.", "Кто платит?"]),
    ("请列出费用。谁付款？", ["请列出费用。", "谁付款？"]),
    ("- Who leads it?\n- Where is it?\n- the fees", ["Who leads it?", "Where is it?", "the fees"]),
    ("1. Who leads it?\n2. Where is it?", ["Who leads it?", "Where is it?"]),
    ("Riassumi il contratto. Chi firma?", ["Riassumi il contratto.", "Chi firma?"]),
    ("Traduza o resumo. Quem assina?", ["Traduza o resumo.", "Quem assina?"]),
    ("Vertaal de brief. Wie tekent?", ["Vertaal de brief.", "Wie tekent?"]),
    # Context counts, before and after the question, and so does the question alone.
    (
        "I rent a flat in Rome. When may I leave?",
        ["When may I leave?", "I rent a flat in Rome. When may I leave?"],
    ),
    (
        "When may I leave? I rent a flat in Rome.",
        ["When may I leave?", "I rent a flat in Rome. When may I leave?"],
    ),
    (
        "Can I leave? I rent a flat. Who pays? Thanks.",
        ["Can I leave?", "I rent a flat. Can I leave?", "Who pays?", "I rent a flat. Who pays?"],
    ),
    (
        "Wann darf ich gehen? Ich miete eine Wohnung.",
        ["Wann darf ich gehen?", "Ich miete eine Wohnung. Wann darf ich gehen?"],
    ),
    (
        "Explain the procedure. Also, who approves it?",
        ["Explain the procedure.", "Also, who approves it?"],
    ),
    (
        "We run version 4 on Linux. Which port does it use? Be concise.",
        ["Which port does it use?", "We run version 4 on Linux. Which port does it use?"],
    ),
    (
        "What changed in March? I only have the old manual.",
        ["What changed in March?", "I only have the old manual. What changed in March?"],
    ),
    (
        "Compare both plans, please. Which is cheaper?",
        ["Compare both plans, please.", "Which is cheaper?"],
    ),
    (
        "Could you list the members? And their roles?",
        ["Could you list the members?", "And their roles?"],
    ),
    ("Résume le chapitre. Qui l'a écrit ?", ["Résume le chapitre.", "Qui l'a écrit ?"]),
    ("¿Quién firma? Indica la fecha.", ["¿Quién firma?", "Indica la fecha."]),
    (
        "総額はいくらですか？理由を説明してください。",
        ["総額はいくらですか？", "理由を説明してください。"],
    ),
    ("a? " * MAX_QUESTIONS, ["a?"] * MAX_QUESTIONS),
    # Without a question, what is said is searched for.
    ("The fees of the annex. The parties.", ["The fees of the annex.", "The parties."]),
]


@table("message, searches", SEVERAL)
def test_each_question_and_instruction_is_searched_alone_and_with_its_context(
    message: str, searches: list[str]
) -> None:
    assert questions_in(message) == searches


@pytest.mark.parametrize("count", [1, MAX_QUESTIONS, 100 * MAX_QUESTIONS])
def test_a_long_message_has_few_parts_and_loses_nothing(count: int) -> None:
    text = "Does the mill run? " * count + "The mill runs. " * 2000
    parts = questions_in(text)
    assert " ".join(parts) == text.rstrip()
    assert len(parts) <= 2 * max(MAX_PARTS, len(text) / LONGEST) + MAX_QUESTIONS
    assert max(map(len, parts)) <= LONGEST
    assert parts[0] == "Does the mill run?" or count > MAX_QUESTIONS


@table(
    "message",
    [
        "What is this about?",
        "What's this document about?",
        "Hi! What is the text about? Thanks.",
        "Summarise this.",
        "Summarize the document in three sentences.",
        "Please give me a short summary of the attached file.",
        "Can you give me an overview?",
        "What are the main topics?",
        "tldr",
        "Worum geht es in diesem Text?",
        "Fasse das Dokument kurz zusammen.",
        "De quoi parle ce texte ?",
        "Résume ce document.",
        "¿De qué trata este documento?",
        "О чём этот текст?",
        "总结一下这篇文章。",
        "这篇文章讲了什么？",
        "この文書を要約してください。",
        "لخص هذا النص",
    ],
)
def test_a_question_about_the_whole_document_is_known(message: str) -> None:
    assert asks_for_overview(message)


@table(
    "message",
    [
        "What about it?",
        "And why?",
        "What is the warranty about?",
        "Summarise the termination clause.",
        "What does the document say about patents?",
        "Who wrote this document?",
        "Is this document long?",
        "Give me the fees.",
        "Worum geht es in Abschnitt 5?",
        "Résume le chapitre sur les brevets.",
        "总结第三章。",
        "What is this about? " + "The mill runs. " * 100,
        "",
    ],
)
def test_a_question_that_names_something_is_not_about_the_whole(message: str) -> None:
    assert not asks_for_overview(message)


@table(
    "text, expected",
    [
        ("Zahlung am 3. April fällig. Sonst nicht.", 2),
        ("Es gilt ab dem 12. Jan. 2026 für alle. Sonst nicht.", 2),
        ("It is due on Jan. 12, 2026 in full. Not before.", 2),
        ("Er kommt am 1.\nMai zu uns. Sonst nicht.", 2),
        ("It says so in clause 3. Maybe it is true.", 2),
        ("It ends in May. 12 people came.", 2),
        ("Es waren 300. April war es auch.", 2),
    ],
)
def test_a_date_is_in_one_sentence(text: str, expected: int) -> None:
    assert len(units(text)) == expected


def test_a_line_too_long_to_be_wrapped_is_a_paragraph_of_its_own() -> None:
    """A document may have a paragraph a line, without blank lines between them."""
    long = "The mill runs at night. " * (LONGEST // 20)
    text = f"The end of the first line\n{long.strip()}\nThe start of the third\ngoes on here."
    found = [" ".join(text[unit.start : unit.end].split()) for unit in units(text)]
    assert found[0] == "The end of the first line"
    assert found[-1] == "The start of the third goes on here."
    assert set(found[1:-1]) == {"The mill runs at night."}
