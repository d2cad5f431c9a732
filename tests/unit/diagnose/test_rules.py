"""Each rule speaks from its threshold on, and not below it; a healthy run has no finding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchwright.core.findings import Change, Finding, Weight
from batchwright.core.workload import LengthHistogram
from batchwright.diagnose.evidence import (
    EngineFault,
    Evidence,
    HostEvidence,
    PrepareEvidence,
    Stop,
)
from batchwright.diagnose.faults import OUT_OF_MEMORY
from batchwright.diagnose.rules import CODES, RULES, find
from tests.unit.diagnose.samples import (
    CARD,
    HEALTHY,
    PLAN,
    WORKER,
    codes,
    with_answers,
    with_card,
    with_data,
    with_settings,
    with_workers,
)

READING = PrepareEvidence(1, 50_000, 15_000_000, 600, 200, 10, 5)
TOKENISING = PrepareEvidence(1, 50_000, 15_000_000, 100, 600, 10, 5)
RESTING = PrepareEvidence(1, 50_000, 15_000_000, 30, 30, 3, 600)


def starved(share: float, prepare: PrepareEvidence | None) -> Evidence:
    return replace(with_workers(starved=share), prepare=prepare)


def small_files(evidence: Evidence, files: int = 5_000, mean_bytes: int = 900) -> Evidence:
    return with_data(evidence, files=files, bytes=files * mean_bytes)


def one_of_three(**changes: object) -> Evidence:
    odd = replace(WORKER, name="infer-odd", **changes)  # type: ignore[arg-type]
    return replace(HEALTHY, workers=(odd, WORKER, replace(WORKER, name="infer-2")))


def fault(code: str, line: str = "the line", *, at_start: bool = True) -> Evidence:
    told = EngineFault(code, line, "infer-1", at_start)
    return replace(HEALTHY, faults=(told,), workers=())


def small_batch(**changes: object) -> Evidence:
    few = {"max_num_seqs": 64, "cap": 64.0, "running": 64.0, "kv_use": 0.3, "kv_peak": 0.35}
    return with_workers(**{**few, **changes})


def narrow(**changes: object) -> Evidence:
    card = {"nvlink_bytes_s": None, "link_bytes_s": 10e9, **changes}
    return with_card(with_settings(tensor_parallel=4), **card)


IN_FILE_ORDER = with_settings(asked_order="file")

# Name, evidence just below the threshold, evidence at or above it.
THRESHOLDS = [
    ("slow_reading", starved(0.09, READING), starved(0.11, READING)),
    ("slow_reading", starved(0.3, TOKENISING), starved(0.3, READING)),
    ("slow_tokenizing", starved(0.09, TOKENISING), starved(0.11, TOKENISING)),
    ("small_files", small_files(starved(0.09, READING)), small_files(starved(0.3, READING))),
    ("small_files", small_files(starved(0.3, READING), 999), small_files(starved(0.3, READING))),
    ("small_files", small_files(starved(0.3, READING), 5_000, 300_000),
     small_files(starved(0.3, READING))),
    ("small_files", small_files(starved(0.3, TOKENISING)), small_files(starved(0.3, READING))),
    ("waiting_for_rows", starved(0.09, RESTING), starved(0.2, RESTING)),
    ("waiting_for_rows", starved(0.3, READING), starved(0.3, None)),
    ("slow_media", with_workers(media=0.09), with_workers(media=0.11)),
    ("slow_writes", with_workers(commit_wait=0.09), with_workers(commit_wait=0.11)),
    ("small_batch", small_batch(kv_use=0.51, kv_peak=0.55), small_batch(kv_use=0.49, kv_peak=0.5)),
    ("small_batch", small_batch(full=0.79), small_batch(full=0.81)),
    ("small_batch", small_batch(starved=0.2), small_batch(starved=0.05)),
    ("small_batch", replace(small_batch(fixed_step=0.05), plan=None),
     replace(small_batch(fixed_step=0.9), plan=None)),
    ("small_batch", replace(small_batch(fixed_step=None, running=130.0, max_num_seqs=130), plan=None),
     replace(small_batch(fixed_step=None, running=120.0, max_num_seqs=120), plan=None)),
    ("kv_full", with_workers(preemptions=500, kv_peak=1.0),
     with_workers(preemptions=5_000, kv_peak=1.0)),
    ("kv_full", with_workers(preemptions=5_000, kv_peak=0.8),
     with_workers(preemptions=5_000, kv_peak=0.9)),
    ("kv_small", with_workers(cap=240, running=230, kv_use=0.9, full=0.1),
     with_workers(cap=30, running=30, kv_use=0.9, full=0.0)),
    ("host_bound", with_card(with_workers(kv_use=0.2, kv_peak=0.3), use=0.81),
     with_workers(small_batch(busiest_core=0.95), cards=(replace(CARD, use=0.5),))),
    ("host_bound", with_workers(busiest_core=0.7, cards=(replace(CARD, use=0.7),)),
     with_workers(busiest_core=0.9, cards=(replace(CARD, use=0.7),))),
    ("host_bound", with_workers(full=0.5, cards=(replace(CARD, use=0.5),)),
     with_workers(full=0.9, cards=(replace(CARD, use=0.5),))),
    ("model_len", with_workers(with_settings(max_model_len=6_000), kv_tokens=8_000),
     with_workers(with_settings(max_model_len=8_192), kv_tokens=8_500)),
    ("model_len", with_workers(with_settings(max_model_len=8_192), kv_tokens=17_000),
     with_workers(with_settings(max_model_len=8_192), kv_tokens=16_000)),
    ("answers_cut", with_answers(cut=0.019), with_answers(cut=0.021)),
    ("answers_cut", with_answers(with_settings(max_tokens=4), cut=0.9),
     with_answers(with_settings(max_tokens=5), cut=0.9)),
    ("answers_cut", with_answers(with_settings(ignore_eos=True), cut=1.0), with_answers(cut=1.0)),
    ("answers_cut", with_answers(cut=0.5, rows=99), with_answers(cut=0.5, rows=100)),
    ("long_cap", with_settings(small_batch(), max_tokens=2_300),
     with_settings(small_batch(), max_tokens=2_500)),
    ("long_cap", with_settings(max_tokens=4_000), with_settings(small_batch(), max_tokens=4_000)),
    ("duplicates", with_data(repeated=0.04), with_data(repeated=0.08, hit_rate_file=0.0)),
    ("duplicates", with_data(with_settings(repeat_once=True), repeated=0.5),
     with_data(repeated=0.5)),
    ("unshared_prefixes", with_data(IN_FILE_ORDER, hit_rate_best=0.17),
     with_data(IN_FILE_ORDER, hit_rate_best=0.3)),
    ("unshared_prefixes", with_data(hit_rate_best=0.8), with_data(IN_FILE_ORDER, hit_rate_best=0.8)),
    ("chat_template", with_answers(marked=0.019), with_answers(marked=0.021)),
    ("chat_template", with_answers(with_settings(chat=False), cut=0.95),
     with_answers(with_settings(chat=False, raw_to_chat_model=True), cut=0.95)),
    ("chat_template", with_answers(with_settings(raw_to_chat_model=True), cut=0.89),
     with_answers(with_settings(raw_to_chat_model=True), cut=0.91)),
    ("unstable_sampling", with_answers(looping=0.049), with_answers(looping=0.051)),
    (
        "unstable_sampling",
        with_answers(with_settings(ignore_eos=True), looping=0.9),
        with_answers(looping=0.9),
    ),
    ("unstable_sampling", with_settings(temperature=1.4), with_settings(temperature=1.5)),
    ("unstable_sampling", with_settings(temperature=1.8, top_p=0.9), with_settings(temperature=1.8)),
    ("unstable_sampling", with_settings(repetition_penalty=1.2),
     with_settings(repetition_penalty=1.6)),
    ("unstable_sampling", with_settings(repetition_penalty=0.96),
     with_settings(repetition_penalty=0.8)),
    ("rows_failed", replace(HEALTHY, rejected=450), replace(HEALTHY, rejected=600)),
    ("throttled", with_card(throttled={"heat": 0.09}), with_card(throttled={"heat": 0.2})),
    ("throttled", with_card(throttled={"heat": 0.5}, clock=0.97),
     with_card(throttled={"hardware": 0.5}, clock=0.9)),
    ("throttled", with_card(throttled={"power": 1.0}, clock=0.7),
     with_card(throttled={"power": 1.0}, clock=0.6)),
    ("others_on_card",
     replace(HEALTHY, workers=(replace(WORKER, cards=(replace(CARD, others_bytes=3 * 10**9),)),)),
     replace(HEALTHY, workers=(replace(WORKER, cards=(replace(CARD, others_bytes=5 * 10**9),)),))),
    ("parallel_over_pcie", narrow(link_bytes_s=3e9), narrow(link_bytes_s=5e9)),
    ("parallel_over_pcie", narrow(nvlink_bytes_s=1e9), narrow()),
    ("parallel_over_pcie", with_card(link_bytes_s=10e9), narrow()),
    ("shared_memory", replace(HEALTHY, hosts=(HostEvidence("n", 4, 90, 100),)),
     replace(HEALTHY, hosts=(HostEvidence("n", 4, 96, 100),))),
    ("slow_replica", one_of_three(tokens_per_s=21_000), one_of_three(tokens_per_s=19_000)),
    ("slow_replica", one_of_three(tokens_per_s=19_000, starved=0.3),
     one_of_three(tokens_per_s=12_000, starved=0.3)),
    ("small_replica", one_of_three(running=160, tokens_per_s=24_000),
     one_of_three(running=120, tokens_per_s=24_000)),
    ("small_replica", one_of_three(running=120, tokens_per_s=26_000),
     one_of_three(running=120, tokens_per_s=12_000)),
    ("slowing", with_workers(quarters=(30_000, 29_000, 28_000, 24_000)),
     with_workers(quarters=(30_000, 29_000, 26_000, 22_000))),
    ("slowing", with_workers(seconds=500, quarters=(30_000, 29_000, 26_000, 22_000)),
     with_workers(seconds=700, quarters=(30_000, 29_000, 26_000, 22_000))),
    ("slowing", with_workers(quarters=(30_000, 29_000, 20_000, 22_000)),
     with_workers(quarters=(30_000, 29_000, 23_000, 22_000))),
    ("start_up", with_workers(seconds=200, start_up_s=80), with_workers(seconds=200, start_up_s=100)),
    ("start_up", with_workers(seconds=21, start_up_s=14), with_workers(seconds=30, start_up_s=20)),
    ("tail", with_workers(idle_s=45, tail_s=40), with_workers(idle_s=75, tail_s=40)),
    ("tail", with_workers(seconds=22, start_up_s=5, idle_s=2, tail_s=2),
     with_workers(seconds=60, start_up_s=5, idle_s=4, tail_s=4)),
    ("model_len", HEALTHY, fault("kv_cache_too_small")),
    ("others_on_card", HEALTHY, fault("memory_taken")),
    ("shared_memory", HEALTHY, fault("shared_memory")),
    *[("out_of_memory", HEALTHY, fault(code)) for code in sorted(OUT_OF_MEMORY)],
    ("host_memory", fault("memory"), fault("host_memory", at_start=False)),
    ("graph_capture", HEALTHY, fault("memory_in_graphs")),
    ("graph_capture", HEALTHY, fault("graph_capture")),
    ("unknown_model", HEALTHY, fault("model_unsupported")),
    ("engine_failed", fault("memory"), fault("unknown")),
    ("engine_failed", HEALTHY, fault("nccl")),
    ("unfinished", HEALTHY, replace(HEALTHY, stop=Stop(3, 9))),
    ("unfinished", replace(fault("nccl"), stop=Stop(3, 9)), replace(HEALTHY, stop=Stop(3, 9, 2))),
]  # fmt: skip


def test_a_healthy_run_has_no_finding() -> None:
    assert find(HEALTHY) == []
    assert find(Evidence()) == []


@pytest.mark.parametrize(
    ("code", "below", "above"),
    THRESHOLDS,
    ids=[f"{n}-{one[0]}" for n, one in enumerate(THRESHOLDS)],
)
def test_thresholds(code: str, below: Evidence, above: Evidence) -> None:
    assert code not in codes(below)
    assert code in codes(above)


def test_every_code_has_a_threshold_test_and_every_rule_a_code() -> None:
    assert {code for code, _, _ in THRESHOLDS} == set(CODES)
    assert len(set(CODES)) == len(CODES) >= len(RULES)


@pytest.mark.parametrize(("code", "evidence"), [(code, above) for code, _, above in THRESHOLDS])
def test_a_finding_says_what_how_and_what_to_do(code: str, evidence: Evidence) -> None:
    (found, *_) = [one for one in find(evidence) if one.code == code]
    assert found.title
    assert found.evidence
    assert all(name and figure for name, figure in found.evidence)
    assert found.cause.endswith(".")
    assert found.remedy
    assert found.gain is None or 0 < found.gain <= 1
    assert all(one.now != one.to for one in found.changes)


def test_little_work_is_not_judged() -> None:
    short = with_workers(
        seconds=15, starved=0.9, media=0.5, commit_wait=0.5, kv_use=0.1, kv_peak=0.1, full=1.0,
        preemptions=9_000, tokens_per_s=1.0, tail_s=9, start_up_s=100,
    )  # fmt: skip
    assert find(replace(short, prepare=READING)) == []


def test_what_is_certain_is_said_of_a_short_run_too() -> None:
    assert codes(with_answers(with_workers(seconds=5), cut=0.3)) == ["answers_cut"]


def test_an_engine_that_waits_is_not_blamed_for_its_batch() -> None:
    evidence = replace(small_batch(starved=0.5), prepare=READING)
    assert codes(evidence) == ["slow_reading"]


def test_a_hot_card_explains_the_slow_replica() -> None:
    hot = (replace(CARD, throttled={"heat": 0.9}, clock=0.5),)
    found = find(one_of_three(tokens_per_s=14_000, cards=hot))
    assert [one.code for one in found] == ["throttled"]
    assert found[0].worker == "infer-odd"


def test_engines_that_share_a_card_are_no_strangers() -> None:
    assert codes(with_card(others_bytes=30 * 10**9)) == []
    apart = tuple(
        replace(one, host=f"node-{n}", cards=(replace(CARD, others_bytes=30 * 10**9),))
        for n, one in enumerate(HEALTHY.workers)
    )
    assert codes(replace(HEALTHY, workers=apart)) == ["others_on_card"]


def test_half_of_the_replicas_are_not_the_exception() -> None:
    slow = replace(WORKER, tokens_per_s=10_000)
    workers = (WORKER, replace(slow, name="a"), replace(slow, name="b"))
    found = find(replace(HEALTHY, workers=workers))
    assert found == []


def test_other_tasks_have_no_answers_to_judge() -> None:
    evidence = with_answers(with_settings(task="embed"), cut=0.9, marked=0.9, looping=0.9)
    assert codes(with_workers(evidence, kv_use=0.1, kv_peak=0.1, full=1.0)) == []


def first(evidence: Evidence) -> Finding:
    return find(evidence)[0]


def test_more_processes_follow_from_the_share_that_was_fed() -> None:
    assert first(starved(0.6, READING)).changes == (Change("run.prepare_processes", "1", "3"),)
    few = replace(starved(0.6, READING), hosts=(HostEvidence("n", 2),))
    assert first(few).changes == ()


def test_more_rows_by_the_room_in_the_cache_and_the_roofline() -> None:
    found = first(small_batch())
    assert found.changes == (Change("engine.options.max_num_seqs", "64", "128"),)
    roomy = first(small_batch(kv_use=0.08, kv_peak=0.1))
    assert roomy.changes == (Change("engine.options.max_num_seqs", "64", "256"),)
    assert found.gain is not None
    assert roomy.gain is not None
    assert 0.1 < found.gain < roomy.gain < 0.4
    # Weights and products of 7B on an H100 take the same time at about 240 rows.
    at_the_ridge = small_batch(max_num_seqs=256, running=254.0, kv_use=0.1, kv_peak=0.1)
    assert codes(at_the_ridge) == []


def test_without_a_plan_the_steps_that_were_seen_decide() -> None:
    alike = replace(small_batch(fixed_step=None), plan=None)
    assert (first(alike).weight, first(alike).gain) == (Weight.HINT, None)
    fixed = first(replace(small_batch(fixed_step=1.0), plan=None))
    assert fixed.weight == Weight.LOSS
    assert fixed.gain is not None
    assert fixed.gain == pytest.approx(0.5 * 0.4)  # answers are 40 % of the work


def test_out_of_memory_names_what_to_lower() -> None:
    steps = {one.setting: one.to for one in first(fault("memory_in_run")).changes}
    assert steps == {
        "engine.options.gpu_memory_utilization": "0.85",
        "engine.options.max_num_batched_tokens": "8192",
    }
    large = replace(fault("memory_in_run"), plan=replace(PLAN, weight_bytes=80_000_000_000))
    assert first(large).changes == (Change("engine.options.tensor_parallel_size", "1", "2"),)


def test_a_start_that_fails_for_its_length_says_what_would_do() -> None:
    line = (
        "… larger than the available KV cache memory … the estimated maximum model length is 42560."
    )
    found = first(with_settings(fault("kv_cache_too_small", line), max_model_len=131_072))
    assert found.weight == Weight.BROKEN
    assert ("possible", "42,560 tokens") in found.evidence
    assert found.changes == (Change("engine.options.max_model_len", "131072", "3072"),)


@pytest.mark.parametrize(("possible", "to"), [(2_500, "2500"), (256, None)])
def test_a_length_that_is_not_possible_is_not_advised(possible: int, to: str | None) -> None:
    line = (
        f"larger than the available KV cache memory … estimated maximum model length is {possible}."
    )
    found = first(with_settings(fault("kv_cache_too_small", line), max_model_len=4_096))
    lengths = [one.to for one in found.changes if one.setting.endswith("max_model_len")]
    assert lengths == ([to] if to else [])
    assert ("lower sampling.max_tokens" in found.remedy) is (to is None)


def test_narrower_engines_only_if_the_weights_fit() -> None:
    assert [one.setting for one in first(narrow()).changes][-1] == "run.replicas"
    large = replace(narrow(), plan=replace(PLAN, weight_bytes=140_000_000_000, cards=4))
    last = [one.setting for one in first(large).changes][-1]
    assert last == "engine.options.pipeline_parallel_size"


def test_several_engines_as_far_as_the_card_has_room() -> None:
    bound = with_workers(kv_use=0.2, kv_peak=0.3, busiest_core=1.0, cards=(replace(CARD, use=0.3),))
    assert first(bound).changes == (Change("run.engines_per_gpu", "1", "2"),)
    tiny = replace(bound, plan=replace(PLAN, weight_bytes=1_000_000_000))
    assert first(tiny).changes == (Change("run.engines_per_gpu", "1", "3"),)
    eager = with_settings(bound, enforce_eager=True)
    assert first(eager).changes[0].setting == "engine.options.enforce_eager"


def test_a_cap_grows_with_the_share_that_it_cuts() -> None:
    assert first(with_answers(cut=0.05)).changes[0].to == "1024"
    assert first(with_answers(cut=0.3)).changes[0].to == "2048"


def test_the_median_of_a_histogram_is_of_whole_answers() -> None:
    outputs = LengthHistogram((10, 512), (50, 50))
    shown = dict(first(with_answers(cut=0.5, outputs=outputs)).evidence)
    assert shown["answers that end by themselves"] == "10 tokens in the median"


def test_with_few_rows_at_a_time_prompts_are_no_part_of_the_promise() -> None:
    """One H200, Qwen2.5-7B, 8 rows at a time: 240 rows of 128 + 128 tokens took 19.8 s.

    A step took 5.0 ms with 8 rows, and 6.3 ms with 64 on the same day: 32 at a time would have
    taken 8 x 128 steps of about 5.5 ms, 72 % less.
    """
    h200 = replace(PLAN, gpu="H200", bandwidth_bytes_s=4.8e12)
    run = replace(
        small_batch(
            max_num_seqs=8, running=8.0, kv_use=0.001, kv_peak=0.001, seconds=20.0, rows=240,
            output_tokens=30_720, computed_prompt_tokens=30_720,
        ),
        plan=h200,
    )  # fmt: skip
    found = first(run)
    assert found.changes == (Change("engine.options.max_num_seqs", "8", "32"),)
    assert found.gain == pytest.approx(0.72, rel=0.1)
