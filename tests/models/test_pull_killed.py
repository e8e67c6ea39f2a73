"""kill -9 in the middle of `specchat models pull`, and the demo pair over the hub."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.models.cache import ModelCache
from app.models.embedded import draft_path, target_path
from tests.models import pulls
from tests.models.fake_hub import FakeHub, Fault, cut, flip, no_ranges, status
from tests.models.pulls import weights
from tests.patience import PATIENCE

BIG = "org/big"
MEGABYTE = 1_000_000
MOST_TWICE = 16 * MEGABYTE


def big_model(shards: int = 6, size: int = 7 * MEGABYTE) -> dict[str, bytes]:
    files = {p: d for p, d in pulls.tiny_model().items() if "model" not in p}
    return files | {f"model-{n}.safetensors": weights("w", size, n) for n in range(shards)}


def environment(hub: FakeHub, cache: ModelCache) -> dict[str, str]:
    return os.environ | {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_CACHE": str(cache.folder),
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": pulls.TOKEN,
        "NO_PROXY": "127.0.0.1",
    }


def command(hub: FakeHub, cache: ModelCache, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "app", "models", *arguments],
        env=environment(hub, cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def sent(hub: FakeHub) -> int:
    return sum(hub.sent.values())


def until_sent(hub: FakeHub, amount: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120 * PATIENCE
    while sent(hub) < amount and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def killed_and_resumed(hub: FakeHub, cache: ModelCache, kills: list[int]) -> int:
    """Kill after so many more bytes each, then let it finish; the bytes sent beyond the model's."""
    hub.tokens.add(pulls.TOKEN)
    repository = hub.add(BIG, big_model())
    hub.rate = 6 * MEGABYTE
    for amount in kills:
        process = command(hub, cache, "pull", BIG)
        until_sent(hub, sent(hub) + amount, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert cache.snapshot_folder(BIG) is None
        pulls.check_clean(cache)
    hub.rate = 0
    process = command(hub, cache, "resume" if kills else "pull", BIG)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "every file is verified" in err
    pulls.check_whole(cache, hub, BIG)
    pulls.check_clean(cache)
    assert pulls.TOKEN not in out + err
    pulls.check_token(hub, pulls.TOKEN)
    large = [d for d in repository.files.values() if len(d) >= 4096]
    return sent(hub) - sum(map(len, large))


@pytest.mark.slow
def test_killed_in_the_middle(hub: FakeHub, cache: ModelCache) -> None:
    twice = killed_and_resumed(hub, cache, [20 * MEGABYTE])
    assert twice <= MOST_TWICE


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_killed_again_and_again(hub: FakeHub, cache: ModelCache, seed: int) -> None:
    pick = random.Random(seed)
    kills = [pick.randrange(MEGABYTE, 10 * MEGABYTE) for _ in range(4)]
    twice = killed_and_resumed(hub, cache, kills)
    assert twice <= MOST_TWICE * len(kills)


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_fetched(hub: FakeHub, cache: ModelCache) -> None:
    hub.tokens.add(pulls.TOKEN)
    hub.add(BIG, big_model(shards=2))
    hub.rate = MEGABYTE // 5
    process = command(hub, cache, "pull", BIG)
    until_sent(hub, MEGABYTE, process)
    second = command(hub, cache, "pull", BIG)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 2
    assert err == (
        f"specchat: Another specchat is using {BIG}: wait for it, or stop a download with"
        f" `specchat models pause {BIG}`.\n"
    )
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "\nStopped at " in f"\n{err}"
    assert f"`specchat models resume {BIG}` continues." in err
    hub.rate = 0
    process = command(hub, cache, "resume", BIG)
    process.communicate(timeout=60)
    assert process.returncode == 0
    pulls.check_whole(cache, hub, BIG)


LOAD = """
import sys
from app.engine.backend.blas import load_openblas
load_openblas()
from app.models.cache import resolve_model
from app.models.check import check_model
from app.models.tokenizers import same_tokenizer
from app.engine.model.loader import load_one
from mlx_lm.utils import _download
for name in sys.argv[1:]:
    folder = resolve_model(name)
    check_model(folder)
    assert _download(name) == folder, (_download(name), folder)
    loaded = load_one(str(folder), name, None)
    assert loaded.info.parameters > 0
assert same_tokenizer(*map(resolve_model, sys.argv[1:]))
print("loaded")
"""


@pytest.mark.slow
def test_the_embedded_pair_over_the_hub(hub: FakeHub, cache: ModelCache, home: Path) -> None:
    """Five faults and a kill on the way, then our loader and mlx-lm's find it, offline,
    and it answers."""
    hub.tokens.add(pulls.TOKEN)
    hub.add_folder("specchat/target", target_path())
    hub.add_folder("specchat/draft", draft_path())
    hub.faults = [
        Fault("storage:", cut(100_000)),
        Fault("storage:", flip, skip=2),
        Fault("storage:", no_ranges(hub), skip=3),
        Fault("/tree/", status(503, Retry_After="0")),
        Fault("/resolve/", status(429, Retry_After="0")),
    ]
    hub.rate = 4 * MEGABYTE
    process = command(hub, cache, "pull", "specchat/target")
    until_sent(hub, 9 * MEGABYTE, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert cache.snapshot_folder("specchat/target") is None
    hub.rate = 0
    for name in ("specchat/target", "specchat/draft"):
        process = command(hub, cache, "pull", name)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        pulls.check_whole(cache, hub, name)
    pulls.check_clean(cache)
    names = ("specchat/target", "specchat/draft")
    files = [data for name in names for data in hub.repositories[name].files.values()]
    whole = [data for data in files if len(data) >= 4096]
    assert sent(hub) - sum(map(len, whole)) <= MOST_TWICE
    offline = environment(hub, cache) | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, "specchat/target", "specchat/draft"],
        env=offline,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "loaded\n", done.stderr
    pair = ["--target", "specchat/target", "--draft", "specchat/draft"]
    done = subprocess.run(
        [sys.executable, "-m", "app", "ask", *pair, "--full", "--max-tokens", "8", "Hello?"],
        env=offline,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
