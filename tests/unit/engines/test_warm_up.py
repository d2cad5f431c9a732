from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from batchwright.core.errors import EngineError
from batchwright.core.ports import EngineSettings
from batchwright.engines import warm_up
from batchwright.engines.warm_up import graph_key, one_first, start_gate


def settings(kind: str = "vllm", **options: Any) -> EngineSettings:
    return EngineSettings(kind, "model", 8, 512, options=options)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "is_cpu_build", lambda: False)
    monkeypatch.setattr(warm_up.metadata, "version", lambda _: "0.32.0")


def test_the_first_is_alone_and_the_others_are_together(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []
    up = threading.Barrier(3, timeout=20)
    first_may_end = threading.Event()

    def start(number: int) -> None:
        with one_first(tmp_path, "key", 20):
            inside.append(number)
            if (tmp_path / "key.warm").is_file():
                up.wait()  # only passed if all three are inside at the same time
            else:
                assert first_may_end.wait(20)
                most.append(len(inside))

    threads = [threading.Thread(target=start, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    first_may_end.set()
    for thread in threads:
        thread.join(20)
    assert most == [1]
    assert not up.broken


def test_if_the_first_fails_the_next_takes_its_place(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), one_first(tmp_path, "key", 1):
        raise RuntimeError("it died")
    assert not (tmp_path / "key.warm").exists()
    with one_first(tmp_path, "key", 1):
        pass
    assert (tmp_path / "key.warm").exists()


def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    with (
        one_first(tmp_path, "key", 1),
        pytest.raises(EngineError, match=r"compiling for 0\.1 s"),
        one_first(tmp_path, "key", 0.1),
    ):
        pass


def test_only_engines_that_compile_wait(on_gpu: None, tmp_path: Path) -> None:
    environ = {"VLLM_CACHE_ROOT": str(tmp_path)}
    assert start_gate(settings("fake"), environ, 1) is nullcontext
    assert start_gate(settings(enforce_eager=True), environ, 1) is nullcontext
    off = {**environ, "VLLM_DISABLE_COMPILE_CACHE": "1"}
    assert start_gate(settings(), off, 1) is nullcontext
    with start_gate(settings(), environ, 1)():
        pass
    assert (tmp_path / "batchwright" / f"{graph_key(settings())}.warm").is_file()


def test_engines_with_other_settings_have_a_cache_of_their_own(on_gpu: None) -> None:
    assert graph_key(settings()) == graph_key(settings())
    assert graph_key(settings()) != graph_key(settings(tensor_parallel_size=2))
