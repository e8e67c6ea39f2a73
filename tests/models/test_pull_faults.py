"""Whatever a server, a network or a disk does: one sentence or the whole model, and never a byte
that was not verified where a loader could find it."""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Callable
from email.utils import formatdate

import pytest

from app.models.cache import ModelCache
from app.models.errors import ModelError
from app.models.pull import Outcome
from tests.models import fake_hub as fake
from tests.models import pulls
from tests.models.fake_hub import FakeHub, Fault
from tests.models.pulls import NAME, Puller, check, refused
from tests.tables import slow

REVISION, TREE, SMALL = r"/revision/main", r"/tree/", r"resolve-cache.*/config\.json"
RESOLVE, WEIGHTS = r"/resolve/.*\.safetensors", r"storage:/blobs/"
HERE, ALWAYS = 1, 10_000


def bad(where: str, change: fake.Change, times: int = HERE, skip: int = 0) -> list[Fault]:
    return [Fault(where, change, times, skip)]


def resumed(change: fake.Change, times: int = HERE) -> list[Fault]:
    """Both files of weights are cut, and the next requests, which ask for ranges, are changed."""
    return [Fault(WEIGHTS, fake.cut(30_000), 3), Fault(WEIGHTS, change, times, skip=3)]


# Those after which the same pull still arrives.
PASSING: dict[str, Callable[[FakeHub], list[Fault]]] = {
    "cut before the first byte": lambda hub: bad(WEIGHTS, fake.cut(0)),
    "cut after one byte": lambda hub: bad(WEIGHTS, fake.cut(1)),
    "cut inside the header of the weights": lambda hub: bad(WEIGHTS, fake.cut(7)),
    "cut in the middle": lambda hub: bad(WEIGHTS, fake.cut((1 << 14) + 1)),
    "cut in every connection": lambda hub: bad(WEIGHTS, fake.cut(30_000), 5),
    "reset": lambda hub: bad(WEIGHTS, fake.reset(20_000), 3),
    "reset before the first byte": lambda hub: bad(WEIGHTS, fake.reset(0)),
    "cut inside a small file": lambda hub: bad(SMALL, fake.cut(9)),
    "cut inside the list": lambda hub: bad(TREE, fake.cut(100)),
    "closed without an answer": lambda hub: bad(WEIGHTS, fake.raw(b""), 2),
    "cut inside the headers": lambda hub: bad(WEIGHTS, fake.raw(b"HTTP/1.1 200 OK\r\nContent-Le")),
    "no HTTP": lambda hub: bad(WEIGHTS, fake.raw(b"SSH-2.0-OpenSSH\r\n\r\n")),
    "stalled": lambda hub: bad(WEIGHTS, fake.stall(5_000)),
    "stalled before the first byte": lambda hub: bad(WEIGHTS, fake.stall(0)),
    "stalled list": lambda hub: bad(TREE, fake.stall(10)),
    "slow drip": lambda hub: bad(WEIGHTS, fake.drip(0.05)),
    "200 for 206": lambda hub: resumed(fake.no_ranges(hub), ALWAYS),
    "200 for 206, once": lambda hub: resumed(fake.no_ranges(hub)),
    "one bit wrong": lambda hub: bad(WEIGHTS, fake.flip),
    "one bit wrong in a small file": lambda hub: bad(SMALL, fake.flip),
    "other bytes than asked for": lambda hub: resumed(fake.shifted),
    "206 without a range": lambda hub: resumed(fake.header("Content-Range", "bytes */*")),
    "no length": lambda hub: bad(WEIGHTS, fake.chunked, ALWAYS),
    "no length, ended early": lambda hub: bad(WEIGHTS, fake.chunked_short),
    "a range without length": lambda hub: resumed(fake.chunked, ALWAYS),
    "another commit": lambda hub: bad(RESOLVE, fake.header("X-Repo-Commit", "e" * 40)),
    "429": lambda hub: bad(WEIGHTS, fake.status(429)),
    "429 with seconds": lambda hub: bad(REVISION, fake.status(429, Retry_After="0")),
    "429 with a date": lambda hub: bad(TREE, fake.status(429, Retry_After=formatdate(0))),
    "429 with nonsense": lambda hub: bad(TREE, fake.status(429, Retry_After="soon")),
    "429 with a rate limit": lambda hub: bad(TREE, fake.status(429, RateLimit='"api";r=0;t=0')),
    "500": lambda hub: bad(REVISION, fake.status(500), 2),
    "502 in the middle": lambda hub: bad(WEIGHTS, fake.status(502), 3),
    "503": lambda hub: bad(SMALL, fake.status(503, Retry_After="0")),
    "504": lambda hub: bad(RESOLVE, fake.status(504)),
    "408": lambda hub: bad(TREE, fake.status(408)),
    "an expired signature": lambda hub: bad(WEIGHTS, fake.status(403), 2),
    "not yet at the storage": lambda hub: bad(WEIGHTS, fake.status(404)),
    "an empty answer": lambda hub: bad(WEIGHTS, fake.status(204)),
    "compressed": lambda hub: bad(WEIGHTS, fake.header("Content-Encoding", "gzip")),
    "many things at once": lambda hub: [
        *bad(REVISION, fake.status(503)),
        *bad(TREE, fake.cut(50)),
        *bad(WEIGHTS, fake.cut(10_000), 2),
        *bad(WEIGHTS, fake.flip, 1, skip=3),
        *bad(WEIGHTS, fake.status(429), 1, skip=4),
    ],
}


QUICK = {
    *("cut in the middle", "reset", "stalled", "200 for 206", "one bit wrong"),
    *("other bytes than asked for", "another commit", "429 with seconds"),
    *("an expired signature", "many things at once"),
}
"""These are quick, all others slow."""


@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in PASSING])
def test_it_still_arrives(logged_in: Puller, name: str) -> None:
    hub = logged_in.hub
    hub.faults = PASSING[name](hub)
    assert logged_in.pull() is Outcome.DOWNLOADED
    pulls.check_whole(logged_in.cache, hub)
    check(logged_in)


SAVED = r"(ended early|broke)\); the .+ downloaded so far are saved: "

# Those that end in a sentence with these words.
FAILING: dict[str, tuple[Callable[[FakeHub], list[Fault]], str]] = {
    "cut for ever": (lambda hub: bad(WEIGHTS, fake.cut(5), ALWAYS), SAVED),
    "stalled for ever": (
        lambda hub: bad(WEIGHTS, fake.stall(5), ALWAYS),
        "stalled|does not answer",
    ),
    "200 for 206, always cut": (
        lambda hub: [
            *bad(WEIGHTS, fake.no_ranges(hub), ALWAYS),
            *bad(WEIGHTS, fake.cut(60_000), ALWAYS),
        ],
        "broke",
    ),
    "another file": (lambda hub: bad(WEIGHTS, fake.flip, ALWAYS), "wrong digest twice"),
    "longer than it says": (lambda hub: bad(SMALL, fake.longer), "bytes that the hub lists"),
    "shorter than it says": (lambda hub: bad(SMALL, fake.shorter), "bytes that the hub lists"),
    "too much in a range": (
        lambda hub: resumed(lambda answer, asked: chunked_and_longer(answer)),
        "bytes that the hub lists",
    ),
    "416": (lambda hub: resumed(fake.status(416)), "bytes that the hub lists"),
    "404 for the model": (lambda hub: bad(REVISION, fake.status(404)), "has no model"),
    "404 for the commit": (
        lambda hub: bad(RESOLVE, fake.status(404, X_Error_Code="RevisionNotFound")),
        "changed on the hub",
    ),
    "404 for a file": (
        lambda hub: bad(RESOLVE, fake.status(404, X_Error_Code="EntryNotFound")),
        "changed on the hub",
    ),
    "401": (lambda hub: bad(REVISION, fake.status(401)), "rejects the stored token"),
    "403": (lambda hub: bad(RESOLVE, fake.status(403)), "has no access"),
    "418": (lambda hub: bad(REVISION, fake.status(418)), "status 418"),
    "429 for ever": (lambda hub: bad(TREE, fake.status(429), ALWAYS), "too many requests"),
    "429 for an hour": (
        lambda hub: bad(WEIGHTS, fake.status(429, Retry_After="3600"), ALWAYS),
        "wait 60 minutes",
    ),
    "503 until tomorrow": (
        lambda hub: bad(
            TREE, fake.status(503, Retry_After=formatdate(time.time() + 90_000)), ALWAYS
        ),
        "asks to wait",
    ),
    "500 for ever": (lambda hub: bad(WEIGHTS, fake.status(500), ALWAYS), "status 500"),
    "a login page": (lambda hub: bad(REVISION, fake.body(b"<html>")), "Unexpected response"),
    "a login page for a file": (
        lambda hub: bad(WEIGHTS, fake.body(b"<html>")),
        "bytes that the hub lists",
    ),
    "JSON without a commit": (
        lambda hub: bad(REVISION, fake.body(b'{"sha": 3}')),
        "Unexpected response",
    ),
    "a commit that is a path": (
        lambda hub: bad(REVISION, fake.body(b'{"sha": "../../../etc"}')),
        "Unexpected response",
    ),
    "JSON that is too deep": (
        lambda hub: bad(TREE, fake.body(b"[" * 200_000)),
        "Unexpected response",
    ),
    "a list that is none": (lambda hub: bad(TREE, fake.body(b'{"a": 1}')), "Unexpected response"),
    "a next page elsewhere": (
        lambda hub: bad(TREE, fake.header("Link", f'<{hub.storage}/x>; rel="next"')),
        "Unexpected response",
    ),
    "pages without end": (
        lambda hub: bad(
            TREE,
            fake.body(b"[]", Link=f'<{hub.endpoint}/api/models/org/tiny/tree/x>; rel="next"'),
            ALWAYS,
        ),
        "more than 10,000 files",
    ),
    "redirected in a circle": (
        lambda hub: bad(RESOLVE, lambda answer, asked: circle(answer, asked), ALWAYS),
        "in a circle",
    ),
    "redirected to a file": (
        lambda hub: bad(RESOLVE, fake.redirect("file:///etc/passwd")),
        "an unencrypted address",
    ),
    "redirected to nonsense": (
        lambda hub: bad(RESOLVE, fake.redirect("http://[::1")),
        "Unexpected response",
    ),
    "redirected to a port that is none": (
        lambda hub: bad(RESOLVE, fake.redirect("http://127.0.0.1:99999999/x")),
        "Unexpected response",
    ),
    "redirected to a name that is none": (
        lambda hub: bad(RESOLVE, fake.redirect(f"http://{'a' * 300}/x"), ALWAYS),
        "cannot be reached",
    ),
    "told to wait until a date that is none": (
        lambda hub: bad(
            RESOLVE,
            fake.status(503, Retry_After="Wed, 21 Oct 2099 07:28:00 +99999999999999999999"),
            ALWAYS,
        ),
        "status 503",
    ),
    "redirected to nobody": (
        lambda hub: bad(RESOLVE, fake.redirect("http://127.0.0.1:9/x"), ALWAYS),
        "cannot be reached",
    ),
}


def circle(answer: fake.Answer, asked: fake.Asked) -> None:
    fake.redirect(asked.path)(answer, asked)


def chunked_and_longer(answer: fake.Answer) -> None:
    answer.chunked, answer.body = True, answer.body + b"more"


QUICK |= {
    *("cut for ever", "another file", "longer than it says", "404 for the model"),
    *("404 for a file", "401", "429 for an hour", "a next page elsewhere"),
    *("redirected in a circle", "redirected to a file"),
}


@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in FAILING])
def test_it_ends_in_a_sentence_and_later_goes_on(logged_in: Puller, name: str) -> None:
    hub = logged_in.hub
    make, words = FAILING[name]
    hub.faults = make(hub)
    assert re.search(words, refused(logged_in))
    assert logged_in.cache.snapshot_folder(NAME) is None
    check(logged_in)
    hub.faults = []
    assert logged_in.pull() is Outcome.DOWNLOADED
    pulls.check_whole(logged_in.cache, hub)
    check(logged_in)


# ---------------------------------------------------------------------------- at random


def random_faults(hub: FakeHub, seed: int) -> list[Fault]:
    pick = random.Random(seed)
    kinds: list[Callable[[], fake.Change]] = [
        lambda: fake.cut(pick.randrange(70_000)),
        lambda: fake.reset(pick.randrange(70_000)),
        lambda: fake.status(pick.choice((403, 408, 429, 500, 502, 503, 504))),
        lambda: fake.flip,
        lambda: fake.shifted,
        lambda: fake.chunked_short,
        lambda: fake.no_ranges(hub),
        lambda: fake.raw(pick.randbytes(pick.randrange(60))),
        lambda: fake.stall(pick.randrange(70_000)),
        lambda: fake.longer,
        lambda: fake.header("Content-Encoding", "br"),
        lambda: fake.header("X-Repo-Commit", "f" * 40),
    ]
    where = (REVISION, TREE, SMALL, RESOLVE, WEIGHTS, WEIGHTS, WEIGHTS)
    return [
        Fault(pick.choice(where), pick.choice(kinds)(), pick.randint(1, 3), pick.randrange(4))
        for _ in range(pick.randint(1, 7))
    ]


def survive(puller: Puller, seed: int) -> None:
    """Pull until it arrives, through faults that end."""
    puller.hub.faults = random_faults(puller.hub, seed)
    for _ in range(40):
        with contextlib.suppress(ModelError):
            puller.pull()
            break
        assert puller.cache.snapshot_folder(NAME) is None
        check(puller)
    pulls.check_whole(puller.cache, puller.hub)
    check(puller)


@pytest.mark.parametrize("seed", [0, *map(slow, range(1, 8))])
def test_a_few_random_faults(logged_in: Puller, seed: int) -> None:
    survive(logged_in, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_random_faults(logged_in: Puller, seed: int) -> None:
    survive(logged_in, seed)


def test_the_caches_name_for_a_model_cannot_leave_it(cache: ModelCache) -> None:
    for name in ("../x/y", "a/../b", "/etc/x", "a/b/c", "a--b/c", "", "a/", "a\0/b", "a/b\n"):
        with pytest.raises(ModelError, match="not a model name"):
            Puller(cache, FakeHub()).pull(name)
