"""What a machine is offered: the largest pair that reads a long document there."""

from __future__ import annotations

import pytest

from app.models.catalogue import catalogue
from app.models.fit import LEAST, machine_of
from app.models.recommendation import LONG, offer


@pytest.mark.parametrize("gigabytes", [16, 32, 64, 128])
def test_the_offered_pair_reads_a_long_document(gigabytes: int) -> None:
    found = offer(catalogue(), machine_of(gigabytes << 30))
    assert found is not None
    assert found.fit.longest >= LONG
    assert found.draft.sized.weights < found.target.sized.weights
    assert found.download < found.fit.machine.room


def test_more_memory_never_gets_less() -> None:
    found = [offer(catalogue(), machine_of(size << 30)) for size in (16, 24, 32, 48, 64, 128)]
    weights = [each.target.sized.weights for each in found if each is not None]
    assert len(weights) == 6
    assert weights == sorted(weights)


def test_where_no_long_document_can_be_read_the_longest_counts() -> None:
    found = offer(catalogue(), machine_of(8 << 30))
    assert found is not None
    assert LEAST <= found.fit.longest < LONG


def test_a_machine_that_holds_none_is_offered_none() -> None:
    assert offer(catalogue(), machine_of(1 << 30)) is None
    assert offer((), machine_of(32 << 30)) is None
