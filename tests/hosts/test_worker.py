"""What a worker does not do even for one that knows its key."""

from __future__ import annotations

import pytest

from app.hosts.wire import connect
from tests.hosts.machines import workers


@pytest.mark.parametrize(
    ("environment", "files"),
    [
        ({"PYTHONPATH": "x"}, {}),
        ({"MLX_RANK": "1"}, {"../../x": "text"}),
        ({}, {"MLX_/../x": "text"}),
    ],
)
def test_only_variables_of_mlx_are_set(environment: dict[str, str], files: dict[str, str]) -> None:
    with workers() as hosts:
        (host,) = hosts.others
        connection = connect(host.address, host.port, host.key)
        start = {"do": "start", "name": "x", "environment": environment, "files": files}
        connection.send(start)
        assert connection.receive(10) == {"problem": "only variables of MLX are accepted"}
        connection.close()
