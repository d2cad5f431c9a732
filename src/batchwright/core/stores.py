"""Vector databases in words: where a table is, what it holds, and what becomes of a row there."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from batchwright.core.errors import JobError
from batchwright.core.ids import digest

Metric = Literal["cosine", "l2", "dot"]
StoreKind = Literal["pgvector", "qdrant", "milvus", "lancedb"]
ColumnKind = Literal["bool", "int", "float", "text", "json", "timestamp", "other"]

# What a table calls the id and the vector; a column of the input with such a name gets a prefix.
ID = "id"
EMBEDDING = "embedding"

_KINDS: dict[str, StoreKind] = {
    "postgresql": "pgvector", "postgres": "pgvector", "qdrant": "qdrant", "qdrant+https": "qdrant",
    "milvus": "milvus", "milvus+https": "milvus", "lance": "lancedb",
}  # fmt: skip
_ON_DISK = {"qdrant", "milvus", "lance"}
_FORMS = (
    "postgresql://user@host/db?table=TABLE, qdrant://host:6333/COLLECTION, "
    "milvus://host:19530/COLLECTION or lance://folder/TABLE"
)
_SECRETS = {"password", "sslpassword", "token", "api_key", "apikey", "api-key"}
_VARIABLE = {"pgvector": "PGPASSWORD", "qdrant": "QDRANT_API_KEY", "milvus": "MILVUS_TOKEN"}


@dataclass(frozen=True, slots=True)
class StoreTarget:
    """A table in a vector database.

    Attributes:
        kind: of the database.
        place: what its client is told to connect to: a URL, or a path on this machine.
        table: table or collection.
        options: further parts of the URL.
        local: whether `place` is a path.
    """

    kind: StoreKind
    place: str
    table: str
    options: Mapping[str, str] = field(default_factory=dict)
    local: bool = False

    @property
    def name(self) -> str:
        """For file names: the same table has the same name, whoever the user is."""
        place = self.place if self.local else _without_user(self.place)
        mark = digest([self.kind, place, self.table, dict(self.options)])[:8]
        plain = "".join(char if char.isalnum() and char.isascii() else "-" for char in self.table)
        return f"{self.kind}-{plain[:40]}-{mark}"


def parse_target(url: str) -> StoreTarget:
    """A URL to the table that it names.

    Raises:
        JobError: it names none, or holds a secret; the message does not repeat the secret.
    """
    parts = _split(url)
    scheme = parts.scheme.lower()
    kind = _KINDS.get(scheme)
    if kind is None:
        raise JobError(f"{_shown(parts, url)} is not a vector database", f"Give {_FORMS}.")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.password or _SECRETS & {name.lower() for name in query}:
        where = f"Put it in the environment: {_VARIABLE.get(kind, 'not in the URL')}."
        raise JobError(f"{_shown(parts, url)}: a secret does not belong in a URL", where)
    if kind == "pgvector":
        return _postgres(parts, query, url)
    path = unquote(parts.path)
    if scheme in _ON_DISK and (kind == "lancedb" or parts.netloc in ("", ".")):
        path = parts.netloc + path
        place, table = posixpath.split(path.rstrip("/"))
        if not (place and table):
            raise JobError(f"{url} names no table", f"Give {_FORMS}.")
        return StoreTarget(kind, place, table, query, local=True)
    table = path.strip("/")
    if not table or "/" in table or not parts.hostname:
        raise JobError(f"{_shown(parts, url)} names no collection", f"Give {_FORMS}.")
    secure = "https" if scheme.endswith("+https") else "http"
    return StoreTarget(kind, f"{secure}://{parts.netloc}", table, query)


def absolute_target(url: str, folder: str) -> str:
    """The URL with a path on this machine made whole; others, and wrong ones, as they are."""
    try:
        target = parse_target(url)
    except JobError:  # said where the command can show it
        return url
    if not target.local or target.place.startswith("/"):
        return url
    path = posixpath.normpath(posixpath.join(folder, target.place, target.table))
    query = f"?{urlencode(target.options)}" if target.options else ""
    return f"{url.partition('://')[0]}://{path}{query}"


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise JobError(f"not a URL of a vector database: {error}", f"Give {_FORMS}.") from None
    return parts


def _postgres(parts: SplitResult, query: dict[str, str], url: str) -> StoreTarget:
    """The table is in `?table=`, or follows the database: /db/table."""
    table = query.pop("table", "")
    path = parts.path.strip("/")
    if not table and path.count("/") == 1:
        path, _, table = path.partition("/")
    if not table or "/" in path:
        raise JobError(
            f"{_shown(parts, url)} names no table",
            "For instance postgresql://user@host/db?table=reviews",
        )
    more = f"?{urlencode(query)}" if query else ""
    place = f"postgresql://{parts.netloc}/{path}{more}"
    return StoreTarget("pgvector", place, unquote(table))


def _shown(parts: SplitResult, url: str) -> str:
    """The URL for a message: without what may be secret."""
    if parts.password or parts.query:
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}"
    return url


def _without_user(place: str) -> str:
    head, separator, rest = place.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{head}{separator}{authority.rpartition('@')[2]}{slash}{path}"


@dataclass(frozen=True, slots=True)
class StoreColumn:
    """A column of the input that travels with the vectors."""

    name: str
    kind: ColumnKind


@dataclass(frozen=True, slots=True)
class StoreShape:
    """What a table is to hold.

    Attributes:
        dimensions: numbers per vector.
        half: whether they are of two bytes.
        metric: by which neighbours are found.
        columns: beside id and vector; None while they are not known yet.
        index: whether neighbours are to be found by an index.
    """

    dimensions: int
    half: bool
    metric: Metric
    columns: tuple[StoreColumn, ...] | None
    index: bool = True


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """What a database takes at a time.

    Attributes:
        batch_bytes: of a request, unless the job says otherwise.
        row_bytes: of a request with a single row at most.
        batch_rows: of a request at most.
        parallel: requests at a time, unless the job says otherwise.
        typed: whether its columns have types, which must be known before the first row.
        merges_ids: whether two different ids may become one there.
    """

    batch_bytes: int
    row_bytes: int
    batch_rows: int
    parallel: int
    typed: bool = True
    merges_ids: bool = False


@dataclass(frozen=True, slots=True)
class RowFault:
    """Why a row is not in the database; `code` is a key of `errors.LOAD_CODES`."""

    row: int
    id: str | None
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class LoadReceipt:
    """Says that the rows of an output part are in the database, but for the faults."""

    file: str
    sha256: str
    rows: int
    loaded: int
    finished_at: float
    seconds: float
    faults: tuple[RowFault, ...] = ()
    warnings: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """What a run loads into a table; a later load must mean the same.

    Attributes:
        url: of the table, without a secret.
        settings: what decides how a row is stored.
    """

    url: str
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LoadCounts:
    """How far a load is.

    Attributes:
        url: of the table.
        parts: committed by the run so far.
        parts_loaded: of those, the ones in the database.
        loaded: rows in the database.
        faults: rows that are not, by code.
        warnings: rows that were changed to fit, by code.
        finished: whether all of the run is there, and the index is built.
    """

    url: str
    parts: int
    parts_loaded: int
    loaded: int
    faults: dict[str, int] = field(default_factory=dict)
    warnings: dict[str, int] = field(default_factory=dict)
    finished: bool = False

    def as_json(self) -> dict[str, Any]:
        """One flat object, the same names in every command."""
        return {
            "to": self.url, "parts": self.parts, "parts_loaded": self.parts_loaded,
            "loaded": self.loaded, "faults": self.faults, "warnings": self.warnings,
            "finished": self.finished,
        }  # fmt: skip
