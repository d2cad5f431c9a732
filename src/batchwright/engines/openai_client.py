"""Sends rows to OpenAI-compatible endpoints, and again where that helps; runs in an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from batchwright.core.errors import BatchwrightError, EngineError, JobError
from batchwright.core.outcomes import Outcome
from batchwright.core.records import Request
from batchwright.core.vectors import EmbeddingSettings
from batchwright.engines.http_endpoints import Endpoint, choose
from batchwright.engines.http_limits import Allowance, expected_tokens
from batchwright.engines.http_line import Errand, Line
from batchwright.engines.http_retry import Failure, Kind, counts_against_row, wait_s
from batchwright.engines.http_transport import Reply, Transport
from batchwright.engines.http_window import Window
from batchwright.engines.openai_options import OpenAiOptions
from batchwright.engines.openai_request import embedding_call, generation_call
from batchwright.engines.openai_response import BrokenAnswer, embedded, generated, parse_body

# The share of its cap that an answer uses, followed over about so many answers.
SHARE_OVER = 64


@dataclass(slots=True)
class Totals:
    """What has been done since the start, in tokens as the servers count them."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    answers: int = 0


class Client:
    """Keeps the endpoints busy. All methods but the constructor run in one event loop.

    Args:
        options: of the engine.
        model: the name that the endpoints know.
        embedding: the vectors that are wanted; None for generated answers.
        deliver: called with each outcome.
        transport: what speaks HTTP.
        random: for the jitter.
    """

    def __init__(
        self,
        options: OpenAiOptions,
        model: str,
        embedding: EmbeddingSettings | None,
        deliver: Callable[[Outcome], None],
        transport: Transport,
        random: Random,
    ) -> None:
        self._options = options
        self._model = model
        self._embedding = embedding
        self._deliver = deliver
        self._transport = transport
        self._random = random
        self.endpoints = [
            Endpoint(url, Window(options.max_concurrency)) for url in options.base_urls
        ]
        self.totals = Totals()
        self.in_flight = 0  # rows whose request is under way; read by other threads
        self._line = Line()
        self._tasks: dict[asyncio.Task[None], Errand] = {}
        self._wake = asyncio.Event()
        self._allowance = Allowance(options.rpm, options.tpm, time.monotonic())
        self._answer_share = 1.0
        self._trouble_since: float | None = None
        self._fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, requests: Sequence[Request]) -> None:
        """Take rows; they go as soon as there is room."""
        self._line.fresh.extend(requests)
        self._wake.set()

    def drop(self, rows: Iterable[int]) -> None:
        """Forget rows, those under way too."""
        gone = set(rows)
        self._line.drop(gone)
        for errand in self._tasks.values():
            errand.drop(gone)
        for task, errand in self._tasks.items():
            if not errand.requests:
                task.cancel()

    async def run(self) -> None:
        """Send rows until cancelled.

        Raises:
            JobError: no row can be answered like this.
            EngineError: there has been no answer for too long.
        """
        while True:
            if self._fatal.done():
                self._fatal.result()
            pause_s = self._send_what_may_go()
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), pause_s)
            except TimeoutError:
                continue

    async def close(self) -> None:
        """Break off what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self._fatal.done():
            self._fatal.cancel()

    def _send_what_may_go(self) -> float | None:
        """Send all that the endpoints have room for; how long until more may go, if that is known."""
        now = time.monotonic()
        next_due_s = self._line.ripen(now)
        while len(self._line):
            endpoint, free_in_s = choose(self.endpoints, now)
            if endpoint is None:
                return _sooner(next_due_s, free_in_s)
            allowed_in_s = self._allowance.wait_s(now)
            if allowed_in_s > 0:
                return _sooner(next_due_s, allowed_in_s)
            most = 1 if self._embedding is None else self._options.inputs_per_request
            self._launch(self._line.take(most), endpoint, now)
        return next_due_s

    def _launch(self, errand: Errand, endpoint: Endpoint, now: float) -> None:
        expected = self._expected_tokens(errand)
        self._allowance.take(now, expected)
        endpoint.in_flight += 1
        rows = len(errand.requests)
        self.in_flight += rows
        errand.tries += 1
        errand.answers_seen = self.totals.answers
        task = asyncio.create_task(self._attend(errand, endpoint, expected))
        self._tasks[task] = errand
        task.add_done_callback(lambda done: self._landed(done, endpoint, rows))

    def _landed(self, task: asyncio.Task[None], endpoint: Endpoint, rows: int) -> None:
        del self._tasks[task]
        self.in_flight -= rows
        endpoint.in_flight -= 1
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)

    def _expected_tokens(self, errand: Errand) -> int:
        return sum(
            expected_tokens(len(one.token_ids), one.max_tokens, self._answer_share)
            for one in errand.requests
        )

    async def _attend(self, errand: Errand, endpoint: Endpoint, expected: int) -> None:
        """One try of an errand, and what follows from it."""
        if self._embedding is None:
            call = generation_call(errand.requests[0], self._options)
        else:
            call = embedding_call(errand.requests, self._options)
        sent = list(errand.requests)
        began_at = time.monotonic()
        reply = await self._transport.post(
            endpoint.url + call.path, {"model": self._model, **call.body}
        )
        now = time.monotonic()
        failure = reply.failure
        outcomes: list[Outcome] = []
        if failure is None:
            try:
                outcomes = self._outcomes(sent, reply)
            except BrokenAnswer as broken:
                failure = Failure(Kind.FAULT, str(broken))
        if failure is not None:
            self._failed(errand, endpoint, failure, began_at)
            return
        used = self._count(sent, outcomes, reply.used_tokens)
        self._allowance.correct(now, expected, used)
        endpoint.answered()
        full = endpoint.in_flight >= endpoint.window.limit
        endpoint.window.answered(now, used, full=full)
        wanted = {one.row for one in errand.requests}
        for outcome in outcomes:
            if outcome.row in wanted:
                self._deliver(outcome._replace(attempts=errand.tries))

    def _outcomes(self, sent: Sequence[Request], reply: Reply) -> list[Outcome]:
        body = parse_body(reply.raw)
        reply.note_usage(body)
        if self._embedding is not None:
            return embedded(sent, body, self._embedding)
        return [generated(sent[0], body)]

    def _count(self, sent: Sequence[Request], outcomes: Sequence[Outcome], used: int) -> int:
        """Note an answer; returns the tokens that it took."""
        self._trouble_since = None
        self.totals.answers += 1
        made = sum(one.num_output_tokens for one in outcomes)
        cached = sum(one.cached_tokens for one in outcomes)
        read = max(0, used - made) if used else sum(len(one.token_ids) for one in sent)
        self.totals.prompt_tokens += max(0, read - cached)
        self.totals.output_tokens += made
        cap = sum(one.max_tokens for one in sent)
        if cap:
            share = min(1.0, made / cap)
            self._answer_share += (share - self._answer_share) / SHARE_OVER
        return max(1, read + made)

    def _failed(
        self, errand: Errand, endpoint: Endpoint, failure: Failure, began_at: float
    ) -> None:
        """Decide what becomes of rows that were not answered."""
        now = time.monotonic()
        if failure.kind in (Kind.JOB, Kind.QUOTA):
            self._end(run_error(failure, endpoint.url))
            return
        if failure.kind is Kind.REFUSED:
            endpoint.answered()
            self._refused(errand, failure)
            return
        self._note_trouble(failure, endpoint, began_at, now)
        others = self.totals.answers > errand.answers_seen
        errand.waits += 1
        errand.failures += counts_against_row(failure, others_answered=others)
        if errand.failures > self._options.max_retries and len(errand.requests) > 1:
            self._split(errand, self._options.max_retries)
            return
        if errand.failures > self._options.max_retries:
            code = "timeout" if failure.timeout else "engine_error"
            self._give_back(errand, code, f"{failure.message} (after {errand.tries} tries)")
            return
        self._line.again(errand, now + wait_s(errand.waits, failure, self._random))

    def _refused(self, errand: Errand, failure: Failure) -> None:
        self._trouble_since = None
        self.totals.answers += 1
        if len(errand.requests) == 1:
            self._give_back(errand, "engine_refused", failure.message)
            return
        self._split(errand, errand.failures)

    def _split(self, errand: Errand, failures: int) -> None:
        """One of the inputs is to blame: find it."""
        middle = len(errand.requests) // 2
        for half in (errand.requests[:middle], errand.requests[middle:]):
            self._line.due.append(Errand(half, errand.tries, failures))
        self._wake.set()

    def _give_back(self, errand: Errand, code: str, message: str) -> None:
        for one in errand.requests:
            self._deliver(
                Outcome(one.row, [], error_code=code, error=message, attempts=errand.tries)
            )

    def _note_trouble(
        self, failure: Failure, endpoint: Endpoint, began_at: float, now: float
    ) -> None:
        """What a failure says of the endpoint, and whether all of this makes sense any more."""
        if failure.overload:
            endpoint.window.overloaded(now, began_at)
        patience_s = self._options.give_up_after_s
        asked_s = failure.retry_after_s or 0.0
        if asked_s > patience_s:
            self._end(given_up(failure, endpoint.url, f"asks to wait {asked_s:.0f} s"))
        elif asked_s:
            endpoint.pause(now + asked_s)
        elif failure.kind is Kind.AWAY:
            endpoint.away(now)
        elif failure.kind is Kind.FAULT and not failure.timeout:
            endpoint.faulty(now)
        if self._trouble_since is None:
            self._trouble_since = now
        elif now - self._trouble_since > patience_s:
            self._end(given_up(failure, endpoint.url, f"gave no answer for {patience_s:g} s"))

    def _end(self, error: BaseException) -> None:
        if not self._fatal.done():
            self._fatal.set_exception(error)
        self._wake.set()


def _sooner(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return min(known, default=None)


def run_error(failure: Failure, url: str) -> BatchwrightError:
    """The end of the run: the job is wrong, or the account is used up."""
    message = f"the endpoint {url} does not take this job: {failure.message}"
    if failure.kind is Kind.QUOTA:
        return EngineError(message, "Mend the account; run again, and it goes on from here.")
    return JobError(
        message,
        "Check engine.options.base_url (it ends in /v1 as a rule), model.name and the key in the "
        "variable that engine.options.api_key_env names. No row was marked as failed for it.",
    )


def given_up(failure: Failure, url: str, why: str) -> EngineError:
    """The end of waiting."""
    return EngineError(
        f"the endpoint {url} {why}; last: {failure.message}",
        "Run again when it is back: the run goes on from here. engine.options.give_up_after_s is "
        "how long it waits.",
    )
