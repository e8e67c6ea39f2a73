"""The pair's tokenizer: byte-level BPE, 6,144 entries, digits in threes, lossless.

Run as a program to train it: `python tokenizer.py OUT_FOLDER`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random

from corpus import LICENCES, training_texts
from skills import made
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.quality.words import ADJECTIVES, NOUNS, PEOPLE, VERBS

VOCABULARY = 6144
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = [END_OF_TEXT, TURN_START, TURN_END]

# A word or number includes the space before it; a punctuation mark does not, so that a phrase has
# the same tokens regardless of what follows its closing quotation mark.
PIECES = r" ?[\p{L}\p{M}]+| ?\p{N}{1,3}|[^\s\p{L}\p{M}\p{N}]|\s+(?!\S)|\s"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def train(texts: list[str]) -> Tokenizer:
    """A byte-level BPE tokenizer trained on these texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def made_up(documents: int = 60, seed: int = 5) -> list[str]:
    """Text of the tasks, every word of their lists, and all numbers below a thousand, often enough
    that each becomes one token."""
    rng = Random(seed)
    texts = [f"({n}) {n}" for n in range(1000) for _ in range(300)]
    words = [*ADJECTIVES, *NOUNS, *VERBS, *PEOPLE]
    texts += [f" {word} {word}\n{word} {word.capitalize()} " for word in words for _ in range(60)]
    for _ in range(documents):
        text, tasks, _ = made(rng, lambda tokens: "", 1500, 800)
        texts += [text, *(f"{task.question}\n{task.answer}" for task in tasks)]
    return texts


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "bos_token": None,
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131072,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def main() -> None:
    """Trains on all prose and a twelfth of the code, and saves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--licences", type=Path, default=LICENCES)
    arguments = parser.parse_args()
    texts = training_texts(arguments.licences)
    prose = texts["licences"] * 5 + texts["topics"] + texts["docstrings"]
    save(train(prose + texts["code"][::12] + made_up()), arguments.out)


if __name__ == "__main__":
    main()
