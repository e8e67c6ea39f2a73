"""Prompts of real model families equal apply_chat_template's tokens; answers end and are split in
the family's format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_lm.utils import load_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from app.engine.cache.prefix_cache import PrefixCache
from app.engine.model.chat_template import PromptError
from app.engine.model.prompt import PromptBuilder
from app.engine.model.token_stream import TokenStream
from app.engine.pair_loader import load_pair
from app.engine.turn.decode import Decoder
from app.protocol.commands import Load
from app.protocol.events import EngineWarning, Finished, Token
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Document, Message, Role, SegmentKind, TemplateRule
from app.protocol.reasons import Reason, ReasonCode
from app.sandbox.process import TextProcess
from tests import tiny
from tests.engine.driver import Driver, question
from tests.tables import table

S, U, A = Role.SYSTEM, Role.USER, Role.ASSISTANT
Said = tuple[Role, str]

# ---------------------------------------------------------------------------- tokenizers

SPM = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
SPLITTERS: dict[str, Any] = {
    "byte level": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "byte level after a space": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "metaspace": pre_tokenizers.Metaspace(prepend_scheme="always", split=False),
    "metaspace at the start": pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
    "sentencepiece": normalizers.Sequence(SPM),
    "sentencepiece without a prefix": SPM[1],
}
"""Ways in which real tokenizers treat the space before a word."""
SPECIALS = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>", "[INST]", "[/INST]"]


def tokenizer_of(kind: str) -> Tokenizer:
    splitter, by_bytes = SPLITTERS[kind], kind.startswith("byte")
    made = Tokenizer(models.BPE(unk_token=None if by_bytes else "<unk>"))
    made.pre_tokenizer = SPLITTERS["byte level"] if by_bytes else pre_tokenizers.Metaspace()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if by_bytes else list(map(chr, range(33, 127)))
    trainer = BpeTrainer(
        vocab_size=500,
        special_tokens=[] if by_bytes else ["<unk>"],
        initial_alphabet=[*alphabet, "\n"],
        show_progress=False,
    )
    made.train_from_iterator(["hello there user assistant answer USER: ASSISTANT:"] * 9, trainer)
    if isinstance(splitter, normalizers.Sequence | normalizers.Replace):
        made.normalizer, made.pre_tokenizer = splitter, None
    else:
        made.pre_tokenizer = splitter
    made.decoder = decoders.ByteLevel() if by_bytes else decoders.Metaspace()
    added = [AddedToken(each, rstrip=each == "<|end|>", normalized=False) for each in SPECIALS]
    made.add_special_tokens(added)
    begin = made.token_to_id("<s>")
    made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    return made


def loaded(folder: Path, tokenizer: Tokenizer, **config: Any) -> Any:
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    known = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(known | config))
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    made: dict[str, Any] = {}

    def of(kind: str) -> Any:
        if kind not in made:
            made[kind] = loaded(tmp_path_factory.mktemp("family"), tokenizer_of(kind))
        return made[kind]

    return of


class OneTokenizer(TextProcess):
    """Does not restart for the tokenizer that it has."""

    spec = ""

    def load(self, spec: str) -> None:
        if spec != self.spec:
            self.spec = spec
            super().load(spec)


PROCESSES: dict[Any, OneTokenizer] = {}
"""By tokenizer."""


@pytest.fixture(scope="module", autouse=True)
def processes() -> Iterator[None]:
    yield
    while PROCESSES:
        PROCESSES.popitem()[1].close()


def builder(tokenizer: Any, template: str | None) -> PromptBuilder:
    tokenizer.chat_template = template
    tokenizer.has_chat_template = template is not None
    if tokenizer not in PROCESSES:
        PROCESSES[tokenizer] = OneTokenizer()
    return PromptBuilder(tokenizer, PROCESSES[tokenizer])


def conversation(*said: Said) -> tuple[Message, ...]:
    return tuple(Message(role, text) for role, text in said)


# ---------------------------------------------------------------------------- exact tokens

TEMPLATES = {
    "Mistral 7B v0.1": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{{ '[' + 'INST] ' + m.content + ' [/' + 'INST]' }}{% else %}"
    "{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
    "Mistral 7B v0.3": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{{ '[INST] ' + m.content + '[/INST]' }}{% else %}{{ ' ' + m.content + eos_token }}{% endif %}"
    "{% endfor %}",
    "Mistral Nemo": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{{ '[INST]' + m.content + '[/INST]' }}{% else %}{{ m.content + eos_token }}{% endif %}"
    "{% endfor %}",
    "Llama 2": "{% for m in messages %}{% if m.role == 'user' %}"
    "{{ bos_token + '[' + 'INST] ' + m.content.strip() + ' [/' + 'INST]' }}{% else %}"
    "{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "Vicuna": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{{ 'USER: ' + m.content + ' ' }}{% else %}{{ 'ASSISTANT: ' + m.content + eos_token }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}",
    "Zephyr": "{% for m in messages %}{{ '<' + m.role + '>\n' + m.content + eos_token + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>\n' }}{% endif %}",
    "Phi 3": "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content | trim + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
}
SAID = (
    ((U, "hello there"),),
    ((U, "hello"), (A, "answer"), (U, "there")),
    ((U, " hello "), (A, ""), (U, "Why?")),
)


@table("kind, name", product(SPLITTERS, TEMPLATES))
def test_prompts_have_the_tokens_of_the_whole_text(
    family: Callable[[str], Any], kind: str, name: str
) -> None:
    tokenizer = family(kind)
    build = builder(tokenizer, TEMPLATES[name]).build
    for said in SAID:
        turns = [{"role": str(role), "content": text} for role, text in said]
        whole = tokenizer.apply_chat_template(turns, add_generation_prompt=True)
        assert build(conversation(*said)).ids.tolist() == whole
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "there"}]
    whole = tokenizer.apply_chat_template(turns, continue_final_message=True)
    assert build(conversation((U, "hello"), (A, "there"))).ids.tolist() == whole
    # Documents, too, begin as in the whole text.
    asked = Message(U, "there", (Document("a", "hello there"),))
    prompt = build((asked,))
    starts = prompt.offsets[0, 0]
    assert starts[0] == 0
    assert starts[-1] == len("hello there")


@table("kind, template", product(SPLITTERS, [None, TEMPLATES["Vicuna"]]))
def test_a_plain_completion_starts_with_the_tokenizers_bos(
    family: Callable[[str], Any], kind: str, template: str | None
) -> None:
    tokenizer = family(kind)
    build = builder(tokenizer, template).build
    whole = tokenizer.encode("hello there")
    assert whole[0] == tokenizer.bos_token_id
    plain = Message(U, "hello there", plain=True)
    assert build((plain,)).ids.tolist() == whole
    in_parts = Message(U, "", (Document("a", "hello there"),), plain=True)
    assert build((in_parts,)).ids.tolist() == whole
    if template is None:
        chat = build(conversation((U, "hello there")))
        assert chat.ids.tolist() == tokenizer.encode("hello there\n\n")


def test_an_answer_after_a_templates_space_keeps_its_cached_ids(
    family: Callable[[str], Any],
) -> None:
    tokenizer = family("sentencepiece")
    answer = tuple(tokenizer.encode("answer", add_special_tokens=False))
    for name in ("Mistral 7B v0.1", "Vicuna"):
        build = builder(tokenizer, TEMPLATES[name]).build
        asked = build(conversation((U, "hello"))).ids.tolist()
        messages = (Message(U, "hello"), Message(A, "answer", token_ids=answer), Message(U, "Why?"))
        later = build(messages).ids.tolist()
        assert later[: len(asked) + len(answer)] == [*asked, *answer]


# ---------------------------------------------------------------------------- arrangements


def alternating(turns: str) -> str:
    return (
        f"{{% for m in {turns} %}}{{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}}"
        "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% endfor %}"
    )


SPLIT = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content + '|' %}"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
)
BODY = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
STRICT = {
    "lenient": BODY,
    "Gemma 3": SPLIT + alternating("rest") + "{% for m in rest %}<{{ m.role }}>"
    "{{ system if loop.first }}{{ m.content | trim }}{% endfor %}<assistant>",
    "Gemma 2": "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}"
    "{% endif %}" + alternating("messages") + BODY,
    "Qwen 3.5": "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}"
    + BODY,
    "Phi 3": BODY.replace("in messages", "in messages if m.role != 'system'"),
    "Mistral v3": SPLIT + alternating("rest") + "{% for m in rest %}<{{ m.role }}>"
    "{{ system if loop.last }}{{ m.content }}{% endfor %}<assistant>",
}
FIRST, NONE, MERGED, OPENED = (
    TemplateRule.SYSTEM_FIRST,
    TemplateRule.NO_SYSTEM,
    TemplateRule.ALTERNATING,
    TemplateRule.QUESTION_FIRST,
)
TWICE = ((U, "a"), (U, "b"))
SYSTEM = ((S, "s"), (U, "a"), (A, "b"), (U, "c"))
LATER = ((U, "a"), (A, "b"), (S, "s"), (U, "c"))
TWO = ((S, "s"), (S, "t"), (U, "a"))
GREETING = ((A, "a"), (U, "b"))
ARRANGED: list[tuple[str, tuple[Said, ...], str, set[TemplateRule]]] = [
    ("lenient", TWICE, "<user>a<user>b", set()),
    ("lenient", LATER, "<user>a<assistant>b<system>s<user>c", set()),
    ("lenient", GREETING, "<assistant>a<user>b", set()),
    ("Gemma 3", TWICE, "<user>a//b", {MERGED}),
    ("Gemma 3", SYSTEM, "<user>s|a<assistant>b<user>c", set()),
    ("Gemma 3", LATER, "<user>a<assistant>b<user>s//c", {FIRST}),
    ("Gemma 3", TWO, "<user>s//t|a", {MERGED}),
    ("Gemma 3", GREETING, "<user><assistant>a<user>b", {OPENED}),
    ("Gemma 3", ((U, "a"), (S, "s"), (U, "b")), "<user>a<system>s<user>b", set()),
    ("Gemma 3", ((U, "a"), (U, "b"), (S, "s"), (U, "c")), "<user>a//b<system>s<user>c", {MERGED}),
    (
        "Mistral v3",
        (*TWICE, (A, "c"), *LATER[2:]),
        "<user>a//b<assistant>c<user>s//c",
        {FIRST, MERGED},
    ),
    ("Gemma 2", TWICE, "<user>a//b", {MERGED}),
    ("Gemma 2", SYSTEM, "<user>s//a<assistant>b<user>c", {NONE}),
    ("Gemma 2", LATER, "<user>a<assistant>b<user>s//c", {FIRST}),
    ("Gemma 2", TWO, "<user>s//t//a", {NONE}),
    ("Gemma 2", ((S, "s"), (A, "a"), (U, "b")), "<user><assistant>a<user>s//b", {NONE, OPENED}),
    ("Qwen 3.5", TWICE, "<user>a<user>b", set()),
    ("Qwen 3.5", LATER, "<user>a<assistant>b<user>s//c", {FIRST}),
    ("Qwen 3.5", TWO, "<system>s//t<user>a", {MERGED}),
    ("Phi 3", SYSTEM, "<user>s//a<assistant>b<user>c", {NONE}),
    ("Mistral v3", SYSTEM[:2], "<user>s|a", set()),
    ("Mistral v3", SYSTEM, "<user>a<assistant>b<user>s|c", set()),
    ("Mistral v3", TWICE, "<user>a//b", {MERGED}),
]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(tiny.save(tmp_path_factory.mktemp("bytes")))


@table("name, said, expected, rules", ARRANGED)
def test_messages_are_rearranged_for_strict_templates(
    byte_level: Any, name: str, said: tuple[Said, ...], expected: str, rules: set[TemplateRule]
) -> None:
    prompt = builder(byte_level, STRICT[name]).build(conversation(*said))
    text = byte_level.decode(prompt.ids.tolist())
    assert text.replace("\n\n", "//").removesuffix("<assistant>") == expected
    assert prompt.rules == rules
    kinds = {S: SegmentKind.SYSTEM, U: SegmentKind.HISTORY, A: SegmentKind.HISTORY}
    of_messages = {s.message: s.kind for s in prompt.segments if s.message is not None}
    last = len(said) - 1
    assert of_messages == {
        i: kinds[role] if i < last else SegmentKind.QUESTION for i, (role, _) in enumerate(said)
    }


def test_messages_that_no_arrangement_helps_are_refused_with_the_templates_reason(
    byte_level: Any,
) -> None:
    build = builder(byte_level, "{{ raise_exception('not today') }}").build
    with pytest.raises(PromptError) as raised:
        build(conversation(*LATER))
    assert "not today" in raised.value.failure.data["error"]


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


def test_rearranged_messages_are_reported_once(tmp_path: Path, driver: Driver) -> None:
    driver.load(tiny.save(tmp_path / "model", template=STRICT["Gemma 2"]))
    asked = question(mode=Mode.FULL, tokens=1, text="x")
    for _ in range(2):
        driver.ask(replace(asked, messages=(Message(S, "Be terse."), *asked.messages)))
        driver.until(Finished)
    said = [event.reason for event in driver.events if isinstance(event, EngineWarning)]
    assert said == [Reason(ReasonCode.TEMPLATE_RULE, {"rule": "no system"})]


# ---------------------------------------------------------------------------- ends of answers

ENDS = {
    "ChatML": (tiny.TEMPLATE, "<|im_end|>"),
    "after white space": (
        "{% for m in messages %}{{ m.content }} \n<|im_end|>{% endfor %}",
        "<|im_end|>",
    ),
    "the next question": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n{% endfor %}",
        "<|im_start|>",
    ),
    "no token": ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", None),
    "a template that fails": ("{{ raise_exception('no') }}", None),
}


@table("name", ENDS)
def test_answers_end_where_the_template_ends_them(tmp_path: Path, name: str) -> None:
    template, end = ENDS[name]
    folder = tiny.save(tmp_path / name, template=template)
    for file, change in (
        ("config.json", {"eos_token_id": 256}),
        ("tokenizer_config.json", {"eos_token": "<|endoftext|>"}),
    ):
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(content | change))
    tokenizer = load_pair(Load(str(folder), None, ("model", None))).target.tokenizer
    ids = {tokenizer.convert_tokens_to_ids(each) for each in ("<|endoftext|>", end) if each}
    assert tokenizer.eos_token_ids == ids


def test_end_tokens_outside_the_vocabulary_are_ignored(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [257, -1, 10**6]}))
    tokenizer = load_pair(Load(str(folder), None, ("model", None))).target.tokenizer
    assert 257 in tokenizer.eos_token_ids
    assert not tokenizer.eos_token_ids & {-1, 10**6}


# ---------------------------------------------------------------------------- reasoning

MARKED: dict[str, tuple[tuple[str, ...], str, str, str, str]] = {
    "GPT-OSS": (
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>"),
        "",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi!",
        "Hm.",
        "Hi!",
    ),
    "GPT-OSS, at once": (
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>"),
        "",
        "<|channel|>final<|message|>Hi!",
        "",
        "Hi!",
    ),
    "Magistral": (("[THINK]", "[/THINK]"), "", "[THINK]Hm.[/THINK]Hi!", "Hm.", "Hi!"),
    "Seed": (
        ("<seed:think>", "</seed:think>"),
        "",
        "<seed:think>Hm.</seed:think>Hi!",
        "Hm.",
        "Hi!",
    ),
    "Command A": (
        ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        "",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Hi!<|END_RESPONSE|>",
        "Hm.",
        "Hi!",
    ),
    "Qwen": (("<think>", "</think>"), "", "<think>Hm.</think>Hi!", "Hm.", "Hi!"),
    "Olmo, as plain text": ((), "<think>", "<think>Hm.</think>Hi!", "Hm.", "Hi!"),
    "Granite 3.2": (
        (),
        "Here is my thought process: and Here is my response:",
        "Here is my thought process:Hm.Here is my response:Hi!",
        "Hm.",
        "Hi!",
    ),
    "Granite 3.3": (
        (),
        "<think></think><response></response>",
        "<think>Hm.</think><response>Hi!</response>",
        "Hm.",
        "Hi!",
    ),
    "no reasoning known": ((), "", "<think>Hm.</think>Hi!", "", "<think>Hm.</think>Hi!"),
}


def marked(name: str, folder: Path) -> tuple[Any, str, str, str]:
    """(tokenizer, generated text, its reasoning, its answer)."""
    tokens, named, written, thought, said = MARKED[name]
    made = tiny.byte_tokenizer()
    made.add_special_tokens(list(tokens))
    template = f"{{% set x = '{named}' %}}{{% for m in messages %}}<|im_start|>{{{{ m.content }}}}"
    tokenizer = loaded(folder, made, chat_template=template + "{% endfor %}")
    return tokenizer, written, thought, said


@table("name", MARKED)
def test_reasoning_is_not_part_of_the_answer_or_of_later_prompts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, written, thought, said = marked(name, tmp_path / name)
    ids = [*tokenizer.encode(written, add_special_tokens=False), tokenizer.eos_token_id]
    monkeypatch.setattr(TokenStream, "tokens", lambda *_: (token for token in ids))
    events: list[Token] = []
    decoder = Decoder(1, tokenizer, Sampling(), events.append)
    decoder.generate(None, PrefixCache(list), np.array([1], np.int32), 999, lambda: None)
    assert "".join(event.thinking for event in events) == thought
    assert "".join(event.text for event in events) == decoder.text == said
    for thinking in ("", thought):
        answer = Message(A, said, token_ids=tuple(ids), thinking=thinking)
        prompt = PromptBuilder(tokenizer).build((Message(U, "a"), answer, Message(U, "b")))
        text = tokenizer.decode(prompt.ids.tolist())
        assert text == f"<|im_start|>a<|im_start|>{said}<|im_start|>b"


@table("name", MARKED)
def test_an_answer_with_unknown_ids_continues_with_the_models_marks(
    name: str, tmp_path: Path
) -> None:
    tokenizer, written, thought, said = marked(name, tmp_path / name)
    answer = Message(A, said, thinking=thought)
    prompt = PromptBuilder(tokenizer).build((Message(U, "a"), answer))
    text = tokenizer.decode(prompt.ids[-prompt.answer_prefix_len :].tolist())
    after = ("<|END_RESPONSE|>", "</response>")
    wanted = written.removesuffix(after[0]).removesuffix(after[1])
    assert text.replace("\n", "").replace("<response>", "") == wanted.replace("<response>", "")
    assert tokenizer.decode(prompt.ids.tolist()).startswith("<|im_start|>a")


def test_the_end_of_reasoning_does_not_end_the_answer(tmp_path: Path) -> None:
    """GPT-OSS ends both with the same token in later prompts."""
    made = tiny.byte_tokenizer()
    made.add_special_tokens(list(MARKED["GPT-OSS"][0]))
    template = (
        "{% for m in messages %}<|start|>{{ m.role }}{{ '<|channel|>final' if m.role == 'assistant'"
        " }}<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant"
    )
    tokenizer = loaded(tmp_path / "model", made, chat_template=template)
    ends = PromptBuilder(tokenizer).turn_ends()
    assert tokenizer.decode(sorted(ends)) == "<|return|>"
