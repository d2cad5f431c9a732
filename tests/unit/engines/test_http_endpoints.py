"""Endpoints, allowances and gauges: decisions without a network."""

from __future__ import annotations

import pytest

from batchwright.engines.http_endpoints import FAULTS_IN_A_ROW, Endpoint, choose
from batchwright.engines.http_limits import Allowance, Bucket, expected_tokens
from batchwright.engines.http_metrics import ServerGauges, metrics_url, parse_metrics
from batchwright.engines.http_window import Window


def endpoint(url: str, in_flight: int = 0, limit: int = 8) -> Endpoint:
    return Endpoint(url, Window(256, start=limit), in_flight)


def test_the_least_busy_one_is_chosen() -> None:
    a, b = endpoint("a", 3), endpoint("b", 2)
    assert choose([a, b], 0.0)[0] is b
    b.in_flight = 8
    assert choose([a, b], 0.0)[0] is a
    a.in_flight = 8
    assert choose([a, b], 0.0) == (None, None)


def test_one_that_is_away_is_set_aside_and_tried_with_one_request() -> None:
    a, b = endpoint("a"), endpoint("b", 8)
    a.away(10.0)
    a.away(10.1)  # requests that fail together count once
    assert choose([a, b], 10.2) == (None, pytest.approx(0.3))
    chosen, _ = choose([a, b], 10.6)
    assert chosen is a
    a.in_flight = 1
    assert choose([a, b], 10.6) == (None, None)
    a.away(10.7)
    assert a.free_at == pytest.approx(11.7), "twice as long as the first time"
    a.in_flight = 0
    a.answered()
    assert a.places == 8
    assert choose([a, b], 12.0)[0] is a


def test_one_that_only_fails_is_taken_for_away() -> None:
    a = endpoint("a")
    for _ in range(FAULTS_IN_A_ROW - 1):
        a.faulty(5.0)
    a.answered()
    for _ in range(FAULTS_IN_A_ROW - 1):
        a.faulty(5.0)
    assert a.places == 8
    a.faulty(5.0)
    assert (a.places, a.free_at) == (1, 5.5)


def test_one_that_asks_for_a_pause_gets_it() -> None:
    a = endpoint("a")
    a.pause(7.0)
    assert choose([a], 6.0) == (None, 1.0)
    assert choose([a], 7.0)[0] is a


def sent_within(bucket: Bucket, amount: float, seconds: float) -> int:
    now, sent = 0.0, 0
    while now < seconds:
        wait = bucket.wait_s(now)
        if wait > 0:
            now += wait
            continue
        bucket.take(now, amount)
        sent += 1
    return sent


def test_a_bucket_lets_its_allowance_through() -> None:
    assert sent_within(Bucket(60, 0.0), 1, 60) in (60, 61)
    assert sent_within(Bucket(6000, 0.0), 1, 60) == pytest.approx(6100, abs=5)
    assert sent_within(Bucket(6000, 0.0), 500, 60) in (12, 13), "debt is paid before the next"
    assert Bucket(0, 0.0).wait_s(0.0) == 0


def test_tokens_that_were_not_used_come_back() -> None:
    allowance = Allowance(0, 6000, 0.0)
    allowance.take(0.0, 1100)
    assert allowance.wait_s(0.0) == pytest.approx(10.01)
    allowance.correct(0.0, expected=1100, used=200)
    assert allowance.wait_s(0.0) == pytest.approx(1.01)


def test_expected_tokens_follow_what_answers_use() -> None:
    assert expected_tokens(100, 512, 1.0) == 612
    assert expected_tokens(100, 512, 0.25) == 228


VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 12.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
"""


def test_gauges_of_vllm_are_read_over_all_its_engines() -> None:
    assert parse_metrics(VLLM) == ServerGauges(15.0, 4.0, 0.5, 2)
    sglang = 'sglang:num_running_reqs{m="x"} 5.0\nsglang:num_queue_reqs 1\nsglang:token_usage 0.1\n'
    assert parse_metrics(sglang) == ServerGauges(5.0, 1.0, 0.1, 0)
    assert parse_metrics("process_cpu_seconds_total 3\nvllm:other NaN") is None


def test_gauges_are_beside_the_api() -> None:
    assert metrics_url("http://h:8000/v1") == "http://h:8000/metrics"
    assert metrics_url("http://h:8000") == "http://h:8000/metrics"
