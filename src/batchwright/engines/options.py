"""Checks the options that a user passes to an engine by name."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from batchwright.core.errors import JobError


def refuse_unknown(options: Mapping[str, object], known: Collection[str], engine: str) -> None:
    """Raise JobError for the first option that the engine does not know, with the nearest name."""
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]}?" if close else ""
            raise JobError(f"engine.options.{name}: the {engine} engine has no such option", hint)
