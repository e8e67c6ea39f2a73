"""The comparison of readers of documents: its keys, and how they are counted."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.documents import FOLDER, KINDS, Sample, in_order, letters, read_specchat, samples


def test_words_count_in_their_order_and_without_marks() -> None:
    text = "# One\n\n| two | three |\n\nfour"
    assert in_order(["One", "two three", "Four"], text) == 3
    assert in_order(["three", "two", "four"], text) == 2
    assert in_order(["five"], text) == 0
    # A word that occurs again later does not spoil the words before.
    assert in_order(["a", "b", "c"], "b a b c b") == 3
    assert letters("Łódź-2 الـكتب") == "łódź2الكتب"


def test_there_are_several_files_of_each_kind_and_a_key_for_each() -> None:
    counts = Counter(each.kind for each in samples())
    assert set(counts) == set(KINDS)
    assert min(counts.values()) >= 3
    assert all(each.words for each in samples())


@pytest.mark.real
@pytest.mark.skipif(not FOLDER.exists(), reason="`python -m benchmarks.documents fetch` fetches it")
@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.name)
def test_real_files_are_read(sample: Sample) -> None:
    assert in_order(sample.words, read_specchat(str(sample.path))) >= 0.98 * len(sample.words)
