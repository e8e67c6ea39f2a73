"""Small text encoders with random weights, as checkpoints in Hugging Face's layout.

`python -m tests.engine.encoders`, where PyTorch is installed, writes the vectors that transformers
computes for them to `encoders.json`.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

VECTORS = Path(__file__).with_name("encoders.json")
WIDTH, INNER, HEADS, LAYERS, VOCABULARY, POSITIONS = 24, 40, 3, 4, 300, 200
ROWS, LENGTH = 3, 150
"""Texts that transformers encoded, and the length of the longest; ModernBERT's windows are 64 to
each side."""
_SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {**_SIZES, "model_type": "bert", "pad_token_id": 0, "type_vocab_size": 2},
    "xlm-roberta": {
        **_SIZES,
        "model_type": "xlm-roberta",
        "pad_token_id": 1,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    },
    "modernbert": {
        **_SIZES,
        "model_type": "modernbert",
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
    },
}


def weights_of(config: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Random weights by the names of transformers' models without a head."""
    sizes: dict[str, tuple[int, ...]] = {}
    matrices: dict[str, tuple[int, int]] = {}
    if config["model_type"] == "modernbert":
        sizes["embeddings.tok_embeddings.weight"] = (VOCABULARY, WIDTH)
        norms = ["embeddings.norm", "final_norm"]
        for layer in range(LAYERS):
            at = f"layers.{layer}"
            norms += [f"{at}.attn_norm"] * bool(layer) + [f"{at}.mlp_norm"]
            sizes[f"{at}.attn.Wqkv.weight"] = (3 * WIDTH, WIDTH)
            sizes[f"{at}.attn.Wo.weight"] = (WIDTH, WIDTH)
            sizes[f"{at}.mlp.Wi.weight"] = (2 * INNER, WIDTH)
            sizes[f"{at}.mlp.Wo.weight"] = (WIDTH, INNER)
        sizes |= {f"{name}.weight": (WIDTH,) for name in norms}
    else:
        sizes["embeddings.word_embeddings.weight"] = (VOCABULARY, WIDTH)
        sizes["embeddings.position_embeddings.weight"] = (POSITIONS, WIDTH)
        sizes["embeddings.token_type_embeddings.weight"] = (config["type_vocab_size"], WIDTH)
        norms = ["embeddings.LayerNorm"]
        for layer in range(LAYERS):
            at = f"encoder.layer.{layer}"
            norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
            for name in ("self.query", "self.key", "self.value", "output.dense"):
                matrices[f"{at}.attention.{name}"] = (WIDTH, WIDTH)
            matrices[f"{at}.intermediate.dense"] = (INNER, WIDTH)
            matrices[f"{at}.output.dense"] = (WIDTH, INNER)
        for name, size in (*matrices.items(), *((norm, (WIDTH,)) for norm in norms)):
            sizes |= {f"{name}.weight": size, f"{name}.bias": size[:1]}
    return {name: _random(name, size) for name, size in sizes.items()}


def _random(name: str, size: tuple[int, ...]) -> NDArray[np.float32]:
    found = np.random.default_rng(zlib.crc32(name.encode())).normal(0, 0.3, size)
    if "orm" in name and name.endswith("weight"):
        found += 1
    return found.astype(np.float16).astype(np.float32)


def texts() -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Random token ids (ROWS, LENGTH) of texts of different lengths, and their mask."""
    rng = np.random.default_rng(0)
    lengths = np.linspace(LENGTH, 5, ROWS).astype(int)
    mask = np.arange(LENGTH) < lengths[:, None]
    ids = np.where(mask, rng.integers(5, VOCABULARY, (ROWS, LENGTH)), 0)
    return ids.astype(np.int32), mask


SAMPLE = (
    "The fee is due in March, and the quick brown fox pays it.\n\nNo one can say why it is so.\n"
    "Die Gebühr ist im März fällig; niemand weiß, warum.  Zwei Leerzeichen.\n"
    "def fee(amount):\n    return amount * 1.19  # VAT\n"
    "費用は三月に支払われます。理由は誰も知りません。\n更多信息请参阅附录。费用在三月到期。\n"
    "Плата взимается в марте. Никто не знает почему.\n🙂 e\u0301tude naïve — “quoted” [SEP]\n"
)


def tokenizer(kind: str) -> Tokenizer:
    """A small tokenizer of the kind that this architecture usually has."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer: Any
    if kind == "bert":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special)
        start, end = "[CLS]", "[SEP]"
    elif kind == "xlm-roberta":
        made = Tokenizer(models.Unigram())
        made.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
        )
        trainer = trainers.UnigramTrainer(
            vocab_size=VOCABULARY, special_tokens=special, unk_token="<unk>"
        )
        start, end = "<s>", "</s>"
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        start, end = "<s>", "</s>"
    made.train_from_iterator(SAMPLE.splitlines(keepends=True) * 3, trainer)
    ids = {name: made.token_to_id(name) for name in (start, end)}
    made.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}", special_tokens=list(ids.items())
    )
    return made


def write(folder: Path, kind: str, mean: bool = True, prefix: str = "") -> Path:
    """Write such a checkpoint, with names of weights that begin with `prefix`."""
    import mlx.core as mx

    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIGS[kind]
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer(kind).save(str(folder / "tokenizer.json"))
    weights = {f"{prefix}{name}": mx.array(value) for name, value in weights_of(config).items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    pooling = {"pooling_mode_cls_token": not mean, "pooling_mode_mean_tokens": mean}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def main() -> None:
    import torch  # type: ignore[import-not-found]
    from transformers import AutoConfig, AutoModel

    found = {}
    ids, mask = texts()
    for kind, config in CONFIGS.items():
        built = AutoConfig.for_model(**config)
        model = AutoModel.from_config(built, attn_implementation="eager").eval()
        state = {name: torch.tensor(value) for name, value in weights_of(config).items()}
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert not unexpected, unexpected
        assert all("pooler" in name or "inv_freq" in name for name in missing), missing
        filled = np.where(mask, ids, config["pad_token_id"]).astype(np.int64)
        # RoBERTa's positions depend on where the padding token is.
        with torch.no_grad():
            out = model(torch.tensor(filled), attention_mask=torch.tensor(mask))
        hidden = out.last_hidden_state.numpy()
        whole = (hidden * mask[:, :, None]).sum(axis=1)
        for name, vectors in (("mean", whole), ("cls", hidden[:, 0])):
            unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            found[f"{kind} {name}"] = unit.astype(np.float64).round(6).tolist()
    VECTORS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
