"""Settings for all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import settings

from app.engine.backend.blas import load_openblas

# On an M5 and on NVIDIA's GPUs MLX multiplies float32 matrices in TF32 otherwise, to about 1e-3.
os.environ["MLX_ENABLE_TF32"] = "0"
load_openblas()  # before any test module imports MLX: a minute instead of ten

# SPECCHAT_TEST_DEVICE=cpu: MLX computes on the CPU even where there is a GPU. Its default device is
# that of all threads, including the engine's; programs that tests start choose their own. It is set
# before mlx_lm is imported, which makes a stream on that device.
if os.environ.get("SPECCHAT_TEST_DEVICE") == "cpu":
    import mlx.core as mx

    mx.set_default_device(mx.DeviceType.cpu)

# Programs started in the background ignore Ctrl+C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# xdist tells its processes how wide they are; the terminals that tests open know better.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# What is measured of models is kept for the next run, and nothing in the user's own cache.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parents[1] / ".cache" / "tests")

# These machines are noisy: how long an example takes says nothing. `make test-slow` runs the tests
# of hypothesis, too, with --hypothesis-profile=slow.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("slow", deadline=None, max_examples=100)
settings.load_profile("quick")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Short names of cases: a long text is named by its beginning."""
    return f"{val[:30]!a}..." if isinstance(val, str | bytes) and len(val) > 40 else None


def pytest_collection_finish() -> None:
    """Collect garbage less often, and nothing of what is imported: the tests of the screen take 7 %
    less."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """With SPECCHAT_SLOWEST=10, the ten files whose tests took longest."""
    count = int(os.environ.get("SPECCHAT_SLOWEST", "0"))
    reports = [
        report
        for outcome in ("passed", "failed", "error", "skipped", "")  # setups and teardowns: ""
        for report in terminalreporter.stats.get(outcome, [])
        if isinstance(report, pytest.TestReport)
    ]
    if count and reports:
        terminalreporter.section(f"slowest {count} files")
        for line in slowest_files(reports)[:count]:
            terminalreporter.write_line(line)


def slowest_files(reports: Iterable[pytest.TestReport]) -> list[str]:
    """A line for each file, with the seconds and the number of its tests."""
    seconds: Counter[str] = Counter()
    tests: dict[str, set[str]] = {}
    for report in reports:
        file = report.nodeid.partition("::")[0]
        seconds[file] += report.duration
        tests.setdefault(file, set()).add(report.nodeid)
    return [f"{spent:7.1f} s {len(tests[file]):5} {file}" for file, spent in seconds.most_common()]


@pytest.fixture(autouse=True)
def no_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine's user has set changes no test, and no test changes it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-settings"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, also for programs that the test starts: nothing of the user is touched."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DATA", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    return tmp_path
