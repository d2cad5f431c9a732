"""A profile, a plan and a pilot's report by hand, and a page taken apart."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import NamedTuple

from batchwright.core.pilot import Interval, PilotReport
from batchwright.core.plan import Plan
from batchwright.core.profile import (
    CachePoint,
    LengthProfile,
    PrefixLevel,
    PrefixProfile,
    Sampled,
    SharedPrefix,
)
from batchwright.core.workload import LengthHistogram
from batchwright.plan.gpus import find_gpu
from batchwright.plan.model_facts import model_facts
from batchwright.plan.search import make_plan
from tests.unit.plan import model_configs as configs
from tests.unit.plan.model_configs import job

EVIL = '<script>alert("1")</script>&amp;\x00\x1b[31m\u2028 "quoted" \'single\''

PROFILE = LengthProfile(
    rows=5_000,
    valid=4_990,
    rejected={"missing_field": 7, "bad_json": 3},
    prompts=LengthHistogram((40, 120, 512, 3_000), (1_000, 3_000, 900, 90)),
    max_tokens=256,
    over_limit=4,
    over_context=None,
    duplicate_rows=499,
    duplicate_tokens=61_234,
    longest=((17, "é<1>", 3_000), (18, None, 2_999)),
    scripts={"Latin": 0.9, "Han": 0.1},
    prefix=PrefixProfile(
        block_size=16,
        shareable_share=0.421,
        working_set_tokens=12_800,
        cache_tokens=8_192,
        hit_rate_file_order=0.113,
        hit_rate_best_order=0.409,
        curve=tuple(CachePoint(2**n, n / 100, n / 50) for n in range(5, 21)),
        levels=(PrefixLevel(16, 9, 144), PrefixLevel(None, 40, 12_800)),
        top=(SharedPrefix(640, 1_200, 3, EVIL),),
    ),
    sampled=Sampled(0.5, 2_500, 5_000, (1, 2), (3, 4), (5, 6), "A sample of 50 %."),
)

NO_SHARING = PrefixProfile(16, 0.0, 0, None, 0.0, 0.0)


def make(**user: object) -> Plan:
    return make_plan(
        model_facts(configs.QWEN_7B, weight_bytes=None),
        find_gpu("H200"),
        1,
        job(8_000, 128, 128),
        user=user,
        usd_per_gpu_hour=2.5,
        linked_by_nvlink=True,
    )


REPORT = PilotReport(
    rows=980, rows_total=50_000, rows_left=49_000,
    prompt_tokens_per_s=12_345.6, output_tokens_per_s=2_345.6, rows_per_s=61.2, running=256.0,
    output_p50=30, output_p90=90, output_p99=240, cut_share=0.032, max_tokens=256,
    max_tokens_for_1_percent=410, max_tokens_extrapolated=True,
    failed_share=0.001, rejected_share=0.002, start_up_s=41.5, tail_s=12.3,
    kv_use=0.87, preemptions=3,
    hours=Interval(0.8, 1.0, 1.5), hours_left=Interval(0.7, 0.9, 1.4),
    gpu_hours=Interval(1.6, 2.0, 3.0), usd=Interval(4.0, 5.0, 7.5),
    gpu_use=0.93, gpu_memory_bytes=130_000_000_000, assumptions=("rows are alike <b>",),
)  # fmt: skip


class Page(NamedTuple):
    """A page as a browser takes it: its element tree, and all text that is to be seen."""

    root: ET.Element
    text: str

    def all(self, name: str) -> list[ET.Element]:
        """Elements by their name, of HTML or SVG."""
        return [one for one in self.root.iter() if one.tag.rpartition("}")[2] == name]


def read_page(html: str) -> Page:
    root = ET.fromstring(html)
    unseen = {id(one) for one in root.iter() if one.tag.rpartition("}")[2] in ("style", "title")}
    text = " ".join(
        part
        for one in root.iter()
        for part in ((one.text if id(one) not in unseen else None), one.tail)
        if part and part.strip()
    )
    return Page(root, text)
