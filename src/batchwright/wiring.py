"""Names to adapters, loaded when they are used."""

from __future__ import annotations

import importlib
from typing import Any

from batchwright.core.ports import Engine, EngineSettings

ENGINES = {
    "vllm": "batchwright.engines.vllm:VllmEngine",
    "fake": "batchwright.engines.fake:FakeEngine",
}


def engine_target(kind: str) -> str:
    """`module:Class` of an engine, for the process that will load it."""
    return ENGINES[kind]


def make_engine(kind: str) -> Engine:
    """An engine in this process."""
    engine: Engine = load(engine_target(kind))()
    return engine


def load(target: str) -> Any:
    """The object behind `module:name`."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


__all__ = ["ENGINES", "Engine", "EngineSettings", "engine_target", "load", "make_engine"]
