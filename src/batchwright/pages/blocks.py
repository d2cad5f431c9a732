"""What a page is made of, and the page itself: records in, one string of HTML out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from batchwright import __version__
from batchwright.core.errors import StorageError

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True, slots=True)
class Tiles:
    """The few figures that matter most: name, figure, remark."""

    items: tuple[tuple[str, str, str], ...]
    kind: str = field(default="tiles", init=False)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; `numbers` are the columns that are set to the right."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()
    kind: str = field(default="table", init=False)


@dataclass(frozen=True, slots=True)
class Drawing:
    """An SVG element of our own making: it is not escaped."""

    svg: str
    kind: str = field(default="drawing", init=False)


@dataclass(frozen=True, slots=True)
class Words:
    """Sentences, one paragraph or one list item each."""

    lines: tuple[str, ...]
    listed: bool = False
    kind: str = field(default="words", init=False)


@dataclass(frozen=True, slots=True)
class Quotes:
    """Texts out of the data, each under a caption."""

    items: tuple[tuple[str, str], ...]
    kind: str = field(default="quotes", init=False)


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart under its title, with a key to its lines.

    Attributes:
        title: what is shown.
        svg: an element of our own making: it is not escaped.
        key: names of the lines, in the order of their colours; empty if there is only one.
        note: under the chart.
    """

    title: str
    svg: str
    key: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """Charts side by side, as many as there is room for."""

    items: tuple[Figure, ...]
    kind: str = field(default="figures", init=False)


@dataclass(frozen=True, slots=True)
class Stack:
    """One bar of several parts, numbered as in the list under it: name, size, figure."""

    title: str
    parts: tuple[tuple[str, float, str], ...]
    kind: str = field(default="stack", init=False)

    @property
    def total(self) -> float:
        """Of all parts."""
        return sum(size for _, size, _ in self.parts) or 1.0


@dataclass(frozen=True, slots=True)
class Card:
    """Something that wants attention.

    Attributes:
        weight: one word that says how much, which is also its colour's name.
        badge: the same in words.
        title: what it is.
        code: its name.
        lines: sentences.
        facts: names and figures that it rests on.
        changes: settings: name, now, to.
    """

    weight: str
    badge: str
    title: str
    code: str
    lines: tuple[str, ...]
    facts: tuple[tuple[str, str], ...] = ()
    changes: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Cards:
    """Some of them, one under the other."""

    items: tuple[Card, ...]
    kind: str = field(default="cards", init=False)


Block = Tiles | Table | Drawing | Words | Quotes | Figures | Stack | Cards


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    heading: str
    blocks: tuple[Block, ...]


def source_name(paths: str | Sequence[str]) -> str:
    """The data in a title: one path, or the first of several."""
    if isinstance(paths, str):
        return paths
    first, *others = paths
    return f"{first} and {len(others):,} more" if others else first


def make_page(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """A whole page, well-formed also as XML; texts are escaped.

    Args:
        title: of the page.
        lead: lines under it.
        sections: those without a block are left out.
    """
    return _template().render(
        title=title,
        lead=list(lead),
        sections=[section for section in sections if section.blocks],
        version=__version__,
    )


def write_page(path: Path, page: str) -> None:
    """Write a page; folders that are missing are made.

    Raises:
        StorageError: it cannot be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"the page cannot be written to {path}: {error.strerror}", "Give another file: --page."
        ) from error


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = resources.files("batchwright.pages").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(text)


def _shown(value: Any) -> Any:
    """Data may hold characters that no page may: control characters and halves of pairs."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return "".join(_shown_character(one) for one in value)


def _shown_character(one: str) -> str:
    code = ord(one)
    if code < 0x20 and one not in "\n\t":
        return chr(0x2400 + code)  # the picture of a control character
    if 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000 or code in (0xFFFE, 0xFFFF):
        return "\ufffd"
    return one
