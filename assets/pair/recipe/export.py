"""Writes a checkpoint as a folder that `mlx_lm.load` opens, and replaces the old one by renaming.

Example: `python export.py target --tokenizer T --checkpoint C --out FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path

import torch
from hybrid import Hybrid, build, published
from model import SHAPES, saved_weights
from safetensors.torch import save_file
from tokenizer import END_OF_TEXT, TURN_END
from tokenizers import Tokenizer


def export(name: str, tokenizer: Path, checkpoint: Path, out: Path, dtype: str) -> None:
    """Config, weights, tokenizer and chat template, replacing `out` in one step."""
    temporary, old = out.with_name(out.name + ".part"), out.with_name(out.name + ".old")
    for folder in (temporary, old):
        shutil.rmtree(folder, ignore_errors=True)
    temporary.mkdir(parents=True)
    weights, model = saved_weights(checkpoint), build(name)
    if isinstance(model, Hybrid):
        weights = published(weights)
    kind = getattr(torch, dtype)
    tensors = {key: value.to(kind).contiguous() for key, value in weights.items()}
    save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(tokenizer / file, temporary / file)
    ids = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).token_to_id
    stops = {"eos_token_id": [ids(TURN_END), ids(END_OF_TEXT)], "pad_token_id": ids(END_OF_TEXT)}
    (temporary / "model.safetensors").chmod(0o644)
    configs = {
        "config.json": model.shape.config() | {"torch_dtype": dtype, "eos_token_id": ids(TURN_END)},
        "generation_config.json": stops,
    }
    for file, content in configs.items():
        (temporary / file).write_text(json.dumps(content, indent=2) + "\n")
    if out.exists():
        os.rename(out, old)
    os.rename(temporary, out)
    shutil.rmtree(old, ignore_errors=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=(*SHAPES, "hybrid"))
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    a = parser.parse_args()
    export(a.model, a.tokenizer, a.checkpoint, a.out, a.dtype)


if __name__ == "__main__":
    main()
