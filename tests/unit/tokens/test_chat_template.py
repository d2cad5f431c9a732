from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer

from batchwright.core.errors import JobError, RowError
from batchwright.core.records import Prompt
from batchwright.tokens.hf import HfTokenizer
from batchwright.tokens.load import load_tokenizer
from tests.support.tiny_model import CHATML

STRICT = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('must alternate') }}{% endif %}"
    "<{{ m['role'] }}>{{ m['content'] | trim }}\n{% endfor %}"
)
SIMPLE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def chat(*roles: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": f"text {i}"} for i, role in enumerate(roles)]


@pytest.fixture(scope="module")
def bare(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny tokenizer without a chat template."""
    folder = tmp_path_factory.mktemp("models") / "bare"
    ignore = shutil.ignore_patterns("*.safetensors", "*.jinja")
    shutil.copytree(tiny_model, folder, ignore=ignore)
    return set_template(folder, None)


def set_template(folder: Path, value: Any) -> Path:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    if value is not None:
        config["chat_template"] = value
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f<é>"}}]])
def test_same_text_as_transformers(tiny_model: Path, tools: Any) -> None:
    reference = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer = HfTokenizer.load(str(tiny_model))
    for messages in (chat("user"), chat("system", "user", "assistant", "user")):
        expected = reference.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True
        )
        assert tokenizer.render_chat(Prompt(messages=messages, tools=tools)) == expected


def test_special_tokens_of_a_chat_are_single_ids(tiny_model: Path) -> None:
    tokenizer = HfTokenizer.load(str(tiny_model))
    text = tokenizer.render_chat(Prompt(messages=chat("user")))
    (ids,) = tokenizer.encode([text], add_special_tokens=False)
    assert (ids.count(1), ids.count(2)) == (2, 1)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (("user",), None),
        (("user", "assistant", "user"), None),
        (("system", "user"), "no system"),
        (("user", "user"), "must alternate"),
        (("developer", "user"), "developer"),
        (("assistant", "user"), "must alternate"),
        (("user", "assistant"), "end with an assistant"),
    ],
)
def test_strict_template(bare: Path, roles: tuple[str, ...], message: str | None) -> None:
    tokenizer = HfTokenizer.load(str(bare), chat_template=STRICT)
    prompt = Prompt(messages=chat(*roles))
    if message is None:
        assert tokenizer.render_chat(prompt).endswith("\n")
        return
    with pytest.raises(RowError, match=message) as caught:
        tokenizer.render_chat(prompt)
    assert caught.value.code == "chat_template_error"


@pytest.mark.parametrize(
    "template", ["{{ 1 / 0 }}", "{{ messages[0]['content'] + 1 }}", "{{ messages[9].role.x }}"]
)
def test_python_errors_of_a_template(bare: Path, template: str) -> None:
    tokenizer = HfTokenizer.load(str(bare), chat_template=template)
    with pytest.raises(RowError, match="chat_template_error"):
        tokenizer.render_chat(Prompt(messages=chat("user")))


def test_no_template(bare: Path) -> None:
    tokenizer = HfTokenizer.load(str(bare))
    assert not tokenizer.has_chat_template
    with pytest.raises(RowError, match="no_chat_template"):
        tokenizer.render_chat(Prompt(messages=chat("user")))


def test_template_in_config_or_file(bare: Path, tmp_path: Path) -> None:
    in_config = set_template(Path(shutil.copytree(bare, tmp_path / "config")), SIMPLE)
    in_file = Path(shutil.copytree(bare, tmp_path / "file"))
    (in_file / "chat_template.jinja").write_text(SIMPLE)
    for folder in (in_config, in_file):
        tokenizer = HfTokenizer.load(str(folder))
        assert tokenizer.render_chat(Prompt(messages=chat("user"))) == "user: text 0\nassistant:"


def test_list_of_templates(bare: Path, tmp_path: Path) -> None:
    folder = set_template(
        Path(shutil.copytree(bare, tmp_path / "list")),
        [{"name": "default", "template": SIMPLE}, {"name": "tool_use", "template": "T" + SIMPLE}],
    )
    tokenizer = HfTokenizer.load(str(folder))
    assert tokenizer.render_chat(Prompt(messages=chat("user")))[0] == "u"
    assert tokenizer.render_chat(Prompt(messages=chat("user"), tools=[{"a": 1}]))[0] == "T"

    set_template(folder, [{"name": "tool_use", "template": SIMPLE}])
    tokenizer = HfTokenizer.load(str(folder))
    assert tokenizer.render_chat(Prompt(messages=chat("user"), tools=[{"a": 1}]))
    with pytest.raises(RowError, match="no default"):
        tokenizer.render_chat(Prompt(messages=chat("user")))


def test_template_of_the_job(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("mine", encoding="utf-8")

    def load(template: Path) -> Any:
        return load_tokenizer(
            name=str(tiny_model), tokenizer=None, revision=None,
            trust_remote_code=False, chat_template_path=str(template),
        )  # fmt: skip

    assert load(path).render_chat(Prompt(messages=chat("user"))) == "mine"
    with pytest.raises(JobError, match="cannot be read"):
        load(tmp_path / "none.jinja")
    path.write_text("a\n{% if %}")
    with pytest.raises(JobError, match="line 2"):
        load(path)


def test_chatml_of_the_tiny_model_is_valid(tiny_model: Path) -> None:
    assert (tiny_model / "chat_template.jinja").read_text() == CHATML


def test_template_in_a_json_file_of_its_own(bare: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bare, tmp_path / "json"))
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": SIMPLE}))
    tokenizer = HfTokenizer.load(str(folder))
    assert tokenizer.render_chat(Prompt(messages=chat("user"))) == "user: text 0\nassistant:"


def named(folder: Path, name: str) -> Any:
    return load_tokenizer(
        name=str(folder), tokenizer=None, revision=None, trust_remote_code=False,
        chat_template_path=name,
    )  # fmt: skip


def test_one_of_the_models_templates_by_its_name(bare: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bare, tmp_path / "several"))
    (folder / "chat_template.jinja").write_text(SIMPLE)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("R" + SIMPLE)
    render = Prompt(messages=chat("user"))
    assert named(folder, "rag").render_chat(render) == "Ruser: text 0\nassistant:"
    assert named(folder, "default").render_chat(render) == "user: text 0\nassistant:"
    with pytest.raises(JobError, match=r"other is neither a file nor .*there are: default, rag"):
        named(folder, "other")


def test_a_system_text_that_the_template_drops_is_refused(bare: Path, tmp_path: Path) -> None:
    dropping = (
        "{% for m in messages if m['role'] != 'system' %}{{ m['content'] }}\n{% endfor %}answer:"
    )
    folder = set_template(Path(shutil.copytree(bare, tmp_path / "dropping")), dropping)
    tokenizer = HfTokenizer.load(str(folder))
    assert tokenizer.render_chat(Prompt(messages=chat("user"))) == "text 0\nanswer:"
    with pytest.raises(RowError, match="leaves system messages out"):
        tokenizer.render_chat(Prompt(messages=chat("system", "user")))
    blank = [{"role": "system", "content": " "}, *chat("user")]
    assert tokenizer.render_chat(Prompt(messages=blank)) == "text 0\nanswer:"


@pytest.mark.parametrize("writes_bos", [True, False])
def test_a_chat_has_the_bos_that_its_template_writes_and_no_other(
    bare: Path, tmp_path: Path, writes_bos: bool
) -> None:
    folder = Path(shutil.copytree(bare, tmp_path / "bos"))
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ahead = processors.TemplateProcessing("<|endoftext|> $A", None, [("<|endoftext|>", 0)])
    backend.post_processor = processors.Sequence([processors.ByteLevel(), ahead])
    backend.save(str(folder / "tokenizer.json"))
    set_template(folder, ("<|endoftext|>" if writes_bos else "") + SIMPLE)
    tokenizer = HfTokenizer.load(str(folder))
    text = tokenizer.render_chat(Prompt(messages=chat("user")))
    (ids,) = tokenizer.encode([text], add_special_tokens=False)
    assert ids.count(0) == int(writes_bos)
    plain, marked = tokenizer.encode(["hi", "<|endoftext|>hi"], add_special_tokens=True)
    assert plain == marked
    assert plain.count(0) == 1
