"""Verifies the digests of all files of an installed model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.models.cache import ModelCache, check_repository, links
from app.models.errors import ModelError
from app.models.manifest import DIGEST, HashingStopped, file_digest, read_manifest
from app.models.progress import Progress, ProgressMeter
from app.models.trash import not_installed


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Counts of files, and one sentence for each fault. `unknown` files have no known digest;
    `completed` is False when it was stopped before the end."""

    intact: int
    unknown: int
    faults: tuple[str, ...]
    completed: bool = True


def verify(
    cache: ModelCache,
    repository: str,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    stopped: Callable[[], bool] = lambda: False,
) -> VerifyResult:
    """Hash every file of a model's snapshot, whichever program downloaded it: a blob's name is its
    digest. After a fault, the next pull checks every file again. ModelError when the model is not
    installed."""
    snapshot = cache.snapshot_folder(check_repository(repository))
    if snapshot is None:
        raise not_installed(repository)
    record = cache.manifest_path(repository, snapshot.name)
    manifest = read_manifest(record)
    expected = {snapshot / file.path: file.digest for file in manifest.files} if manifest else {}
    for path, blob in links(snapshot).items():
        # The name of a blob is its digest; a copied file has none.
        if path not in expected and DIGEST.fullmatch(blob.name):
            expected[path] = blob.name
    sizes = {path: path.stat().st_size for path in expected if path.is_file()}
    meter = ProgressMeter()
    meter.start(0, sum(sizes.values()))
    faults = [f"{path.name!r} is missing" for path in expected if path not in sizes]
    intact = 0

    def on_bytes(count: int) -> None:
        meter.add(count)
        on_progress(meter.read())

    for path in sizes:
        meter.note = f"checking {path.name}"
        try:
            if file_digest(path, expected[path], on_bytes, stopped) == expected[path]:
                intact += 1
            else:
                faults.append(f"{path.name!r} is damaged")
        except HashingStopped:
            return VerifyResult(intact, 0, _sentences(repository, faults), completed=False)
        except OSError as error:
            faults.append(f"{path.name!r} cannot be read ({error.strerror})")
    if faults:
        # Without a manifest, the next pull trusts no file.
        for each in record.parent.glob("*.json"):
            each.unlink(missing_ok=True)
    unknown = sum(path not in expected for path in links(snapshot))
    return VerifyResult(intact, unknown, _sentences(repository, faults))


def _sentences(repository: str, faults: list[str]) -> tuple[str, ...]:
    advice = f"`specchat models pull {repository}` downloads it again"
    return tuple(str(ModelError(fault, advice)) for fault in faults)
