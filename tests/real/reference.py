"""What other implementations compute with the real models: writes reference.npz.

Logits are from torch with transformers, which reads a GGUF file and dequantises it by its own code;
ids are from llama.cpp. Tests only need the file. This writes it again, in three minutes:

    pip install --no-deps --target FOLDER torch==2.13.0 accelerate==1.15.0 sympy==1.14.0 \\
        mpmath==1.4.1 networkx==3.6.1 xllamacpp==2026.10.11549
    PYTHONPATH=FOLDER python -m tests.real.reference
"""

from __future__ import annotations

import json
import sys
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.models.errors import ModelError
from app.models.packaged import gguf_file
from tests.real.packages import CACHE, MODELS
from tests.real.texts import passages

FILE = Path(__file__).with_suffix(".npz")
READ = {"ar": 200, "de": 200, "hi": 200, "ja": 200, "ru": 200, "zh_Hans": 200, "code": 768}
"""Tokens to compute logits for. The longest is longer than Gemma's window."""
_SAMPLE, _STEP = 512, 25
"""Logits that are stored of a position, and the distance of the stored positions."""

Arrays = dict[str, NDArray[Any]]


def digest(ids: Sequence[int]) -> int:
    """Of a text's ids: the ids themselves would be megabytes."""
    return zlib.crc32(np.asarray(ids, "<u4").tobytes())


def positions(ids: Sequence[int] | NDArray[Any]) -> list[int]:
    return list(range(_STEP - 1, len(ids), _STEP))


def _reference(path: Path) -> Arrays:
    encode, logits = _llama_cpp(path), _torch(path)
    texts = passages()
    found: Arrays = {
        f"digests/{group}": np.array([digest(encode(each)) for each in lines], np.uint32)
        for group, lines in texts.items()
    }
    for group, count in READ.items():
        ids = encode("\n".join(texts[group]))[:count]
        rows = logits(ids)
        if "sample" not in found:
            chosen = np.random.default_rng(0).choice(rows.shape[1], _SAMPLE, replace=False)
            found["sample"] = np.sort(chosen).astype(np.uint32)
        found[f"ids/{group}"] = np.array(ids, np.uint32)
        found[f"logits/{group}"] = rows[:, found["sample"]]
        found[f"top/{group}"] = rows.argmax(axis=1).astype(np.uint32)
    return found


def _llama_cpp(path: Path) -> Callable[[str], list[int]]:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx, parameters.n_parallel, parameters.warmup = 512, 1, False
    server = xllamacpp.Server(parameters)

    def encode(text: str) -> list[int]:
        content = {"content": text, "add_special": True, "parse_special": True}
        url = f"{server.listening_address}/tokenize"
        with urllib.request.urlopen(url, json.dumps(content).encode()) as answer:
            return json.load(answer)["tokens"]

    return encode


def _torch(path: Path) -> Callable[[list[int]], NDArray[np.float32]]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    embeddings = model.get_input_embeddings()
    if hasattr(embeddings, "embed_scale"):
        # Gemma was trained with a root that is rounded so, and mlx-lm rounds it in every type.
        embeddings.embed_scale = embeddings.embed_scale.to(torch.bfloat16)

    @torch.no_grad()
    def logits(ids: list[int]) -> NDArray[np.float32]:
        wanted = torch.tensor(positions(ids))
        return model(torch.tensor([ids]), logits_to_keep=wanted).logits[0].numpy()

    return logits


def main() -> int:
    found: Arrays = {}
    try:
        for model in MODELS:
            with gguf_file(model, CACHE) as path:
                found |= {f"{model.name}/{key}": each for key, each in _reference(path).items()}
    except ModelError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    np.savez_compressed(FILE, **found)
    print(f"{FILE.name}: {FILE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
