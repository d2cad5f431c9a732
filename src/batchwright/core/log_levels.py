"""How much our own processes log: one level for all, and others for single stages."""

from __future__ import annotations

from collections.abc import Mapping

LEVELS = ("debug", "info", "warning", "error")

# Each is a logger below `batchwright`.
STAGES = ("run", "prepare", "order", "engine", "write")

DEFAULT_LEVEL = "info"


def parse_levels(text: str) -> Mapping[str, str]:
    """`info`, `engine=debug` or `warning,engine=debug` to levels by stage; "" is for the others.

    Raises:
        ValueError: a level or a stage is not known.
    """
    levels = {"": DEFAULT_LEVEL}
    for item in filter(None, (one.strip() for one in text.split(","))):
        stage, _, level = item.rpartition("=")
        if level not in LEVELS:
            raise ValueError(f"{level}: there are {', '.join(LEVELS)}")
        if stage and stage not in STAGES:
            raise ValueError(f"{stage}: there are the stages {', '.join(STAGES)}")
        levels[stage] = level
    return levels
