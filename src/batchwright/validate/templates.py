"""Prompt templates: Jinja2 over one row, sandboxed and strict."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, UndefinedError, meta
from jinja2.sandbox import SandboxedEnvironment

from batchwright.core.errors import JobError, RowError
from batchwright.validate.names import did_you_mean

# What running a template can raise, besides Jinja's own errors: filters and operators are Python.
FAILURES = (
    TemplateError, ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip

_UNDEFINED_NAME = re.compile(r"^'([^']+)' is undefined$")


class _NullOutput(TemplateError):
    """The template prints a null: the model would read the word None."""


def _no_null(value: Any) -> Any:
    if value is None:
        raise _NullOutput("a null is printed")
    return value


class RowTemplate:
    """A template compiled once and rendered per row.

    Raises:
        JobError: the template has a syntax error; the message names the line.
    """

    def __init__(self, source: str) -> None:
        environment = SandboxedEnvironment(
            undefined=StrictUndefined,
            autoescape=False,
            keep_trailing_newline=True,
            finalize=_no_null,
        )
        try:
            self._template = environment.from_string(source)
            names = meta.find_undeclared_variables(environment.parse(source))
        except TemplateSyntaxError as error:
            raise JobError(
                f"prompt.template, line {error.lineno}: {error.message}",
                "The template is Jinja2: {{ column }}, {% if … %} … {% endif %}.",
            ) from None
        self.names = frozenset(names)

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for these values. Raises RowError."""
        try:
            return self._template.render(values)
        except UndefinedError as error:
            raise RowError("missing_field", _missing(error, values)) from None
        except _NullOutput:
            raise RowError("missing_field", self._null(values)) from None
        except FAILURES as error:
            raise RowError("template_error", f"{type(error).__name__}: {error}") from None

    def _null(self, values: Mapping[str, Any]) -> str:
        nulls = sorted(name for name in self.names if name in values and values[name] is None)
        return f"the template prints the null field {', '.join(map(repr, nulls)) or 'of a value'}"


def _missing(error: UndefinedError, values: Mapping[str, Any]) -> str:
    found = _UNDEFINED_NAME.match(error.message or "")
    if not found:
        return f"the template needs a field that this row does not have: {error.message}"
    name = found[1]
    return f"the template needs the field {name!r}{did_you_mean(name, values)}"
