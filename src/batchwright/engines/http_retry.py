"""What an HTTP failure means for the row, the endpoint and the run; without network and clock."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from enum import Enum
from functools import partial
from random import Random
from typing import Any, NamedTuple

import orjson

MAX_MESSAGE_CHARS = 500

# Waiting doubles from the first to the second of these, and is drawn from 0 to that.
BACKOFF_S = 0.5
BACKOFF_CAP_S = 30.0


class Kind(Enum):
    """What a failed try was.

    Attributes:
        RATE: too much at once; never the row's fault.
        AWAY: nobody there, or not ready.
        FAULT: broken on the way or in the server; may be the row's fault, if it goes on.
        REFUSED: the row is wrong, and will be each time.
        JOB: the job is wrong: no row can be answered.
        QUOTA: the account is used up: nothing to be done but by a person.
    """

    RATE = "rate"
    AWAY = "away"
    FAULT = "fault"
    REFUSED = "refused"
    JOB = "job"
    QUOTA = "quota"


class Failure(NamedTuple):
    """A failed try.

    Attributes:
        kind: what it was.
        message: in words.
        retry_after_s: what the server asks to wait; None if nothing.
        overload: whether fewer requests at the same time might have helped.
        timeout: whether the time was up.
        status: of HTTP; 0 if there was no answer at all.
    """

    kind: Kind
    message: str
    retry_after_s: float | None = None
    overload: bool = False
    timeout: bool = False
    status: int = 0


_RETRIED = {
    408: Kind.FAULT, 409: Kind.FAULT, 425: Kind.AWAY, 429: Kind.RATE, 502: Kind.AWAY,
    503: Kind.AWAY, 529: Kind.RATE,
}  # fmt: skip
_OVERLOAD = frozenset({408, 429, 503, 504, 529})
_JOB = frozenset({401, 403, 405, 407})
_SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})


def failure_of_status(
    status: int, headers: Mapping[str, str], raw: bytes, *, model: str, now: float
) -> Failure:
    """What an answer other than 200 means.

    Args:
        status: of HTTP.
        headers: of the answer.
        raw: its body.
        model: the name that was sent.
        now: Unix time, for a Retry-After with a date.
    """
    error = error_fields(raw)
    message = f"HTTP {status}: {error['message']}"
    made = partial(Failure, message=message, status=status)
    if status == 402 or error["code"] in _SPENT or error["type"] in _SPENT:
        return made(Kind.QUOTA)
    kind = _RETRIED.get(status)
    if kind is None and status >= 500:
        kind = Kind.FAULT
    if kind is not None:
        return made(
            kind,
            retry_after_s=retry_after_s(headers, now),
            overload=status in _OVERLOAD,
            timeout=status in (408, 504),
        )
    if status in _JOB or status < 400 or _is_of_the_job(status, error, model):
        return made(Kind.JOB)
    return made(Kind.REFUSED)


def _is_of_the_job(status: int, error: Mapping[str, str], model: str) -> bool:
    """An unknown model, or a path that is not there: the address lacks `/v1`, say."""
    if error["code"] == "model_not_found":
        return True
    if status != 404:
        return False
    told = error["param"] == "model" or (model in error["message"] and "exist" in error["message"])
    return told or not error["form"]


def error_fields(raw: bytes) -> dict[str, str]:
    """Message, type, code and param of an error in any of the usual forms, each as text.

    `form` is empty unless the body has OpenAI's form, or TGI's.
    """
    found = {"message": "", "type": "", "code": "", "param": "", "form": ""}
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    error: Any = body.get("error") if isinstance(body, dict) else None
    if error is not None:
        found["form"] = "openai"
    elif isinstance(body, dict):
        error = body if "message" in body else body.get("detail")
        found["form"] = "openai" if body.get("object") == "error" else ""
    if isinstance(error, dict):
        found |= {name: str(error.get(name) or "") for name in ("type", "code", "param")}
        error = error.get("message") or error
    text = error if isinstance(error, str) else orjson.dumps(error).decode() if error else ""
    found["message"] = (text or raw.decode(errors="replace").strip() or "no message")[
        :MAX_MESSAGE_CHARS
    ]
    return found


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that the server asks to wait: a number or a date; None if it asks nothing."""
    lower = {name.lower(): value for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = lower.get(name, "").strip()
        if not text:
            continue
        try:
            return max(0.0, float(text) * unit)
        except ValueError:
            pass
        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - now)
        except ValueError:
            continue
    return None


def wait_s(failures: int, failure: Failure, random: Random) -> float:
    """How long a row waits after its so-many-th failure in a row: full jitter, and a cap.

    What the server asks for is waited in full, and a little more, so that not all come at once.
    """
    most = min(BACKOFF_CAP_S, BACKOFF_S * 2.0 ** min(failures, 16))
    drawn = random.uniform(0.0, most)
    if failure.retry_after_s is None:
        return drawn
    return failure.retry_after_s + min(drawn, 0.1 * failure.retry_after_s + BACKOFF_S)


def counts_against_row(failure: Failure, *, others_answered: bool) -> bool:
    """Whether a failed try uses up one of the row's retries.

    A server that is away has failed no row; a row that is away while others get answers may be the
    reason.
    """
    if failure.kind is Kind.AWAY:
        return others_answered
    return failure.kind is Kind.FAULT
