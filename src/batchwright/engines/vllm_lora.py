"""LoRA adapters inside vLLM: loaded before the first row, and found by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchwright.core.extras import adapter_of


class LoraAdapters:
    """The adapters of an engine.

    vLLM loads an adapter in the step that first needs it, and a failure there takes the step and
    every row in it along. So all are loaded before the first row: what fails then fails the rows
    that ask for it and no others. Not later: with rows in flight, a loaded adapter could take the
    place of another while rows of that one were computed (vLLM issue 47724).

    Args:
        paths: folder or hub id by name. The ids that vLLM wants follow from the sorted names, so
            they are the same in every worker and after a restart.
    """

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = dict(sorted(paths.items()))
        self._loaded: dict[str, Any] = {}
        self._broken: dict[str, str] = {}

    def load(self, engine: Any) -> None:
        """Have the engine load every adapter once. Raises EngineDeadError."""
        if not self._paths:
            return
        from vllm.lora.request import LoRARequest
        from vllm.v1.engine.exceptions import EngineDeadError

        for number, (name, path) in enumerate(self._paths.items(), start=1):
            request = LoRARequest(name, number, path)
            try:
                engine.add_lora(request)
            except EngineDeadError:
                raise
            # From a core in another process comes a bare Exception with the message of the cause.
            except Exception as error:  # noqa: BLE001
                self._broken[name] = str(error) or type(error).__name__
            else:
                self._loaded[name] = request

    def of_request(self, extras: str) -> Any:
        """The LoRARequest of a row; None if the model itself answers.

        Raises:
            ValueError: there is no such adapter, or vLLM could not load it.
        """
        name = adapter_of(extras)
        if name is None:
            return None
        if name in self._broken:
            raise ValueError(f"vLLM cannot load the adapter {name}: {self._broken[name]}")
        if name not in self._loaded:
            raise ValueError(f"there is no adapter {name}")
        return self._loaded[name]
