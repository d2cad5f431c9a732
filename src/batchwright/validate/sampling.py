"""Sampling of one row: the job's fields with the row's own on top."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from batchwright.core.errors import JobError, RowError
from batchwright.core.ids import canonical_json
from batchwright.core.sampling import (
    ALIASES,
    FIELD_NAMES,
    ROW_NAMES,
    UNSUPPORTED,
    nearest,
    row_sampling,
)

DEFAULT_MAX_TOKENS = 512

# Rows with a seed each would otherwise fill the memory.
_CACHE_SIZE = 4096

# Fields whose cells in CSV mean what they say; of all others they are JSON.
_TEXT_CELLS = frozenset({"stop", "guided_regex", "guided_grammar"})
_SPELLINGS = {"": None, "True": True, "False": False}

# A date must not share the key of the text that it looks like.
_KEY_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


class RowSampling:
    """Merges a row's sampling fields into the job's.

    Args:
        defaults: the job's fields, by vLLM's names, after preset and overrides.
        row_fields: columns that a row may set; None for every column named like a sampling
            field, an empty set for none.

    Raises:
        JobError: a default is wrong, or `row_fields` names something else than sampling fields.
    """

    def __init__(self, defaults: Mapping[str, Any], row_fields: frozenset[str] | None) -> None:
        try:
            self._defaults = row_sampling(dict(defaults))
            self._default = self._merge({})
        except RowError as error:
            raise JobError(f"sampling: {error.message}") from None
        self._names = ROW_NAMES if row_fields is None else row_fields
        if row_fields is not None:
            _check_names(row_fields)
        self._cache: dict[bytes, tuple[str, int]] = {}

    def resolve(self, record: Mapping[str, Any]) -> tuple[str, int]:
        """Canonical JSON of all fields but `max_tokens`, and `max_tokens`. Raises RowError."""
        if self._names.isdisjoint(record):
            return self._default
        return self.resolve_fields(
            {name: value for name, value in record.items() if name in self._names}
        )

    def resolve_cells(self, record: Mapping[str, Any]) -> tuple[str, int]:
        """The same for a row of CSV, whose cells are all texts. Raises RowError."""
        names = self._names & record.keys()
        return self.resolve_fields({name: _cell_value(name, record[name]) for name in names})

    def resolve_fields(self, fields: Mapping[str, Any]) -> tuple[str, int]:
        """The same for fields that are known to be meant as sampling fields."""
        given = {name: value for name, value in fields.items() if value is not None}
        if not given:
            return self._default
        try:
            key = orjson.dumps(given, option=_KEY_OPTIONS)
        except orjson.JSONEncodeError:
            return self._merge(given)
        found = self._cache.get(key)
        if found is None:
            found = self._merge(given)
            if len(self._cache) >= _CACHE_SIZE:
                self._cache.clear()
            self._cache[key] = found
        return found

    def _merge(self, given: dict[str, Any]) -> tuple[str, int]:
        merged = {"max_tokens": DEFAULT_MAX_TOKENS, **self._defaults, **row_sampling(given)}
        max_tokens = merged.pop("max_tokens")
        if merged.get("n") == 1:  # so that it equals a row that does not say it
            del merged["n"]
        if merged.get("n", 1) > 1 and merged.get("temperature") == 0:
            raise RowError(
                "bad_sampling",
                f"n is {merged['n']}, but temperature 0 gives the same answer each time; raise it",
            )
        if merged.get("min_tokens", 0) > max_tokens:
            raise RowError(
                "bad_sampling", f"min_tokens {merged['min_tokens']} is above {max_tokens=}"
            )
        return canonical_json(merged), max_tokens


def _cell_value(name: str, cell: str) -> Any:
    """What a cell of CSV says; one without content says nothing."""
    if cell in _SPELLINGS:
        return _SPELLINGS[cell]
    if name in _TEXT_CELLS:
        return cell
    try:
        return orjson.loads(cell)
    except orjson.JSONDecodeError:
        return cell  # the check of the field tells what it must be


def shortest_answer(sampling: str) -> int:
    """The tokens that an answer has at least, by the canonical JSON of its sampling fields."""
    # Nearly no row sets it: reading the JSON of each would cost more than all the rest.
    if '"min_tokens"' not in sampling:
        return 1
    return max(1, int(orjson.loads(sampling).get("min_tokens", 1)))


def _check_names(row_fields: frozenset[str]) -> None:
    for name in sorted(row_fields - FIELD_NAMES - ALIASES):
        what = "is not supported" if name in UNSUPPORTED else "is no sampling field"
        raise JobError(f"sampling.row_fields: {name} {what}{nearest(name)}")
