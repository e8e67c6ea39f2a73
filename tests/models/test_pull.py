"""Pulling a model when the server behaves: what is reused, what is kept, who is let in."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.model_pairs import resolve_pair
from app.models.cache import ModelCache, folder_name, verify
from app.models.embedded import target_path
from app.models.errors import ModelError
from app.models.hub import RetryPolicy, default_hub_settings, retry_after
from app.models.pull import Outcome, Pull
from app.models.unfinished import is_running, pause, unfinished
from tests.engine import encoders
from tests.models import fake_hub as fake
from tests.models import pulls
from tests.models.fake_hub import FakeHub, Fault
from tests.models.pulls import NAME, TOKEN, Puller
from tests.patience import PATIENCE
from tests.tables import table


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20 * PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def running(puller: Puller) -> Iterator[tuple[Pull, list[Outcome]]]:
    """A pull on its own thread, slow enough to be met in the middle."""
    puller.hub.rate = 60_000
    pull = Pull(puller.cache, NAME, puller.settings(), puller.reports.append)
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(pull.run()))
    thread.start()
    wait_until(lambda: pull.progress.done > 40_000)
    yield pull, outcomes
    thread.join(20)
    assert not thread.is_alive()
    puller.hub.rate = 0


def test_it_arrives_whole(puller: Puller, cache: ModelCache, hub: FakeHub) -> None:
    assert puller.pull() is Outcome.DOWNLOADED
    pulls.check_whole(cache, hub)
    pulls.check_clean(cache)
    pulls.check_reports(puller.reports)
    assert puller.reports[-1].done == puller.reports[-1].total > 300_000
    # What is not wanted was not asked for.
    assert not [asked for asked in hub.asked if "README" in asked.path or "onnx" in asked.path]


def test_the_pooling_of_a_text_encoder_arrives(
    puller: Puller, hub: FakeHub, tmp_path: Path
) -> None:
    folder = encoders.write(tmp_path / "encoder", "bert")
    files = (each for each in folder.rglob("*") if each.is_file())
    content = {each.relative_to(folder).as_posix(): each.read_bytes() for each in files}
    hub.add("org/encoder", content | {"onnx/model.onnx": b"x", "2_Dense/config.json": b"{}"})
    assert puller.pull("org/encoder") is Outcome.DOWNLOADED
    found = puller.cache.find("org/encoder")
    assert found is not None
    assert {each.relative_to(found.folder).as_posix() for each in found.folder.rglob("*.*")} == {
        "1_Pooling/config.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert resolve_pair(str(target_path()), "org/encoder", puller.cache).draft_is_encoder


def test_weights_that_the_index_does_not_list_are_not_fetched(
    puller: Puller, hub: FakeHub, cache: ModelCache
) -> None:
    model = pulls.tiny_model()
    more = {"model.safetensors": pulls.weights("c", 90_000, 9), "model-mtp.safetensors": b""}
    more["model-mtp.safetensors"] = pulls.weights("mtp", 50, 10)
    hub.add(NAME, model | more)
    assert puller.pull() is Outcome.DOWNLOADED
    assert puller.pull() is Outcome.UP_TO_DATE
    pulls.check_reports(puller.reports)
    assert not [asked for asked in hub.asked if asked.path.endswith("/model.safetensors")]
    snapshot = cache.snapshot_folder(NAME)
    assert snapshot is not None
    assert sorted(path.name for path in snapshot.glob("*.safetensors")) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model-mtp.safetensors",
    ]
    assert verify(cache, NAME).faults == ()


def test_an_index_of_another_model_does_not_matter(puller: Puller, hub: FakeHub) -> None:
    """Conversions often have the index of their source."""
    names = [name for name in pulls.tiny_model() if name.startswith("model-")]
    model = {name: data for name, data in pulls.tiny_model().items() if name not in names}
    hub.add(NAME, model | {"model.safetensors": pulls.weights("a", 5000)})
    assert puller.pull() is Outcome.DOWNLOADED
    pulls.check_whole(puller.cache, hub)


def test_connections_are_used_again(puller: Puller, hub: FakeHub) -> None:
    """However many files a model has."""
    shards = {f"model-{n}.safetensors": pulls.weights("w", 5000, n) for n in range(60)}
    hub.add(NAME, {p: d for p, d in pulls.tiny_model().items() if "model" not in p} | shards)
    assert puller.pull() is Outcome.DOWNLOADED
    pulls.check_whole(puller.cache, hub)
    asked = [each.server for each in hub.asked]
    assert min(asked.count("hub"), asked.count("storage")) > 60
    assert hub.connections["hub"] <= puller.settings().connections
    assert hub.connections["storage"] <= puller.settings().connections


@table("name", ["org/parts", "org/manifest.json", "org/pause", "org/inspected"])
def test_any_name_of_a_model_will_do(puller: Puller, hub: FakeHub, name: str) -> None:
    hub.add(name, pulls.tiny_model())
    assert puller.pull(name) is Outcome.DOWNLOADED
    pulls.check_whole(puller.cache, hub, name)


def test_more_files_than_a_process_may_open(puller: Puller, hub: FakeHub) -> None:
    resource = pytest.importorskip("resource")
    shards = {f"model-{n}.safetensors": pulls.weights("w", 50, n) for n in range(60)}
    hub.add("org/many", {p: d for p, d in pulls.tiny_model().items() if "model" not in p} | shards)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    here = len(os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (here + 60, limits[1]))
    try:
        assert puller.pull("org/many") is Outcome.DOWNLOADED
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_again_it_is_here_already(puller: Puller, hub: FakeHub) -> None:
    puller.pull()
    before = len(hub.asked)
    assert puller.pull() is Outcome.UP_TO_DATE
    assert len(hub.asked) == before + 1


def test_a_new_commit_fetches_what_has_changed(puller: Puller, hub: FakeHub) -> None:
    puller.pull()
    old = hub.repositories[NAME]
    changed = old.files | {"config.json": b'{"model_type": "qwen3", "new": 1}'}
    hub.add(NAME, changed)
    hub.asked.clear()
    assert puller.pull() is Outcome.DOWNLOADED
    pulls.check_whole(puller.cache, hub)
    assert {Path(asked.path).name for asked in hub.asked if "resolve" in asked.path} == {
        "config.json"
    }
    assert not [asked for asked in hub.asked if asked.server == "storage"]
    assert (
        puller.cache.repository_folder(NAME) / "snapshots" / old.commit / "config.json"
    ).exists()


def test_a_commit_that_changes_between_two_pulls(puller: Puller, hub: FakeHub) -> None:
    hub.faults = [Fault("model-00002", fake.status(418), 100)]
    with pytest.raises(ModelError):
        puller.pull()
    new = pulls.tiny_model() | {"model-00002-of-00002.safetensors": pulls.weights("b", 9000, 7)}
    hub.add(NAME, new)
    hub.faults, hub.sent = [], {}
    assert puller.pull() is Outcome.DOWNLOADED
    pulls.check_whole(puller.cache, hub)
    pulls.check_reports(puller.reports)


def test_another_programs_download_is_used_once_it_was_checked(
    puller: Puller, hub: FakeHub, cache: ModelCache
) -> None:
    """One blob is right, one is not, one is half there."""
    repository, blobs = hub.repositories[NAME], cache.repository_folder(NAME) / "blobs"
    blobs.mkdir(parents=True)
    first, second = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    (blobs / repository.digest(first)).write_bytes(repository.files[first])
    (blobs / repository.digest(second)).write_bytes(bytes(len(repository.files[second])))
    (blobs / repository.digest("config.json")).write_bytes(b"{")
    assert puller.pull() is Outcome.DOWNLOADED
    pulls.check_whole(cache, hub)
    pulls.check_clean(cache)
    assert not [asked for asked in hub.asked if first in asked.path]


def test_on_a_disk_without_symbolic_links_the_files_themselves_are_there(
    puller: Puller, cache: ModelCache, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, replace = os.symlink, os.replace

    def refuse(source: str, target: str | Path, *more: object) -> None:
        if str(target).startswith(str(cache.folder)):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        link(source, target)

    monkeypatch.setattr(os, "symlink", refuse)
    # Two files of the same content, and the power fails while they are put in place.
    hub.add(NAME, pulls.tiny_model() | {"special_tokens_map.json": b"{}"})

    def fail(source: Path, target: Path) -> None:
        replace(source, target)
        if target.parent.name == hub.repositories[NAME].commit:
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(ModelError):
            puller.pull()
    hub.asked.clear()
    assert puller.pull() is Outcome.DOWNLOADED
    assert not [asked for asked in hub.asked if "resolve" in asked.path], "all was there"
    assert puller.pull() is Outcome.UP_TO_DATE

    def check() -> None:
        snapshot = cache.snapshot_folder(NAME)
        assert snapshot is not None
        for path, content in hub.repositories[NAME].files.items():
            if path not in pulls.SKIPPED:
                assert (snapshot / path).read_bytes() == content
                assert not (snapshot / path).is_symlink()
        result = verify(cache, NAME)
        assert (result.faults, result.unknown) == ((), 0)

    check()
    # Another commit with the same weights: they are copied.
    hub.add(NAME, pulls.tiny_model() | {"tokenizer_config.json": b'{"a": 1}'})
    hub.asked.clear()
    assert puller.pull() is Outcome.DOWNLOADED
    assert not [asked for asked in hub.asked if ".safetensors" in asked.path]
    check()
    installed = cache.find(NAME)
    assert installed is not None
    assert installed.older > 300_000


def test_another_programs_snapshot_is_completed(
    puller: Puller, hub: FakeHub, cache: ModelCache
) -> None:
    repository, folder = hub.repositories[NAME], cache.repository_folder(NAME)
    snapshot = folder / "snapshots" / repository.commit
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(repository.commit)
    (snapshot / "config.json").write_bytes(b"{}")
    (snapshot / "merges.txt").symlink_to("../../blobs/nowhere")
    assert puller.pull() is Outcome.DOWNLOADED
    pulls.check_whole(cache, hub)


def test_huggingface_hub_finds_it(puller: Puller, cache: ModelCache, hub: FakeHub) -> None:
    from huggingface_hub import scan_cache_dir, snapshot_download

    puller.pull()
    found = snapshot_download(NAME, cache_dir=cache.folder, local_files_only=True)
    assert Path(found) == cache.snapshot_folder(NAME)
    (repository,) = scan_cache_dir(cache.folder).repos
    (revision,) = repository.revisions
    assert (repository.repo_id, revision.commit_hash) == (NAME, hub.repositories[NAME].commit)
    assert revision.refs == {"main"}


def test_huggingface_hubs_own_download_is_found(
    puller: Puller, cache: ModelCache, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has fetched is not fetched again."""
    from huggingface_hub import constants, snapshot_download

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    patterns = ["*.json", "model*.safetensors", "*.txt", "*.jinja"]
    there = snapshot_download(
        NAME, cache_dir=cache.folder, endpoint=hub.endpoint, allow_patterns=patterns, token=False
    )
    assert cache.snapshot_folder(NAME) == Path(there)
    hub.asked.clear()
    assert puller.pull() is Outcome.DOWNLOADED
    assert not [asked for asked in hub.asked if "resolve" in asked.path]
    pulls.check_whole(cache, hub)


# ---------------------------------------------------------------------------- stop and go on


def test_a_stop_keeps_what_was_fetched(puller: Puller, hub: FakeHub) -> None:
    with running(puller) as (pull, outcomes):
        before = time.monotonic()
        pull.stop()
    assert outcomes == [Outcome.STOPPED]
    assert time.monotonic() - before < 10 * PATIENCE
    (left,) = unfinished(puller.cache)
    assert left.repository == NAME
    assert not left.running
    assert left.done >= 40_000
    assert puller.cache.snapshot_folder(NAME) is None
    before_bytes = sum(hub.sent.values())
    assert puller.pull() is Outcome.DOWNLOADED
    pulls.check_whole(puller.cache, hub)
    assert puller.reports[-1].total - left.done <= sum(hub.sent.values()) - before_bytes
    assert unfinished(puller.cache) == []


def test_a_stop_in_a_stall_does_not_wait_for_its_end(puller: Puller, hub: FakeHub) -> None:
    hub.faults = [Fault("storage:", fake.stall(3), 100)]
    patient = dataclasses.replace(pulls.QUICK, stall_timeout=60.0)
    pull = Pull(puller.cache, NAME, puller.settings(patience=patient))
    thread = threading.Thread(target=pull.run)
    thread.start()
    wait_until(lambda: any(asked.server == "storage" for asked in hub.asked))
    pull.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_pause_from_elsewhere(puller: Puller, hub: FakeHub) -> None:
    with pytest.raises(ModelError, match="No download"):
        pause(puller.cache, NAME)
    with running(puller) as (_, outcomes):
        assert [each.running for each in unfinished(puller.cache)] == [True]
        pause(puller.cache, NAME)
    assert outcomes == [Outcome.PAUSED]
    assert puller.pull() is Outcome.DOWNLOADED
    pulls.check_whole(puller.cache, hub)


def test_a_second_one_is_told_so(puller: Puller) -> None:
    with running(puller) as (pull, _):
        with pytest.raises(ModelError, match=f"using {NAME}: wait for it, or stop"):
            Pull(puller.cache, NAME, puller.settings()).run()
        pull.stop()


@pytest.mark.parametrize("damage", ["data", "short", "long", "manifest"])
def test_what_lies_there_is_not_trusted(puller: Puller, hub: FakeHub, damage: str) -> None:
    with running(puller) as (pull, _):
        pull.stop()
    folder = puller.cache.download_folder(NAME)
    partial = [each for each in (folder / "parts").iterdir() if not each.suffix]
    assert any(data.stat().st_size for data in partial)
    for data in partial:
        if damage == "data":
            data.write_bytes(os.urandom(data.stat().st_size))
        elif damage == "short":
            data.write_bytes(b"")
        elif damage == "long":
            data.write_bytes(bytes(1_000_000))
    if damage == "manifest":
        (folder / "manifest.json").write_text("[1")
    assert puller.pull() is Outcome.DOWNLOADED
    pulls.check_whole(puller.cache, hub)


# ---------------------------------------------------------------------------- who is let in


def test_a_gated_model_without_a_token(puller: Puller, hub: FakeHub) -> None:
    hub.gated.add(NAME)
    with pytest.raises(ModelError, match="hf auth login"):
        puller.pull()


def test_a_gated_model_with_a_token(puller: Puller, hub: FakeHub) -> None:
    hub.gated.add(NAME)
    hub.tokens.add(TOKEN)
    puller.token = TOKEN
    assert puller.pull() is Outcome.DOWNLOADED
    pulls.check_token(hub, TOKEN)
    assert [asked for asked in hub.asked if asked.authorization]
    for path in puller.cache.folder.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes()


@pytest.mark.parametrize("elsewhere", ["storage", "localhost"])
def test_the_token_stays_at_the_hub(puller: Puller, hub: FakeHub, elsewhere: str) -> None:
    """Another port is another host, and so is another name of the same machine."""
    hub.tokens.add(TOKEN)
    puller.token = TOKEN
    there = hub.storage if elsewhere == "storage" else hub.endpoint.replace("127.0.0.1", elsewhere)
    hub.faults = [Fault("/resolve/.*config.json", fake.redirect(f"{there}/elsewhere"), 100)]
    with pytest.raises(ModelError):
        puller.pull()
    told = {asked.authorization for asked in hub.asked if asked.path == "/elsewhere"}
    assert told == {None}


@table("token", ["hf_bad\nHeader: x", "hf bad", "hf_é"])
def test_a_damaged_token_is_not_shown(puller: Puller, token: str) -> None:
    puller.token = token
    with pytest.raises(ModelError, match="token is damaged") as caught:
        puller.pull()
    assert token not in str(caught.value)
    assert TOKEN not in repr(dataclasses.replace(puller.settings(), token=TOKEN))


def test_a_model_that_is_not_there(puller: Puller) -> None:
    with pytest.raises(ModelError, match="has no model org/other"):
        puller.pull("org/other")


@table(
    "endpoint",
    [
        *("", "hub", "ftp://hub", "http://", "http://[::1"),
        *("http://hub:99999999", "http://hub:-1", "http://hub:0", "http://hub:port"),
    ],
)
def test_an_endpoint_that_is_none(puller: Puller, endpoint: str) -> None:
    settings = dataclasses.replace(puller.settings(), endpoint=endpoint)
    with pytest.raises(ModelError, match="HF_ENDPOINT is not a web address"):
        puller.pull(settings=settings)


@table("proxy", ["ftp://proxy", "http://[::1", "http://proxy:x"])
def test_a_proxy_that_is_none(puller: Puller, monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(ModelError, match="proxy in the environment is not a web address"):
        puller.pull()


def test_nobody_at_the_endpoint(puller: Puller) -> None:
    settings = dataclasses.replace(puller.settings(), endpoint="http://127.0.0.1:9")
    with pytest.raises(ModelError, match=r"attempts \(the server cannot be reached\): check"):
        puller.pull(settings=settings)


def test_the_settings_are_those_of_huggingface_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "https://mirror.example")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: TOKEN)
    settings = default_hub_settings()
    assert (settings.endpoint, settings.token) == ("https://mirror.example", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    assert default_hub_settings().token is None
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        default_hub_settings()


def test_a_token_store_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def broken() -> str:
        raise RuntimeError(f"cannot refresh {TOKEN}")

    monkeypatch.setattr(huggingface_hub, "get_token", broken)
    with pytest.raises(ModelError, match="cannot be read") as caught:
        default_hub_settings()
    assert TOKEN not in str(caught.value)


def test_the_token_is_in_no_log(
    puller: Puller, hub: FakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    hub.tokens.add(TOKEN)
    puller.token = TOKEN
    puller.pull()
    assert "resolve" in caplog.text
    assert TOKEN not in caplog.text


def test_the_hubs_wish_to_wait_is_honoured(puller: Puller, hub: FakeHub) -> None:
    hub.faults = [Fault("/tree/", fake.status(503, Retry_After="1"))]
    patient = dataclasses.replace(pulls.QUICK, max_wait=2.0)
    assert puller.pull(settings=puller.settings(patience=patient)) is Outcome.DOWNLOADED
    first, second = (asked.at for asked in hub.asked if "/tree/" in asked.path)
    assert second - first >= 1
    assert any("status 503, retrying in 1 s" in report.note for report in puller.reports)


def test_waits_double_up_to_the_longest() -> None:
    patience = RetryPolicy(backoff=1.0, max_wait=20.0)
    for failures, about in ((1, 1), (2, 2), (4, 8), (9, 20)):
        assert 0.75 * about <= patience.delay(failures, None) <= min(1.25 * about, 20)
    assert patience.delay(1, 15.0) == 15.0
    assert retry_after({"retry-after": "120"}) == 120
    assert retry_after({"retry-after": formatdate(time.time() + 60)}) == pytest.approx(60, abs=5)
    assert retry_after({"ratelimit": '"resolvers";r=0;t=55'}) == 55
    assert retry_after({"ratelimit": '"resolvers";r=10;t=55'}) is None
    assert retry_after({"retry-after": "-1"}) is None


@table(
    "date",
    [
        "Wed, 21 Oct 2099 07:28:00 +99999999999999999999",
        "Wed, 21 Oct 99999999999 07:28:00 GMT",
        "Wed, 21 Oct 2015 999999999999999999999999:28:00 GMT",
        "Wed, 99 Oct 2015 07:28:00 GMT",
    ],
)
def test_a_date_to_wait_for_that_no_calendar_has(date: str) -> None:
    assert retry_after({"retry-after": date}) is None


@given(
    st.text(max_size=60) | st.from_regex(r"\w{3}, \d+ Oct \d+ \d+:\d+:\d+ [+-]\d+", fullmatch=True)
)
def test_whatever_a_server_asks_for_is_seconds_or_nothing(value: str) -> None:
    wait = retry_after({"retry-after": value})
    assert wait is None or wait >= 0


def test_the_manifest_says_what_was_verified(
    puller: Puller, hub: FakeHub, cache: ModelCache
) -> None:
    puller.pull()
    repository = hub.repositories[NAME]
    record = json.loads(cache.manifest_path(NAME, repository.commit).read_text())
    assert {each["path"]: each["digest"] for each in record["files"]} == {
        path: repository.digest(path) for path in repository.files if path not in pulls.SKIPPED
    }
    assert folder_name(NAME) == "models--org--tiny"
    assert is_running(cache, NAME) is False
