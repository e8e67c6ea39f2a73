"""The demo pair (`embedded`): a small target and a small draft that ship with specchat.

`python -m app.models.embedded` writes the manifest for `integrity`, in the format of `sha256sum`.
"""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from pathlib import Path

from app.protocol.options import EMBEDDED as EMBEDDED
from app.util.assets import assets_path
from app.util.regular_files import open_file, read_text

BUILT_IN = "builtin"
"""Name of the built-in scorer, which needs no model: it scores words with the target's input
embeddings, and meaning with the text encoder that ships with specchat."""

MANIFEST = "SHA256SUMS"
FOLDERS = ("target", "draft")


def pair_path() -> Path:
    return assets_path() / "pair"


def target_path() -> Path:
    return pair_path() / "target"


def draft_path() -> Path:
    return pair_path() / "draft"


def write_manifest(pair: Path) -> Path:
    """Write the SHA-256 of every file of both models to `pair`/SHA256SUMS."""
    manifest = pair / MANIFEST
    lines = [f"{_sha256(pair / name)}  {name}\n" for name in _present(pair)]
    manifest.write_text("".join(lines), encoding="utf-8")
    return manifest


def integrity(pair: Path | None = None) -> tuple[str, ...]:
    """One sentence for each fault of the demo model's files; empty if they are intact.

    Hashes every file, which takes about 0.1 s for 40 MB.
    """
    pair = pair_path() if pair is None else pair
    try:
        expected = _read_manifest(pair / MANIFEST)
    except FileNotFoundError:
        return _faults([f"{MANIFEST} is missing"])
    except (OSError, ValueError):
        return _faults([f"{MANIFEST} cannot be read"])
    present = _present(pair)
    missing = [f"{name} is missing" for name in expected if name not in present]
    added = [f"{name} is not part of it" for name in present if name not in expected]
    altered = [
        f"{name} was modified"
        for name in expected
        if name in present and _sha256(pair / name) != expected[name]
    ]
    return _faults(missing + altered + added)


def _faults(problems: list[str]) -> tuple[str, ...]:
    return tuple(f"The demo model is damaged ({what}): reinstall specchat." for what in problems)


def _present(pair: Path) -> list[str]:
    """Names of both models' files relative to `pair`, without hidden files."""
    files = (path for folder in FOLDERS for path in (pair / folder).rglob("*") if path.is_file())
    return sorted(
        path.relative_to(pair).as_posix() for path in files if not path.name.startswith(".")
    )


def _read_manifest(path: Path) -> dict[str, str]:
    """SHA-256 by file name. Raises ValueError for an invalid line."""
    entries: dict[str, str] = {}
    for line in read_text(path).splitlines():
        digest, separator, name = line.partition("  ")
        if not separator or not name or len(digest) != 64:
            raise ValueError(line)
        entries[name] = digest
    if not entries:
        raise ValueError("no entries")
    return entries


def _sha256(path: Path) -> str:
    """SHA-256 in hexadecimal; empty if the file cannot be read."""
    with suppress(OSError), open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
    return ""


if __name__ == "__main__":
    sys.stdout.write(f"{write_manifest(pair_path())}\n")
