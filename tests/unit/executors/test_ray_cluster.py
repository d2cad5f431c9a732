"""Where nobody listens, it is said at once; what a dead Ray left behind is no cluster."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from batchwright.config.cluster import RayCluster
from batchwright.core.errors import JobError
from batchwright.executors import ray_cluster


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_an_address_without_a_cluster_is_refused(form: str, closed_port: int) -> None:
    address = form.format(closed_port)
    with pytest.raises(JobError, match=f"no Ray cluster answers at {address}.*refused"):
        ray_cluster.connect(RayCluster(address=address))


def test_the_note_of_a_dead_ray_is_not_believed(
    tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "ray" / "ray_current_cluster"
    note.parent.mkdir()
    note.write_text(f"127.0.0.1:{closed_port}")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    started: list[float] = []
    monkeypatch.setattr(ray_cluster, "start_here", lambda _, cpus: started.append(cpus))
    ray_cluster.connect(RayCluster(), least_cpus=5)
    assert started == [5]


def test_without_a_note_ray_is_asked_itself(tmp_path: Path) -> None:
    assert ray_cluster._address_left_here({"RAY_TMPDIR": str(tmp_path)}) is None
