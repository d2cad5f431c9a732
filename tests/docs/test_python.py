"""The code of the page on Python runs as it stands, on the fake engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/how-to/python.md"

# The page has a model that is not here; the rest of the code is as it stands.
FAKE = ('"model.name": "Qwen/Qwen2.5-7B-Instruct"', '"engine.kind": "fake"')


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    rows = [{"id": n, "text": f"I like number {n}"} for n in range(40)]
    (tmp_path / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    code = "\n".join(blocks)
    assert FAKE[0] in code
    script = tmp_path / "script.py"
    script.write_text(code.replace(*FAKE) + '\nprint(len(answers), job, sep="\\n")\n')
    done = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second, *_, count, job = done.stdout.splitlines()
    assert first == "40 0"
    assert second.startswith("40 {} (")
    assert (count, job) == ("40", "<job reviews: runs/reviews>")
    lines = (tmp_path / "answers/results-00000.jsonl").read_text().splitlines()
    exported = [json.loads(line) for line in lines]
    assert [row["id"] for row in exported] == [str(n) for n in range(40)]
    assert (tmp_path / "runs/reviews/report.html").is_file()
