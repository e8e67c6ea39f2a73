"""Converts the tokenizer in a GGUF file to tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from app.extras.gguf.architectures import OTHER
from app.extras.gguf.file import GgufError, GgufFile

_MAX_VOCABULARY, _MAX_TOKEN = 1_000_000, 4096


class TokenKind(IntEnum):
    """Kinds of tokens, with the values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# How texts are split before merging, by `tokenizer.ggml.pre`. Patterns are applied in order, each
# to the pieces that earlier ones left. They are those of the models' own tokenizers.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CAPITALISED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_TEKKEN = "|".join((*_CAPITALISED, r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"))
_GPT4O = "|".join(
    (
        *(words + r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?" for words in _CAPITALISED),
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
_HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_NEWER = "\u0560-\u0588\u10c7\u10cd\u10d0-\u10ff\u1c80-\u1c88\u2d00-\u2d2d\ua790-\uabff"
_CASED = rf"(?:(?![{_NEWER}])[\p{{Lu}}\p{{Ll}}\p{{Lt}}])"
"""Letters that have case, without those of newer Unicode versions."""
_PUNCTUATION = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_SEED = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MERGED_WHOLE = (
    *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    "tekken",
)
"""Tokenizers that encode a word of the vocabulary as one token even without merges for it, and that
put a begin token before texts unless the file says otherwise."""
_PATTERNS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral"): (_LLAMA3,),
    ("midm-2.0", "lfm2", "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"): (_LLAMA3,),
    ("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "kormo"): (_QWEN2,),
    ("f2llmv2", "solar-open", "grok-2"): (_QWEN2,),
    ("qwen35",): (_QWEN35,),
    ("minicpm5",): (r"\p{N}{1,3}", _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")),
    ("tekken",): (_TEKKEN,),
    ("gpt-4o", "llama4", "kanana2", "minimax-m2"): (_GPT4O,),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm"): _DEEPSEEK3,
    ("deepseek-coder",): (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}"),
    ("deepseek-llm",): (
        r"[\r\n]",
        rf"\s?{_CASED}+",
        rf"\s?{_PUNCTUATION}+",
        r"\s+$",
        _HAN,
        r"\p{N}",
    ),
    ("falcon",): (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    ("bloom", "poro-chat", "gpt3-finnish"): (_BLOOM,),
    ("viking",): (_BLOOM, r"\p{N}"),
    ("seed-coder",): (_SEED,),
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"): (r"\p{N}", _GPT2),
    ("minerva-7b", "mellum2"): (r"\p{N}", _GPT2),
    ("gpt-2", "gpt2", "default", "phi-2", "mpt", "olmo", "jina-en", "jais"): (_GPT2,),
    ("trillion", "granite-docling", "exaone4", "gigachat", "a.x-4.0", "mellum"): (_GPT2,),
}
_BY_NAME = {name: patterns for names, patterns in _PATTERNS.items() for name in names}
_NFC = ("qwen2", "deepseek-r1-qwen", "qwen35")


def tokenizer_files(gguf: GgufFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of tokenizer.json and tokenizer_config.json. Raises GgufError if the file has no
    tokenizer, or one that specchat cannot convert."""
    tokens, kinds = _vocabulary(gguf)
    model = gguf.metadata.text("tokenizer.ggml.model")
    if model == "gpt2":
        content = _byte_level(gguf, tokens)
    elif model == "llama":
        content = _sentencepiece(gguf, tokens, kinds)
    else:
        raise GgufError(f"'{gguf.paths[0]}' has a tokenizer of the kind {str(model)[:40]!r}", OTHER)
    content |= {"version": "1.0", "truncation": None, "padding": None}
    content["added_tokens"] = _added(tokens, kinds)
    content["post_processor"] = _post_processor(gguf, tokens, content["post_processor"])
    return content, _config(gguf, tokens)


def special_ids(gguf: GgufFile) -> dict[str, Any]:
    """Special token ids for config.json: the begin token, and tokens that end an answer."""
    ends = [_special(gguf, name) for name in ("eos", "eot", "eom")]
    found = [*dict.fromkeys(each for each in ends if each is not None)]
    begin = _special(gguf, "bos")
    ids: dict[str, Any] = {} if begin is None else {"bos_token_id": begin}
    return ids | ({"eos_token_id": found if len(found) > 1 else found[0]} if found else {})


def has_template(gguf: GgufFile) -> bool:
    return gguf.metadata.text("tokenizer.chat_template") is not None


def _vocabulary(gguf: GgufFile) -> tuple[list[str], list[int]]:
    tokens = gguf.metadata.texts("tokenizer.ggml.tokens")
    if not tokens:
        raise GgufError(f"'{gguf.paths[0]}' has no tokenizer", OTHER)
    if len(tokens) > _MAX_VOCABULARY or max(map(len, tokens)) > _MAX_TOKEN:
        raise GgufError(f"'{gguf.paths[0]}' has a larger vocabulary than any model", OTHER)
    if len(set(tokens)) < len(tokens):
        tokens = _distinct(tokens)
    kinds = gguf.metadata.numbers("tokenizer.ggml.token_type")
    if kinds is None:
        return tokens, [TokenKind.NORMAL] * len(tokens)
    if len(kinds) != len(tokens):
        raise GgufError(f"'{gguf.paths[0]}' does not state the kinds of its tokens", OTHER)
    return tokens, [int(each) for each in kinds]


def _distinct(tokens: list[str]) -> list[str]:
    """Rename duplicates, because names must be unique. Unused padding tokens may share a name."""
    seen: set[str] = set()
    distinct = []
    for number, token in enumerate(tokens):
        name = token if token not in seen else f"<unused duplicate {number}>"
        seen.add(name)
        distinct.append(name)
    return distinct


def _special(gguf: GgufFile, name: str) -> int | None:
    """The id of a special token, such as `bos`."""
    value = gguf.metadata.integer(f"tokenizer.ggml.{name}_token_id")
    count = len(gguf.metadata.texts("tokenizer.ggml.tokens") or ())
    if value is not None and not 0 <= value < count:
        raise GgufError(f"'{gguf.paths[0]}' names the token {value} of {count:,}", OTHER)
    return value


# ---------------------------------------------------------------------------- byte-level BPE


def _byte_level(gguf: GgufFile, tokens: list[str]) -> dict[str, Any]:
    merges = gguf.metadata.texts("tokenizer.ggml.merges")
    if merges is None:
        raise GgufError(f"'{gguf.paths[0]}' has a tokenizer without merges", OTHER)
    name = _pre(gguf)
    return {
        "normalizer": {"type": "NFC"} if name in _NFC else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _splitters(gguf, name)},
        "post_processor": _byte_level_part(add_prefix_space=False, trim_offsets=False),
        "decoder": _byte_level_part(),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": name in _MERGED_WHOLE,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": _known_merges(gguf, merges, set(tokens)),
        },
    }


def _known_merges(gguf: GgufFile, merges: list[str], tokens: set[str]) -> list[list[str]]:
    pairs = [merge.split(" ") for merge in merges]
    for pair in pairs:
        if len(pair) != 2 or not tokens.issuperset((*pair, "".join(pair))):
            raise GgufError(f"'{gguf.paths[0]}' has the merge {' '.join(pair)[:40]!r}", OTHER)
    return pairs


def _pre(gguf: GgufFile) -> str:
    return gguf.metadata.text("tokenizer.ggml.pre") or "default"


def _splitters(gguf: GgufFile, name: str) -> list[dict[str, Any]]:
    if name not in _BY_NAME:
        raise GgufError(f"'{gguf.paths[0]}' splits texts by the unknown rule {name[:40]!r}", OTHER)
    splits = [
        {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
        for each in _BY_NAME[name]
    ]
    return [*splits, _byte_level_part(add_prefix_space=False, use_regex=False)]


def _byte_level_part(
    *, add_prefix_space: bool = True, trim_offsets: bool = True, use_regex: bool = True
) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": trim_offsets,
        "use_regex": use_regex,
    }


# ---------------------------------------------------------------------------- SentencePiece

_SPACE = "▁"


def _sentencepiece(gguf: GgufFile, tokens: list[str], kinds: list[int]) -> dict[str, Any]:
    """Convert SentencePiece's BPE, which merges the neighbours whose joint token has the highest
    score. That equals a BPE whose merges are all ways to build a token from two, sorted by the
    token's score."""
    scores = gguf.metadata.numbers("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise GgufError(f"'{gguf.paths[0]}' has a tokenizer without scores", OTHER)
    unknown = _special(gguf, "unknown")
    prefix = gguf.metadata.flag("tokenizer.ggml.add_space_prefix") is not False
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    before = {"type": "Prepend", "prepend": _SPACE}
    back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [before, spaces] if prefix else [spaces]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
            + ([strip] if prefix else []),
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None if unknown is None else tokens[unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": TokenKind.BYTE in kinds,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": _merges_by_score(tokens, kinds, scores.tolist()),
        },
    }


def _merges_by_score(
    tokens: list[str], kinds: list[int], scores: list[float]
) -> list[tuple[str, str]]:
    usable = {
        token: number
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (TokenKind.NORMAL, TokenKind.USER_DEFINED)
    }
    found = [
        (-scores[number], usable[token[:at]], usable[token[at:]], token[:at], token[at:])
        for token, number in usable.items()
        if kinds[number] == TokenKind.NORMAL
        for at in range(1, len(token))
        if token[:at] in usable and token[at:] in usable
    ]
    found.sort(key=lambda each: each[:3])
    return [(left, right) for *_, left, right in found]


# ---------------------------------------------------------------------------- special tokens


def _added(tokens: Iterable[str], kinds: Iterable[int]) -> list[dict[str, Any]]:
    """Tokens that are recognised in a text before it is split."""
    return [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == TokenKind.CONTROL,
        }
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (TokenKind.CONTROL, TokenKind.USER_DEFINED)
    ]


def _post_processor(
    gguf: GgufFile, tokens: list[str], own: dict[str, Any] | None
) -> dict[str, Any] | None:
    """A post-processor that puts the begin token before texts, if the model needs one."""
    number, adds = _special(gguf, "bos"), gguf.metadata.flag("tokenizer.ggml.add_bos_token")
    if adds is None:
        llama = gguf.metadata.text("tokenizer.ggml.model") == "llama"
        adds = llama or _pre(gguf) in _MERGED_WHOLE
    if number is None or not adds:
        return own
    token = tokens[number]
    special = {"SpecialToken": {"id": token, "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [special, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            special,
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }
    return template if own is None else {"type": "Sequence", "processors": [own, template]}


def _config(gguf: GgufFile, tokens: list[str]) -> dict[str, Any]:
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.metadata.integer(".context_length"),
    }
    for name, short in names.items():
        number = _special(gguf, name)
        if number is not None:
            config[f"{short}_token"] = tokens[number]
    if has_template(gguf):
        config["chat_template"] = gguf.metadata.text("tokenizer.chat_template")
    return config
