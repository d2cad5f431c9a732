"""Results in the OpenAI batch format: lines of response objects, and lines of errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import pyarrow as pa

from batchwright.core.schemas import EMBEDDING, INPUT_COLUMN, contract
from batchwright.core.tasks import TaskSettings
from batchwright.write.files import ResultFile, ResultFiles
from batchwright.write.response_bodies import Responses
from batchwright.write.vectors import json_vectors

OUTPUT = "output"
ERRORS = "errors"

# Line of the input file; only rejected rows have it.
LINE = pa.field("line", pa.int64())

# HTTP status of a failed row by its code; what is not named here is the server's fault.
_REJECTED = 400
_FAILED = {"engine_refused": 400, "timeout": 408}
_SERVER_ERROR = 500

# The field that a message is about: `temperature: …`, `… field 'x' …`, `x is not supported`.
_PARAM = re.compile(
    r"^([a-z_]+)(?:\.\w+)*: |^unknown (?:sampling )?field '?(\w+)|^(\w+) is not sup"
)


class BatchWriter:
    """Writes lines of responses and of errors, in input order.

    Args:
        files: of the results.
        responses: what all lines have in common.
        task: which says what the results have in the place of a text.
    """

    def __init__(
        self,
        files: ResultFiles,
        responses: Responses,
        task: TaskSettings,
    ) -> None:
        self._results = files
        self._responses = responses
        self._task = task
        names = [OUTPUT] if responses.as_vllm else [OUTPUT, ERRORS]
        self._files: dict[str, ResultFile] = {name: files.open(name=name) for name in names}

    def add(self, part: pa.Table) -> None:
        """Write the next rows."""
        lines: dict[str, list[bytes]] = {name: [] for name in self._files}
        for row, request in self._rows(part):
            if row["status"] == "ok":
                name, line = OUTPUT, self._answer(row, request)
            else:
                name, line = ERRORS, self._error(row, request)
            lines.get(name, lines[OUTPUT]).append(dump_line(line))
        for name, file in self._files.items():
            file.write(b"".join(lines[name]))
            file.rows += len(lines[name])

    def close(self) -> None:
        """Give the files their names."""
        for file in self._files.values():
            self._results.finish(file)

    def _rows(self, part: pa.Table) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        """The contract's columns of each row, and the line that asked for it."""
        names = [*(field.name for field in contract(self._task)), LINE.name]
        columns = [self._column(part, name) for name in names]
        asked = self._responses.envelopes
        texts = part.column(INPUT_COLUMN).to_pylist() if asked else [None] * part.num_rows
        for index, values in enumerate(zip(*columns, strict=True)):
            yield dict(zip(names, values, strict=True)), parse_line(texts[index])

    def _column(self, part: pa.Table, name: str) -> list[Any]:
        if name == EMBEDDING and self._task.vectors is not None:
            return json_vectors(part, self._task.vectors)
        column = part.column(name)
        return [None] * len(column) if column.null_count == len(column) else column.to_pylist()

    def _answer(self, row: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
        url, body = line.get("url"), line.get("body")
        known = url if isinstance(url, str) else self._responses.main_url
        answer = self._responses.body(row, known, body if isinstance(body, dict) else {})
        response = {"status_code": 200, "request_id": self._request_id(row), "body": answer}
        return {
            "id": self._id(row), "custom_id": row["id"], "response": response, "error": None,
        }  # fmt: skip

    def _error(self, row: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
        code, message = row["error_code"], row["error"] or ""
        rejected = row["status"] == "rejected"
        status = _REJECTED if rejected else _FAILED.get(code, _SERVER_ERROR)
        found = _PARAM.search(message)
        param = next((name for name in found.groups() if name), None) if found else None
        response: dict[str, Any] = {
            "status_code": status, "request_id": self._request_id(row), "body": None,
        }  # fmt: skip
        error: dict[str, Any]
        if self._responses.as_vllm:
            kind = "BadRequestError" if status < _SERVER_ERROR else "InternalServerError"
            inner = {"message": message, "type": kind, "param": param, "code": status}
            error = {"error": {**inner, "reason": code, "line": row["line"]}}
        else:
            kind = "invalid_request_error" if status < _SERVER_ERROR else "server_error"
            inner = {"message": message, "type": kind, "param": param, "code": code}
            response["body"] = {"error": inner}
            error = {"code": code, "message": message, "param": param, "line": row["line"]}
        given = line.get("custom_id")
        custom_id = row["id"] if row["id"] is not None else given
        return {"id": self._id(row), "custom_id": custom_id, "response": response, "error": error}

    def _id(self, row: Mapping[str, Any]) -> str:
        prefix = "vllm-{}-{}" if self._responses.as_vllm else "batch_req_{}_{}"
        return prefix.format(self._responses.run_id, row["row"])

    def _request_id(self, row: Mapping[str, Any]) -> str:
        prefix = "vllm-batch" if self._responses.as_vllm else "req"
        return f"{prefix}-{self._responses.run_id}-{row['row']}"


def parse_line(text: str | None) -> Mapping[str, Any]:
    """The object that a line holds; empty where it holds none."""
    if not text:
        return {}
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:  # numbers that only Python reads: NaN, and integers of any length
            value = json.loads(text)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def dump_line(line: dict[str, Any]) -> bytes:
    """A line of strict JSON."""
    try:
        return orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:  # a custom_id that is a huge integer, say
        safe = {**line, "custom_id": str(line["custom_id"])}
        return orjson.dumps(safe, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
