"""What a failure over HTTP means for the row, the endpoint and the run."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from batchwright.engines.http_retry import (
    BACKOFF_CAP_S,
    Failure,
    Kind,
    counts_against_row,
    failure_of_status,
    retry_after_s,
    wait_s,
)

NOW = 1_700_000_000.0


def of(status: int, body: Any = None, headers: dict[str, str] | None = None) -> Failure:
    raw = json.dumps(body if body is not None else {"error": {"message": "no"}}).encode()
    return failure_of_status(status, headers or {}, raw, model="m", now=NOW)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, Kind.RATE), (529, Kind.RATE), (503, Kind.AWAY), (502, Kind.AWAY), (425, Kind.AWAY),
        (500, Kind.FAULT), (504, Kind.FAULT), (408, Kind.FAULT), (409, Kind.FAULT),
        (520, Kind.FAULT), (400, Kind.REFUSED), (404, Kind.REFUSED), (413, Kind.REFUSED),
        (422, Kind.REFUSED), (401, Kind.JOB), (403, Kind.JOB), (405, Kind.JOB), (307, Kind.JOB),
        (402, Kind.QUOTA),
    ],
)  # fmt: skip
def test_a_status_says_who_is_at_fault(status: int, kind: Kind) -> None:
    assert of(status).kind is kind


def test_an_unknown_model_or_path_is_the_jobs_fault() -> None:
    vllm = {"error": {"message": "The model `m` does not exist.", "param": "model", "code": 404}}
    openai = {"error": {"message": "no access", "code": "model_not_found"}}
    assert of(404, vllm).kind is Kind.JOB
    assert of(404, openai).kind is Kind.JOB
    assert of(404, {"detail": "Not Found"}).kind is Kind.JOB, "the address lacks /v1"
    assert of(404, {"error": {"message": "the image is gone"}}).kind is Kind.REFUSED


def test_a_spent_account_is_told_from_too_many_requests() -> None:
    body = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    assert of(429, body).kind is Kind.QUOTA


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "too long", "type": "x"}}, "HTTP 400: too long"),
        ({"object": "error", "message": "older vLLM"}, "HTTP 400: older vLLM"),
        ({"error": "TGI's form", "error_type": "validation"}, "HTTP 400: TGI's form"),
        ({"detail": "FastAPI"}, "HTTP 400: FastAPI"),
        ([1, 2], "HTTP 400: [1, 2]"),
    ],
)
def test_the_servers_own_message_is_kept(body: Any, message: str) -> None:
    assert of(400, body).message == message


def test_a_page_of_html_is_shortened() -> None:
    failure = failure_of_status(500, {}, b"<html>" + b"x" * 5000, model="m", now=NOW)
    assert failure.message.startswith("HTTP 500: <html>")
    assert len(failure.message) < 600


def test_retry_after_is_read_in_all_its_forms() -> None:
    assert retry_after_s({"Retry-After": "7"}, NOW) == 7
    assert retry_after_s({"retry-after-ms": "250", "retry-after": "7"}, NOW) == 0.25
    assert retry_after_s({"Retry-After": "Tue, 14 Nov 2023 22:13:50 GMT"}, NOW) == 30
    assert retry_after_s({"Retry-After": "Tue, 14 Nov 2023 22:00:00 GMT"}, NOW) == 0
    assert retry_after_s({"Retry-After": "soon"}, NOW) is None
    assert retry_after_s({}, NOW) is None


def test_waiting_grows_with_full_jitter_up_to_a_cap() -> None:
    random = Random(1)
    failure = Failure(Kind.FAULT, "")
    first = [wait_s(1, failure, random) for _ in range(200)]
    late = [wait_s(40, failure, random) for _ in range(200)]
    assert min(first) >= 0
    assert 0.5 < max(first) <= 1.0
    assert min(late) < 3, "full jitter begins at nothing"
    assert 25 < max(late) <= BACKOFF_CAP_S


def test_what_the_server_asks_for_is_waited_in_full() -> None:
    random = Random(1)
    waits = [wait_s(1, Failure(Kind.RATE, "", 5.0), random) for _ in range(200)]
    assert min(waits) >= 5.0
    assert max(waits) < 6.5
    assert len(set(waits)) > 100, "not all at the same moment"


def test_only_what_may_be_the_rows_fault_counts_against_it() -> None:
    def counts(kind: Kind, *, others: bool) -> bool:
        return counts_against_row(Failure(kind, ""), others_answered=others)

    assert counts(Kind.FAULT, others=False)
    assert not counts(Kind.RATE, others=True)
    assert not counts(Kind.AWAY, others=False)
    assert counts(Kind.AWAY, others=True)
