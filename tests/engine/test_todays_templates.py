"""Handwritten chat templates with the structure of current families: prompts equal the tokens of
transformers, with and without thinking."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer

from app.engine.model.prompt import DOCUMENT_FOOTER, PromptBuilder
from app.engine.model.reasoning import Reasoning
from app.protocol.prompt import Document, Message, Role
from tests import tiny
from tests.tables import table

S, U, A = Role.SYSTEM, Role.USER, Role.ASSISTANT


@dataclass(frozen=True, slots=True)
class Family:
    """`on`, `off`: ends of prompts with and without thinking. `opens`: whether the prompt opens the
    reasoning."""

    template: str
    marks: str
    on: str
    off: str
    opens: bool = False
    values: Callable[[bool], dict[str, Any]] = lambda thinks: {
        "enable_thinking": thinks,
        "thinking": thinks,
    }


CHATML = "<|im_start|> <|im_end|> <think> </think>"
CHATML_TURN = "'<|im_start|>' + m.role + '\\n' + m.content | trim + '<|im_end|>\\n'"
GENERATION = "{{ '<|im_start|>assistant\\n' }}"
CLOSED = (
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% else %}{{ '<think>\\n' }}{% endif %}"
)
FAMILIES = {
    "Qwen3.5 and 3.6": Family(
        "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}{% if m.role == 'assistant' and loop.index0 > ns.last %}"
        "{{ '<|im_start|>assistant\\n<think>\\n' + (m.reasoning_content or '') | trim"
        " + '\\n</think>\\n\\n' + m.content | trim + '<|im_end|>\\n' }}"
        f"{{% else %}}{{{{ {CHATML_TURN} }}}}{{% endif %}}{{% endfor %}}{GENERATION}{CLOSED}",
        CHATML,
        "assistant\n<think>\n",
        "assistant\n<think>\n\n</think>\n\n",
        opens=True,
    ),
    "Qwen3.8": Family(
        "{% set says = '' %}{% if enable_thinking is undefined or enable_thinking is true %}"
        "{% set effort = reasoning_effort | default('xhigh') %}"
        "{% if effort not in ('xhigh', 'medium', 'low') %}{{ raise_exception('No such effort') }}"
        "{% endif %}{% set says = 'Effort: ' ~ effort %}{% endif %}"
        "{% if messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + says + '\\n\\n'"
        " + messages[0].content | trim + '<|im_end|>\\n' }}{% elif says %}"
        "{{ '<|im_start|>system\\n' + says + '<|im_end|>\\n' }}{% endif %}"
        "{% for m in messages %}{% if m.role == 'system' %}{% if not loop.first %}"
        "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
        "{% elif m.role == 'assistant' %}{{ '<|im_start|>assistant\\n<think>\\n'"
        " + (m.reasoning_content or '') | trim + '\\n</think>\\n\\n' + m.content | trim"
        f" + '<|im_end|>\\n' }}}}{{% else %}}{{{{ {CHATML_TURN} }}}}{{% endif %}}{{% endfor %}}"
        f"{GENERATION}{CLOSED}",
        CHATML,
        "assistant\n<think>\n",
        "assistant\n<think>\n\n</think>\n\n",
        opens=True,
    ),
    "Gemma 4": Family(
        "{{ bos_token }}{% set rest = messages %}"
        "{% if (enable_thinking is defined and enable_thinking) or messages[0].role == 'system' %}"
        "{{ '<|turn>system\\n' }}{% if enable_thinking %}{{ '<|think|>\\n' }}{% endif %}"
        "{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}"
        "{% set rest = messages[1:] %}{% endif %}{{ '<turn|>\\n' }}{% endif %}"
        "{% for m in rest %}{{ '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n'"
        " + m.content.split('<channel|>')[-1] | trim + '<turn|>\\n' }}{% endfor %}"
        "{{ '<|turn>model\\n' }}{% if not enable_thinking | default(false) %}"
        "{{ '<|channel>thought\\n<channel|>' }}{% endif %}",
        "<s> <|turn> <turn|> <|think|> <|channel> <channel|>",
        "<|turn>model\n",
        "<|turn>model\n<|channel>thought\n<channel|>",
    ),
    "GPT-OSS": Family(
        "{{ '<|start|>system<|message|>You are ChatGPT.\\nReasoning: '"
        " + (reasoning_effort or 'medium') + '<|end|>' }}"
        "{% for m in messages %}{% if m.role == 'system' %}"
        "{{ '<|start|>developer<|message|># Instructions\\n\\n' + m.content + '\\n\\n<|end|>' }}"
        "{% elif m.role == 'assistant' %}"
        "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}"
        "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}"
        "{% endfor %}{{ '<|start|>assistant' }}",
        "<|start|> <|message|> <|end|> <|channel|> <|return|> <|call|>",
        "<|end|><|start|>assistant",
        "<|end|><|start|>assistant",
    ),
    "SmolLM3": Family(
        "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}"
        "{{ '<|im_start|>system\\n## Metadata\\n\\nReasoning Mode: ' + ('/think' if"
        " enable_thinking else '/no_think') + '\\n\\n## Custom Instructions\\n\\n' }}"
        "{% if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}"
        "{{ '<|im_end|>\\n' }}{% for m in messages if m.role != 'system' %}"
        "{% if m.role == 'assistant' and not enable_thinking %}"
        "{{ '<|im_start|>assistant\\n<think>\\n\\n</think>\\n' + m.content + '<|im_end|>\\n' }}"
        "{% else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}"
        f"{{% endfor %}}{GENERATION}"
        "{% if not enable_thinking %}{{ '<think>\\n\\n</think>\\n' }}{% endif %}",
        CHATML,
        "<|im_start|>assistant\n",
        "<|im_start|>assistant\n<think>\n\n</think>\n",
    ),
    "Nemotron 3": Family(
        "{% set enable_thinking = enable_thinking if enable_thinking is defined else True %}"
        "{{ '<|im_start|>system\\n' }}{% if messages[0].role == 'system' %}"
        "{{ messages[0].content }}{% endif %}{{ '<|im_end|>\\n' }}"
        "{% for m in messages if m.role != 'system' %}{% if m.role == 'assistant' %}"
        "{{ '<|im_start|>assistant\\n<think></think>' + m.content | trim + '<|im_end|>\\n' }}"
        "{% else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}"
        "{% endfor %}{{ '<|im_start|>assistant\\n<think>\\n' if enable_thinking"
        " else '<|im_start|>assistant\\n<think></think>' }}",
        CHATML,
        "assistant\n<think>\n",
        "assistant\n<think></think>",
        opens=True,
    ),
    "LFM2.5": Family(
        "{{ bos_token }}{% set ns = namespace(last=-1) %}{% for m in messages %}"
        "{% if m.role == 'assistant' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}{% set content = m.content %}"
        "{% if m.role == 'assistant' and loop.index0 != ns.last and '</think>' in content %}"
        "{% set content = content.split('</think>')[-1] | trim %}{% endif %}"
        "{{ '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}{% endfor %}"
        f"{GENERATION}",
        "<s> " + CHATML,
        "<|im_start|>assistant\n",
        "<|im_start|>assistant\n",
    ),
    "Granite 3.3": Family(
        "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
        "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}"
        "{% set system = 'You are Granite.' %}{% if thinking %}{% set system = system"
        " + ' Write your thoughts between <think></think>, then a <response></response>.' %}"
        "{% endif %}{% endif %}"
        "{{ '<|start_of_role|>system<|end_of_role|>' + system + '<|end_of_text|>\\n' }}"
        "{% for m in rest %}{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content"
        " + '<|end_of_text|>\\n' }}{% endfor %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}",
        "<|start_of_role|> <|end_of_role|> <|end_of_text|>",
        "<|start_of_role|>assistant<|end_of_role|>",
        "<|start_of_role|>assistant<|end_of_role|>",
    ),
    "Granite 4": Family(
        "{% if messages[0].role != 'system' %}{{ '<|start_of_role|>system<|end_of_role|>"
        "You are a helpful assistant.<|end_of_text|>\\n' }}{% endif %}"
        "{% for m in messages %}{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content"
        " + '<|end_of_text|>\\n' }}{% endfor %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}",
        "<|start_of_role|> <|end_of_role|> <|end_of_text|>",
        "<|start_of_role|>assistant<|end_of_role|>",
        "<|start_of_role|>assistant<|end_of_role|>",
    ),
    "Mistral Small 3": Family(
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ '[SYSTEM_PROMPT]'"
        " + messages[0].content + '[/SYSTEM_PROMPT]' }}{% set rest = messages[1:] %}"
        "{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Roles must alternate') }}{% endif %}"
        "{{ '[INST]' + m.content + '[/INST]' if m.role == 'user' else m.content + '</s>' }}"
        "{% endfor %}",
        "<s> </s> [INST] [/INST] [SYSTEM_PROMPT] [/SYSTEM_PROMPT]",
        "[/INST]",
        "[/INST]",
    ),
    "Mistral Small 4": Family(
        "{% set effort = reasoning_effort | default('none') %}"
        "{% if effort not in ['none', 'high'] %}{{ raise_exception('No such effort') }}{% endif %}"
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ '[SYSTEM_PROMPT]'"
        " + messages[0].content + '[/SYSTEM_PROMPT]' }}{% set rest = messages[1:] %}"
        "{% else %}{% set rest = messages %}{% endif %}"
        "{{ '[MODEL_SETTINGS]{\"reasoning_effort\": \"' + effort + '\"}[/MODEL_SETTINGS]' }}"
        "{% for m in rest %}"
        "{{ '[INST]' + m.content + '[/INST]' if m.role == 'user' else m.content + '</s>' }}"
        "{% endfor %}",
        "<s> </s> [INST] [/INST] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [MODEL_SETTINGS]"
        " [/MODEL_SETTINGS] [THINK] [/THINK]",
        "[/INST]",
        "[/INST]",
        values=lambda thinks: {"reasoning_effort": "high" if thinks else "none"},
    ),
    "DeepSeek V3.1": Family(
        "{% if thinking is not defined %}{% set thinking = false %}{% endif %}{{ bos_token }}"
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
        "{% elif m.role == 'user' %}{{ '<｜User｜>' + m.content }}"
        "{% else %}{{ '<｜Assistant｜></think>' + m.content + '<｜end▁of▁sentence｜>' }}{% endif %}"
        "{% endfor %}{{ '<｜Assistant｜>' + ('<think>' if thinking else '</think>') }}",
        "<s> <think> </think> <｜User｜> <｜Assistant｜> <｜end▁of▁sentence｜>",
        "<｜Assistant｜><think>",
        "<｜Assistant｜></think>",
        opens=True,
    ),
}
DOCUMENT = Document("lease.txt", "  Rent: 4,200 €.\n\n\tTerm; ten years.\n")
CONVERSATIONS = {
    "a question": (Message(U, "Why?"),),
    "a document": (Message(U, "Why?", (DOCUMENT,)),),
    "a system prompt": (Message(S, "Be brief."), Message(U, "Why?", (DOCUMENT,))),
    "turns": (
        Message(S, "Be brief."),
        Message(U, "Why?", (DOCUMENT,)),
        Message(A, "Because.", thinking="They ask why."),
        Message(U, "Since when?"),
    ),
}


Load = Callable[[str], tuple[Any, PromptBuilder]]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    made: dict[str, tuple[Any, PromptBuilder]] = {}

    def loaded(name: str) -> tuple[Any, PromptBuilder]:
        if name not in made:
            family, folder = FAMILIES[name], tmp_path_factory.mktemp("family")
            backend, marks = tiny.byte_tokenizer(), family.marks.split()
            backend.add_special_tokens([mark for mark in marks if "think" not in mark])
            backend.add_tokens([mark for mark in marks if "think" in mark])
            backend.save(str(folder / "tokenizer.json"))
            config = {"tokenizer_class": "PreTrainedTokenizerFast"}
            config |= {"bos_token": "<s>"} if "<s>" in marks else {}
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
            (folder / "config.json").write_text('{"model_type": "llama"}')
            (folder / "chat_template.jinja").write_text(family.template)
            tokenizer = load_tokenizer(Path(folder))
            made[name] = tokenizer, PromptBuilder(tokenizer)
        return made[name]

    return loaded


def plain(message: Message) -> dict[str, str]:
    """The message as passed to transformers."""
    documents = (
        f'<document name="{d.name}">\n{d.text}{DOCUMENT_FOOTER}' for d in message.documents
    )
    found = {"role": str(message.role), "content": "".join(documents) + message.text}
    return found | ({"reasoning_content": message.thinking} if message.thinking else {})


@table("name, said, thinks", product(FAMILIES, CONVERSATIONS, [True, False]))
def test_prompts_have_the_tokens_that_transformers_gives(
    load: Load, name: str, said: str, thinks: bool
) -> None:
    (tokenizer, builder), family = load(name), FAMILIES[name]
    messages = CONVERSATIONS[said]
    expected = tokenizer._tokenizer.apply_chat_template(
        [plain(each) for each in messages],
        tokenize=False,
        add_generation_prompt=True,
        **family.values(thinks),
    )
    prompt = builder.build(messages, thinking=thinks)
    assert tokenizer.decode(prompt.ids.tolist()) == expected
    assert prompt.ids.tolist() == tokenizer.encode(expected, add_special_tokens=False)
    assert expected.endswith(family.on if thinks else family.off)
    assert Reasoning(tokenizer).is_open(prompt.ids.tolist()) == (family.opens and thinks)


def test_ending_reasoning_early_writes_the_models_format(load: Load) -> None:
    closes = {name: Reasoning(load(name)[0]).format for name in ("Gemma 4", "Qwen3.8")}
    assert {name: found and found.closes for name, found in closes.items()} == {
        "Gemma 4": "\n<channel|>",
        "Qwen3.8": "\n</think>\n\n",
    }


@table(
    "name, asked, mapped",
    [
        ("Qwen3.8", "high", "xhigh"),
        ("Qwen3.8", "minimal", "low"),
        ("Qwen3.8", "medium", "medium"),
        ("Mistral Small 4", "minimal", "high"),
        ("GPT-OSS", "low", "low"),
        ("GPT-OSS", "high", "high"),
    ],
)
def test_reasoning_effort_is_mapped_to_a_value_of_the_template(
    load: Load, name: str, asked: str, mapped: str
) -> None:
    tokenizer, builder = load(name)
    prompt = builder.build((Message(U, "Why?"),), values=(("reasoning_effort", asked),))
    expected = tokenizer._tokenizer.apply_chat_template(
        [{"role": "user", "content": "Why?"}],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=True,
        reasoning_effort=mapped,
    )
    assert tokenizer.decode(prompt.ids.tolist()) == expected
