"""A plan takes what a sweep of the same work measured, and says so; the user's own values win."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchwright.core.errors import JobError
from batchwright.core.plan import Plan, Setting
from batchwright.core.sweep import RememberedSweep, Shape, SweepKey
from batchwright.plan.explain import explain
from batchwright.plan.measured import with_sweep
from tests.unit.plan.model_configs import job
from tests.unit.plan.test_search import QWEN_7B, plan_of

WORK = job(10_000, 300, 128)
SWEEP = RememberedSweep(
    key=SweepKey("vllm", "m", "H200", "auto", "", Shape(256, 256, 128)),
    output_mean=64,
    measured_on="2026-01-31",
    engine="vllm 0.25.1",
    gpus=1,
    settings={"max_num_seqs": 512},
    reference={"max_num_seqs": 1024},
    worth=0.07,
)


def taken(sweep: RememberedSweep | None, problems: tuple[str, ...] = (), **user: Any) -> Plan:
    return with_sweep(
        plan_of(QWEN_7B, WORK, **user),
        sweep,
        problems,
        user,
        lambda measured: plan_of(QWEN_7B, WORK, **{**measured, **user}),
    )


def test_the_measured_value_is_taken_with_the_measurement_as_its_reason() -> None:
    plan = taken(SWEEP)
    assert plan.value("max_num_seqs") == 512
    assert plan.value("cudagraph_capture_sizes")[-1] == 512
    why = plan.settings["max_num_seqs"].why
    assert "measured on 2026-01-31" in why
    assert "+7%" in why
    assert "1,024" in why
    assert any("measured on 2026-01-31" in line for line in explain(plan))


def test_the_users_own_value_wins() -> None:
    plan = taken(SWEEP, max_num_seqs=100)
    assert plan.value("max_num_seqs") == 100
    assert "measured" not in plan.settings["max_num_seqs"].why


def test_a_sweep_of_other_cards_is_not_taken() -> None:
    assert taken(replace(SWEEP, gpus=2)).value("max_num_seqs") == taken(None).value("max_num_seqs")


def test_a_setting_that_cannot_work_now_is_left_out_and_named() -> None:
    def refuse(measured: dict[str, Any]) -> Plan:
        raise JobError("too much")

    plan = plan_of(QWEN_7B, WORK)
    found = with_sweep(plan, SWEEP, (), {}, refuse)
    assert found.value("max_num_seqs") == plan.value("max_num_seqs")
    assert found.notes[-1] == "A sweep's settings are not taken: too much."


def shared(plan: Plan, engines: int) -> Plan:
    return replace(plan, settings={**plan.settings, "engines_per_gpu": Setting(engines, "")})


@pytest.mark.parametrize(
    ("planned", "asked", "taken_over"),
    [(1, None, 2), (3, None, 2), (1, 2, 1), (1, 3, 1), (None, None, None)],
)
def test_engines_that_share_a_card_are_taken_unless_the_user_says_otherwise(
    planned: int | None, asked: int | None, taken_over: int | None
) -> None:
    """Where the user asks for the same number only the other settings are taken."""
    settings = {"max_num_seqs": 512, "engines_per_gpu": 2, "gpu_memory_utilization": 0.46}
    bare = plan_of(QWEN_7B, WORK)
    plan = bare if planned is None else shared(bare, planned)
    user = {} if asked is None else {"engines_per_gpu": asked}

    def remake(measured: dict[str, Any]) -> Plan:
        made = plan_of(QWEN_7B, WORK, max_num_seqs=measured["max_num_seqs"])
        return shared(made, measured.get("engines_per_gpu", planned))

    found = with_sweep(plan, replace(SWEEP, settings=settings), (), user, remake)
    engines = found.settings.get("engines_per_gpu")
    assert (engines.value if engines else None) == taken_over
    fits = planned is not None and asked in {None, 2}
    assert (found.value("max_num_seqs") == 512) is fits


def test_rows_measured_on_a_card_alone_do_not_hold_for_one_that_is_shared() -> None:
    plan = shared(plan_of(QWEN_7B, WORK), 2)
    assert with_sweep(plan, SWEEP, (), {}, lambda _: plan) == plan


def test_problems_of_the_cache_are_notes() -> None:
    assert (
        taken(None, ("x was damaged and is removed",)).notes[-1] == "x was damaged and is removed"
    )
