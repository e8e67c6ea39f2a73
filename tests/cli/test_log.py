"""What is written down of failures that cost nothing but time."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli.logs import LOG, log_to


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    logger = logging.getLogger("app")
    before = list(logger.handlers)
    yield
    for handler in set(logger.handlers) - set(before):
        logger.removeHandler(handler)
        handler.close()


def test_a_warning_is_written_down_with_where_it_happened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to(tmp_path / "logs")
    assert not (tmp_path / "logs" / LOG).exists(), "not before there is something to say"
    try:
        raise ValueError("broken on purpose")
    except ValueError as error:
        logging.getLogger("app.engine.memory.cache_pool").warning("it failed", exc_info=error)
    text = (tmp_path / "logs" / LOG).read_text(encoding="utf-8")
    assert "WARNING app.engine.memory.cache_pool: it failed" in text
    assert "ValueError: broken on purpose" in text
    assert capsys.readouterr().err == ""


def test_a_log_that_cannot_be_written_does_not_run_over_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / LOG).mkdir()
    log_to(tmp_path)
    logging.getLogger("app.engine").warning("it failed")
    (tmp_path / "file").write_text("")
    log_to(tmp_path / "file")
    assert capsys.readouterr().err == ""


def test_a_pipe_in_the_place_of_the_log_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOG)
    log_to(tmp_path)
    logging.getLogger("app.engine.memory.cache_pool").warning("it failed")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
