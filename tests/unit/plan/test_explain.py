"""A plan in words names every setting, the sum, the prediction and the limit."""

from __future__ import annotations

from batchwright.plan.explain import explain, memory_rows, setting_rows, shown
from batchwright.plan.gpus import find_gpu
from batchwright.plan.model_facts import model_facts
from batchwright.plan.search import make_plan
from tests.unit.plan import model_configs as configs
from tests.unit.plan.model_configs import job

PLAN = make_plan(
    model_facts(configs.QWEN_7B, weight_bytes=None),
    find_gpu("H200"),
    1,
    job(8_000, 128, 128),
    user={},
    usd_per_gpu_hour=2.5,
    linked_by_nvlink=True,
)


def test_every_setting_has_a_value_and_a_reason() -> None:
    rows = setting_rows(PLAN)
    assert [row[0] for row in rows] == list(PLAN.settings)
    assert all(row[1] and row[2] for row in rows)


def test_the_lines() -> None:
    text = "\n".join(explain(PLAN))
    for wanted in (
        "7.62B parameters in bfloat16, 15.2 GB; 57,344 bytes of KV cache per token",
        "max_num_seqs = 1,024",
        "rejected: 32,768: the model's own context",
        "would hold",
        "hours",
        "$",
        "bound by compute",
        "The longest row fits",
    ):
        assert wanted in text


def test_the_memory_adds_up() -> None:
    rows = dict(memory_rows(PLAN.memory))
    terms = ("weights", "activations", "CUDA graphs", "driver and libraries", "KV cache")
    total = sum(float(rows[name].split()[0]) for name in terms)
    assert abs(total - float(rows["= allowed"].split()[0])) < 0.05


def test_values_as_people_read_them() -> None:
    assert [shown(value) for value in (None, True, False, 1024, "auto", [1, 2])] == [
        "off", "on", "off", "1,024", "auto", "[1, 2]"]  # fmt: skip
    assert shown(list(range(9))) == "0, 1, 2, 3, ... 8 (9 sizes)"
