"""What a line of the OpenAI batch format asks, whatever its endpoint, and how bodies are checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from batchwright.core.errors import RowError
from batchwright.validate.names import did_you_mean


class Asked(NamedTuple):
    """What an OpenAI batch line asks.

    `record` is read by a PromptBuilder without column, messages or template; `sampling` goes to
    `RowSampling.resolve_fields`; `warnings` are keys of WARNING_CODES; `extras` is for the row's
    column of that name; `model` is what the line names.
    """

    record: dict[str, Any]
    sampling: dict[str, Any]
    warnings: tuple[str, ...] = ()
    extras: str | None = None
    model: Any = None


def check_known(body: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse the first field that the endpoint does not have, with the nearest name."""
    for name in body:
        if name not in known:
            nearest = did_you_mean(name, known)
            raise RowError("bad_envelope", f"unknown field {name!r} in body{nearest}")


def check_only(body: Mapping[str, Any], only: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse fields that would change the answer, unless their value changes nothing.

    Args:
        body: of the line; null is always taken.
        only: field to the values that are taken.
    """
    for name in body.keys() & only.keys():
        value = body[name]
        # The type keeps 0 apart from False and 1 from True.
        if value is not None and not any(
            type(value) is type(fine) and value == fine for fine in only[name]
        ):
            raise RowError("unsupported", f"{name} is not supported")


def one_prompt(value: Any, field: str) -> Any:
    """The only prompt of a list of prompts; anything else as it is.

    Raises:
        RowError: `bad_prompt`: there are several.
    """
    if not isinstance(value, list) or not value:
        return value
    if not all(isinstance(item, str) for item in value) and not any(
        isinstance(item, list) for item in value
    ):
        return value
    if len(value) > 1:
        raise RowError(
            "bad_prompt",
            f"body.{field} holds {len(value)} prompts; one per line: write a line for each",
        )
    return value[0]
