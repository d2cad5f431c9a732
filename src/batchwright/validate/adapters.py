"""Which LoRA adapter answers a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchwright.config.sections import Model
from batchwright.core.errors import RowError
from batchwright.core.extras import ADAPTER


class AdapterChoice:
    """Reads the name of a row's adapter out of its own fields.

    Args:
        model: the job's model section; if it has no adapters, no row names one, and the model's
            own name means that none answers.
        requests: whether rows are requests, so that a field `model` says who is to answer. In
            rows that fill a template it is data, of cars for example.
    """

    def __init__(self, model: Model, *, requests: bool) -> None:
        self._known = frozenset(model.adapters)
        self._model = model.name
        self._default = model.adapter
        self._fields = (ADAPTER, "model") if requests else (ADAPTER,)

    def __bool__(self) -> bool:
        return bool(self._known)

    def of_row(self, record: Mapping[str, Any]) -> str | None:
        """The adapter of a row by its columns; None for the model itself. Raises RowError."""
        if not self._known:
            return None
        for field in self._fields:
            if record.get(field) is not None:
                return self.named(record[field], field)
        return self._default

    def named(self, name: Any, field: str = "model") -> str | None:
        """The adapter by the name that a field holds; null is the job's own.

        Raises:
            RowError: `unknown_adapter`, with the names that there are.
        """
        if not self._known or name is None:
            return self._default
        if name == self._model:
            return None
        if isinstance(name, str) and name in self._known:
            return name
        known = ", ".join(sorted(self._known))
        raise RowError(
            "unknown_adapter",
            f"{field} {name!r} is neither the model {self._model} nor one of the adapters: {known}",
        )
