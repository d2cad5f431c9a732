"""An answer that had to be a tool call is stored as one."""

from __future__ import annotations

from batchwright.core.forced_calls import with_forced_calls
from batchwright.core.outcomes import More, Outcome, Sample

NAMED, ANY = '{"forced_call":"weather"}', '{"forced_call":""}'


def test_the_arguments_of_a_named_function() -> None:
    outcome = Outcome(7, [1], text='{"city": "Rome"}', finish_reason="stop")
    made = with_forced_calls(outcome, NAMED)
    assert (made.text, made.finish_reason) == (None, "stop")
    assert made.more is not None
    assert made.more.tool_calls == (
        {
            "id": "call_7_0_0",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
        },
    )


def test_a_list_of_calls_in_each_sample() -> None:
    one = '[{"name":"a","parameters":{"x":1}},{"name":"b","parameters":{}}]'
    more = More(samples=(Sample([2], text=one, finish_reason="stop"),), reasoning="hm")
    made = with_forced_calls(Outcome(7, [1], text=one, finish_reason="stop", more=more), ANY)
    assert made.finish_reason == "tool_calls"
    assert made.more is not None
    assert made.more.reasoning == "hm"
    (sample,) = made.more.samples
    assert sample.finish_reason == "tool_calls"
    assert sample.more is not None
    for calls in (made.more.tool_calls, sample.more.tool_calls):
        assert [call["function"] for call in calls or ()] == [
            {"name": "a", "arguments": '{"x":1}'}, {"name": "b", "arguments": "{}"},
        ]  # fmt: skip


def test_what_is_no_call_stays_text() -> None:
    cut = Outcome(7, [1], text='{"city": "Ro', finish_reason="length")
    assert with_forced_calls(cut, NAMED) == cut
    whole = Outcome(7, [1], text='{"city": "Rome"}', finish_reason="stop")
    assert with_forced_calls(whole, "") == whole
    assert with_forced_calls(whole, ANY) == whole
    failed = Outcome(7, [], error_code="timeout", error="too slow")
    assert with_forced_calls(failed, NAMED) == failed
