"""An object of a Parquet column, which knows the keys that are null."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


class Struct(dict[str, Any]):
    """The keys of a Parquet struct that are not null.

    Parquet gives every struct all keys that any struct of the column has. As messages and tools
    must not show that padding, it is left out; to a template it is null, as in a column.

    Args:
        items: the keys that are not null.
        names: of all its keys.
    """

    __slots__ = ("names",)

    def __init__(self, items: Mapping[str, Any], names: Collection[str] = ()) -> None:
        super().__init__(items)
        self.names = names

    def is_null(self, name: Any) -> bool:
        """Whether there is such a key, and it is null."""
        return name in self.names and name not in self
