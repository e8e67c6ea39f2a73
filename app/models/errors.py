"""Errors of models and of downloads."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from app.errors import UserError
from app.util.formatting import size


class ModelError(UserError):
    """A model is not installed, or its folder cannot be used."""

    @classmethod
    def unreadable(cls, path: Path, error: OSError) -> Self:
        if isinstance(error, FileNotFoundError):
            return cls(f"There is no file '{path}'", "check the name and the current folder")
        reason = error.strerror or type(error).__name__
        return cls(f"'{path}' cannot be read ({reason})", "check its permissions")


class DownloadError(ModelError):
    """A download stopped. What was downloaded is kept; whoever knows how much it is, says so."""

    def with_saved(self, done: int) -> DownloadError:
        """The same with a clause about what was downloaded, if that is anything."""
        kept = f"; the {size(done)} downloaded so far are saved" if done else ""
        return DownloadError(self.problem + kept, self.advice)


@contextmanager
def disk_errors(outcome: str = "") -> Iterator[None]:
    """Turn every OSError in the block into a DownloadError. `outcome` is a clause that says what
    happens to the data."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(
                "; ".join(filter(None, ("The disk is full", outcome))),
                "free some space and try again, or set HF_HUB_CACHE to a folder on another disk",
            ) from None
        raise DownloadError(
            f"The model cache cannot be written ({error.strerror or type(error).__name__})",
            "check its permissions, or set HF_HUB_CACHE to a folder on another disk",
        ) from None
