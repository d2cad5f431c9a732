"""A row becomes texts that belong together: a query with one document or with a list of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchwright.core.errors import RowError
from batchwright.core.records import TextPair
from batchwright.validate.names import did_you_mean


class PairReader:
    """Reads the query of each row and its document, or its list of documents.

    Args:
        query: column of the query.
        document: column of the one document.
        documents: column of the list.
    """

    def __init__(self, query: str, document: str, documents: str) -> None:
        self._query = query
        self._document = document
        self._documents = documents

    def read(self, record: Mapping[str, Any]) -> TextPair:
        """The texts of this row. Raises RowError."""
        query = self._text(record, self._query)
        many = record.get(self._documents)
        if many is None:
            if self._documents in record and record.get(self._document) is None:
                raise RowError("missing_prompt", f"the field {self._documents!r} is null")
            return TextPair(query, (self._text(record, self._document),), listed=False)
        if record.get(self._document) is not None and self._document != self._documents:
            raise RowError(
                "ambiguous_prompt", f"the row has both {self._document} and {self._documents}"
            )
        return TextPair(query, self._list(many), listed=True)

    def _text(self, record: Mapping[str, Any], name: str) -> str:
        value = record.get(name)
        if value is None:
            if name in record:
                raise RowError("missing_prompt", f"the field {name!r} is null")
            raise RowError(
                "missing_field", f"the row has no field {name!r}{did_you_mean(name, record)}"
            )
        if not isinstance(value, str):
            raise RowError(
                "bad_prompt", f"the field {name!r} is not text but {type(value).__name__}"
            )
        if not value:
            raise RowError("empty_prompt", f"the field {name!r} is empty")
        return value

    def _list(self, value: Any) -> tuple[str | None, ...]:
        """The documents in their order; None for one that is missing or empty."""
        name = self._documents
        if not isinstance(value, list):
            raise RowError(
                "bad_prompt", f"the field {name!r} is not a list but {type(value).__name__}"
            )
        for index, item in enumerate(value):
            if item is not None and not isinstance(item, str):
                raise RowError(
                    "bad_prompt", f"{name}[{index}] is not text but {type(item).__name__}"
                )
        if not any(value):
            raise RowError("empty_prompt", f"the field {name!r} holds no text")
        return tuple(item or None for item in value)
