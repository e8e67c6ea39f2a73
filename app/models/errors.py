"""What can be wrong with a model, and with fetching one."""

from __future__ import annotations

import errno

from app.errors import UserError


class ModelError(UserError):
    """A model is not here, or its folder cannot be used."""


class DownloadError(ModelError):
    """A download could not go on. What was fetched is kept."""


def disk_error(error: OSError) -> DownloadError:
    """One sentence for a disk that refuses what a download wants of it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            "The disk is full, and what was fetched so far is kept",
            "free some space and pull again, or set HF_HUB_CACHE to a folder on another disk",
        )
    return DownloadError(
        f"The model cache cannot be written ({error.strerror or type(error).__name__})",
        "check its permissions, or set HF_HUB_CACHE to a folder on another disk",
    )
