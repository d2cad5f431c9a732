"""Answers without a model: made from a hash of the prompt and the sampling fields alone."""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from batchwright.core.extras import adapter_of
from batchwright.core.outcomes import Logprob, More, Outcome, Sample, TokenLogprobs
from batchwright.core.records import Request

BYTE_VOCABULARY = 256
NUM_SPECIALS = 16  # the first ids of most vocabularies are special tokens
POOL_SIZE = 1 << 16
SHORTEST_ANSWER = 8
LETTERS = b"abcdefghijklmnopqrstuvwxyz      "


class Sampling(NamedTuple):
    """The part of the sampling fields that the fake engine honours."""

    seed: int
    stop: tuple[str, ...]
    include_stop: bool
    min_tokens: int
    ignore_eos: bool
    samples: int
    logprobs: int | None


def parse_sampling(text: str) -> Sampling:
    """Sampling JSON to what matters here. Raises ValueError."""
    values = orjson.loads(text or "{}")
    stop = values.pop("stop", None) or []
    include_stop = bool(values.pop("include_stop_str_in_output", False))
    # What only shows more of an answer, or more answers, does not make it another one either.
    samples, logprobs = values.pop("n", 1), values.pop("logprobs", None)
    values.pop("priority", None)
    stop = [stop] if isinstance(stop, str) else stop
    if not all(isinstance(item, str) and item for item in stop):
        raise ValueError(f"stop must be a list of texts that are not empty (got {stop!r})")
    return Sampling(
        # Without the stop texts: they cut a model's answer, but do not make it another one.
        seed=zlib.crc32(orjson.dumps(values, option=orjson.OPT_SORT_KEYS)),
        stop=tuple(stop),
        include_stop=include_stop,
        min_tokens=int(values.get("min_tokens") or 0),
        ignore_eos=bool(values.get("ignore_eos")),
        samples=int(samples or 1),
        logprobs=logprobs,
    )


def make_pool(vocab_size: int) -> list[int]:
    """Pseudo-random token ids of which every answer is a slice: slicing costs next to nothing."""
    noise = array("I", hashlib.shake_128(b"batchwright").digest(4 * POOL_SIZE))
    if vocab_size == BYTE_VOCABULARY:
        return [LETTERS[value % len(LETTERS)] for value in noise]
    first = NUM_SPECIALS if vocab_size > NUM_SPECIALS else 0
    return [first + value % (vocab_size - first) for value in noise]


def cut_at_stop(text: str, stop: Sequence[str], *, include: bool) -> tuple[str, str | None]:
    """The text up to the earliest stop text, and which one it was."""
    found = [(text.find(item), item) for item in stop if item in text]
    if not found:
        return text, None
    position, item = min(found)
    return text[: position + len(item) if include else position], item


class AnswerMaker:
    """Makes the answers of the fake engine.

    Args:
        vocab_size: ids lie below it; 256 stands for bytes.
        longest_answer: answers have 8 to this many tokens.
        text: every answer's text, in place of one made from the prompt.
    """

    def __init__(self, vocab_size: int, longest_answer: int, text: str | None) -> None:
        self._in_bytes = vocab_size == BYTE_VOCABULARY
        self._vocab_size = vocab_size
        self._text = text
        self._spread = max(1, longest_answer - SHORTEST_ANSWER + 1)
        self._pool = make_pool(vocab_size)

    def wanted(self, request: Request, sampling: Sampling) -> int:
        """Tokens that the answer would have without a cap."""
        return self._length_and_place(request, sampling, 0)[0]

    def answer(self, request: Request, sampling: Sampling, text: str | None = None) -> Outcome:
        """The answer of a row, and as many further ones as it asks for; `text` is of them all."""
        text = self._text if text is None else text
        first, *others = [
            self._sample(request, sampling, number, text) for number in range(sampling.samples)
        ]
        token_ids, text, reason, stop_reason, more = first
        if others:
            more = (more or More())._replace(samples=tuple(others))
        # All tokens come with the one step in which the row ends.
        return Outcome(
            request.row, token_ids, text, reason, stop_reason, more=more, generating_s=0.0
        )

    def _length_and_place(
        self, request: Request, sampling: Sampling, number: int
    ) -> tuple[int, int]:
        """Tokens that a sample would have without a cap, and where in the pool it begins."""
        seed = sampling.seed + number
        adapter = adapter_of(request.extras)
        if adapter is not None:  # another adapter, another model
            seed = zlib.crc32(adapter.encode(), seed & 0xFFFFFFFF)
        digest = zlib.crc32(array("i", request.token_ids), seed)
        for one in request.media:
            digest = zlib.crc32(one.data, digest)
        if sampling.ignore_eos:
            wanted = request.max_tokens + 1
        else:
            wanted = SHORTEST_ANSWER + digest % self._spread
            wanted = max(wanted, sampling.min_tokens)
        return wanted, (digest >> 8) % POOL_SIZE

    def _sample(
        self, request: Request, sampling: Sampling, number: int, text: str | None
    ) -> Sample:
        wanted, first = self._length_and_place(request, sampling, number)
        count = min(wanted, request.max_tokens)
        ids = self._pool[first : first + count]
        while len(ids) < count:
            ids += self._pool[: count - len(ids)]
        sample = Sample(ids, None, "stop" if wanted <= request.max_tokens else "length")
        if text is not None or sampling.stop:
            sample = self._spelled(request, sampling, sample, text)
        if sampling.logprobs is None:
            return sample
        places = [self._logprobs(token_id, sampling.logprobs) for token_id in sample.token_ids]
        return sample._replace(more=More(logprobs=tuple(places)))

    def _spelled(
        self, request: Request, sampling: Sampling, sample: Sample, raw: str | None
    ) -> Sample:
        """The engine's own text, cut at the stop texts: ids alone cannot say where that is."""
        ids, reason = list(sample.token_ids), sample.finish_reason
        if raw is not None and self._in_bytes:
            reason = "stop" if len(raw.encode()) <= request.max_tokens else "length"
            ids = list(raw.encode())[: request.max_tokens]
        if self._in_bytes:
            raw = bytes(ids).decode(errors="ignore")
        elif raw is None:
            raw = " ".join(f"w{token_id}" for token_id in ids)
        text, stop = cut_at_stop(raw, sampling.stop, include=sampling.include_stop)
        if stop is None:
            return Sample(ids, text, reason)
        if self._in_bytes:
            ids = ids[: len(cut_at_stop(raw, (stop,), include=True)[0].encode())]
        return Sample(ids, text, "stop", stop)

    def _logprobs(self, token_id: int, num_top: int) -> TokenLogprobs:
        """Made-up ones: the chosen token is the likeliest, the ids after it follow."""
        ids = [(token_id + step) % self._vocab_size for step in range(max(1, num_top))]
        ranked = [Logprob(one, -0.5 * (rank + 1), rank + 1) for rank, one in enumerate(ids)]
        return TokenLogprobs(ranked[0], tuple(ranked[:num_top]))
