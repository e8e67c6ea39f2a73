"""Pulling a model when nothing goes wrong, and going on with what is there."""

from __future__ import annotations

from app.models.cache import Cache
from app.models.pull import Outcome
from tests.models import pulls
from tests.models.fake_hub import FakeHub
from tests.models.pulls import NAME, Puller


def test_it_arrives_whole(puller: Puller, cache: Cache, hub: FakeHub) -> None:
    assert puller.pull() is Outcome.FETCHED
    pulls.check_whole(cache, hub)
    pulls.check_clean(cache)
    pulls.check_reports(puller.reports)
    assert puller.reports[-1].done == puller.reports[-1].total > 300_000


def test_again_it_is_here_already(puller: Puller, hub: FakeHub) -> None:
    puller.pull()
    before = len(hub.asked)
    assert puller.pull() is Outcome.HERE
    assert len(hub.asked) == before + 1
    assert NAME in puller.cache.names()
