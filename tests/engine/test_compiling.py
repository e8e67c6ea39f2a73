"""MLX loads compiled kernels from a folder that only this user can write to."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import mlx.core as mx, os, tempfile
from app.engine.backend import mlx_patches
mlx_patches.install()
mlx_patches.install()
print(os.environ["TMPDIR"], tempfile.gettempdir())
mx.eval(mx.compile(lambda x: mx.exp(x) * 2 + x)(mx.ones(3)))
"""


@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken by others"])
def test_a_shared_folder_is_not_where_kernels_are_loaded_from(tmp_path: Path, taken: bool) -> None:
    shared, own = tmp_path / "shared", tmp_path / "shared" / f"specchat-{os.getuid()}"
    shared.mkdir()
    shared.chmod(0o1777)
    if taken:
        own.mkdir()
        own.chmod(0o777)
    ran = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "TMPDIR": str(shared)},
        check=True,
        capture_output=True,
        text=True,
    )
    used, temporary = ran.stdout.split()
    assert temporary == str(shared), "other temporary files stay where they were"
    assert stat.S_IMODE(os.stat(used).st_mode) == 0o700
    assert (Path(used) == own) is not taken
    assert not (shared / "mlx").exists()
    if sys.platform == "linux":
        assert list(Path(used).rglob("*.so"))
