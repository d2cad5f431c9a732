"""Prompt templates: Jinja2 over one row, sandboxed and strict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, UndefinedError, meta, nodes
from jinja2.filters import do_default
from jinja2.sandbox import SandboxedEnvironment
from jinja2.tests import test_defined

from batchwright.core.errors import JobError, RowError
from batchwright.core.struct import Struct
from batchwright.validate.names import did_you_mean

# What running a template can raise, besides Jinja's own errors: filters and operators are Python.
FAILURES = (
    TemplateError, ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip

_UNDEFINED_NAME = re.compile(r"^'([^']+)' is undefined$")
_WITHIN = re.compile(r"object' has no attribute ('[^']+')$")


class _NullOutput(TemplateError):
    """The template prints a null: the model would read the word None."""


def _printable(value: Any) -> Any:
    if value is None:
        raise _NullOutput("a null is printed")
    if isinstance(value, bytes):
        raise TypeError("bytes are printed: a column of bytes is no text")
    return value


def _default(value: Any, default_value: Any = "", boolean: bool = False) -> Any:  # noqa: FBT001, FBT002
    return default_value if value is None else do_default(value, default_value, boolean)


class _Environment(SandboxedEnvironment):
    """Jinja2 in which a null is as good as an absent value to those who ask.

    `default`, `is defined` and `or` thus do the same whether a key is absent or null: in Parquet the
    two are one.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters["default"] = self.filters["d"] = _default
        self.tests["defined"] = lambda value: value is not None and test_defined(value)
        self.tests["undefined"] = lambda value: value is None or not test_defined(value)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute`."""
        return None if _is_null(obj, attribute) else super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`obj[argument]`."""
        return None if _is_null(obj, argument) else super().getitem(obj, argument)


def _is_null(obj: Any, name: Any) -> bool:
    return isinstance(obj, Struct) and isinstance(name, str) and obj.is_null(name)


class RowTemplate:
    """A template compiled once and rendered per row.

    Raises:
        JobError: the template has a syntax error; the message names the line.
    """

    def __init__(self, source: str) -> None:
        environment = _Environment(
            undefined=StrictUndefined,
            autoescape=False,
            keep_trailing_newline=True,
            finalize=_printable,
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
        self._pieces = _plain_pieces(environment.parse(source), environment.globals)

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for these values. Raises RowError."""
        if self._pieces is not None:
            text = _join(self._pieces, values)
            if text is not None:
                return text
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


def _plain_pieces(tree: nodes.Template, known: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """(text, name) pairs of a template that only puts fields into text; else None.

    Most prompt templates are of this kind, and joining them is ten times faster than Jinja's
    rendering, which would cost more than tokenising.
    """
    pieces: list[tuple[str, str]] = []
    text = ""
    for statement in tree.body:
        if not isinstance(statement, nodes.Output):
            return None
        for node in statement.nodes:
            if isinstance(node, nodes.TemplateData):
                text += node.data
            elif isinstance(node, nodes.Name) and node.name not in known:
                pieces.append((text, node.name))
                text = ""
            else:
                return None
    return [*pieces, (text, "")]


def _join(pieces: Sequence[tuple[str, str]], values: Mapping[str, Any]) -> str | None:
    """The text, or None where Jinja has to find the words for what is wrong."""
    out: list[str] = []
    for text, name in pieces:
        out.append(text)
        if not name:
            break
        value = values.get(name)
        if value is None or type(value) is bytes:
            return None
        out.append(value if type(value) is str else str(value))
    return "".join(out)


def _missing(error: UndefinedError, values: Mapping[str, Any]) -> str:
    found = _UNDEFINED_NAME.match(error.message or "")
    if not found:
        within = _WITHIN.search(error.message or "")
        what = f"{within[1]} of an object" if within else error.message
        return f"the template needs a field that this row does not have: {what}"
    name = found[1]
    return f"the template needs the field {name!r}{did_you_mean(name, values)}"
