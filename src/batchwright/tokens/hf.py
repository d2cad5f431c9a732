"""Tokenizers of Hugging Face models, driven in batches through their Rust backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from batchwright.core.errors import JobError
from batchwright.core.ports import PairEnds
from batchwright.core.records import Prompt
from batchwright.tokens import files
from batchwright.tokens.chat import ChatTemplate, named_template
from batchwright.tokens.media import placeholders

# Enough of the prompt for the decoder to see that the answer is not the start of a text.
_CONTEXT = 6


class HfTokenizer:
    """A model's own tokenizer and chat template. Made by `load`."""

    def __init__(self, tokenizer: Any, configs: Sequence[dict[str, Any]]) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        if self._backend is not None:
            # A tokenizer.json may ask for truncation: a long prompt would be cut in silence.
            self._backend.no_truncation()
            self._backend.no_padding()
        self._chat = ChatTemplate(tokenizer, placeholders(tokenizer, configs[0] if configs else {}))
        self._prefix, self._suffix = self._find_ends()
        self._needs_context = self._strips_first_space()
        self._eos_token_ids = _eos_token_ids(tokenizer, configs)
        self._special_tokens = _special_tokens(tokenizer)
        # A model of one type has no use for them, and vLLM no place.
        types = [config.get("type_vocab_size") for config in configs]
        self._has_types = any(type(count) is int and count > 1 for count in types)
        sizes = (config.get("vocab_size") for config in files.with_text_config(configs))
        self._vocab_size = max(len(tokenizer), *(n for n in sizes if type(n) is int), 0)

    @classmethod
    def load(
        cls,
        name: str,
        *,
        revision: str | None = None,
        trust_remote_code: bool = False,
        chat_template: str | None = None,
        template_name: str | None = None,
        model: str | None = None,
        model_revision: str | None = None,
    ) -> Self:
        """Load from a folder or the hub.

        Args:
            name: folder or hub id of the tokenizer.
            revision: branch, tag or commit of it.
            trust_remote_code: let its Python code run here.
            chat_template: Jinja2 source that replaces the model's own.
            template_name: of one of the model's own, in place of the default.
            model: folder or hub id of the model, if the tokenizer comes from elsewhere.
            model_revision: branch, tag or commit of it.

        Raises:
            JobError: there is no such folder or repository, it has no tokenizer, or it needs
                `trust_remote_code`.
        """
        owner, owner_revision = (name, revision) if model is None else (model, model_revision)
        config = files.read_json(owner, "config.json", owner_revision)
        if not trust_remote_code:
            _refuse_remote_code(owner, config)
        tokenizer = _load(name, revision, trust_remote_code=trust_remote_code)
        if tokenizer.chat_template is None:
            # Processors of older multimodal models keep theirs in a file of its own.
            found = files.read_json(name, "chat_template.json", revision).get("chat_template")
            tokenizer.chat_template = found if isinstance(found, str) else None
        if template_name is not None:
            chat_template = named_template(tokenizer.chat_template, template_name)
        if chat_template is not None:
            tokenizer.chat_template = chat_template
        generation = files.read_json(owner, "generation_config.json", owner_revision)
        return cls(tokenizer, (config, generation))

    @property
    def vocab_size(self) -> int:
        """Ids lie in [0, vocab_size): the tokenizer's or the model's, whichever is larger."""
        return self._vocab_size

    @property
    def exact(self) -> bool:
        """True: these are the model's own token ids."""
        return True

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer, in order."""
        return self._eos_token_ids

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Spellings that become one special token wherever they stand in a text."""
        return self._special_tokens

    @property
    def special_ends(self) -> tuple[list[int], list[int]]:
        """What the tokenizer puts around a raw text by default."""
        return self._prefix, self._suffix

    @property
    def pair_ends(self) -> PairEnds:
        """What the tokenizer puts around two texts by default, and whether it types them."""
        return self._find_pair_ends()

    @property
    def has_chat_template(self) -> bool:
        """Whether `render_chat` can work."""
        return bool(self._chat)

    def render_chat(self, prompt: Prompt) -> str:
        """Messages to the text that the model was trained on. Raises RowError."""
        return self._chat.render(prompt)

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Texts to ids; chat text already has its special tokens, raw text gets one BOS."""
        rows = self._encode(texts, add_special_tokens=False)
        prefix = self._prefix
        if not (add_special_tokens and prefix):
            return rows
        return [ids if ids[: len(prefix)] == prefix else prefix + ids for ids in rows]

    def decode(
        self, token_ids: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]]
    ) -> list[str]:
        """Outputs to texts, special tokens left out."""
        if not self._needs_context:
            return self._decode(token_ids)
        contexts = [list(prompt[-_CONTEXT:]) for prompt in prompts]
        before = self._decode(contexts)
        pairs = zip(contexts, token_ids, strict=True)
        after = self._decode([context + list(ids) for context, ids in pairs])
        return [_cut(text, head) for text, head in zip(after, before, strict=True)]

    def spell(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as a text of its own; a part of a character is U+FFFD."""
        rows = [[token_id] for token_id in token_ids]
        if self._backend is None:
            return [self._tokenizer.decode(row) for row in rows]
        spelled: list[str] = self._backend.decode_batch(rows, skip_special_tokens=False)
        return spelled

    def _encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        if self._backend is None:
            out = self._tokenizer(list(texts), add_special_tokens=add_special_tokens)
            return [list(ids) for ids in out["input_ids"]]
        encodings = self._backend.encode_batch_fast(
            list(texts), add_special_tokens=add_special_tokens
        )
        return [encoding.ids for encoding in encodings]

    def _decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        if self._backend is None:
            return [self._tokenizer.decode(list(ids), skip_special_tokens=True) for ids in rows]
        decoded: list[str] = self._backend.decode_batch(
            [list(ids) for ids in rows], skip_special_tokens=True
        )
        return decoded

    def _find_ends(self) -> tuple[list[int], list[int]]:
        """The ids around a text by default: a BOS ahead as a rule, [CLS] and [SEP] with BERT."""
        (bare,) = self._encode(["a"], add_special_tokens=False)
        (full,) = self._encode(["a"], add_special_tokens=True)
        for start in range(len(full)):
            if bare and full[start : start + len(bare)] == bare:
                return full[:start], full[start + len(bare) :]
        return [], []

    def _find_pair_ends(self) -> PairEnds:
        """Two different texts show where each of them stands between the special tokens."""
        first, second = self._encode(["a", "b"], add_special_tokens=False)
        full = list(self._tokenizer("a", "b")["input_ids"])
        typed = self._has_types and "token_type_ids" in self._tokenizer.model_input_names
        start = _find(full, first, 0)
        again = _find(full, second, start + len(first))
        if not first or not second or start < 0 or again < 0:
            raise JobError(
                "the tokenizer does not show how it puts two texts together",
                "task: score needs a tokenizer that does.",
            )
        return PairEnds(
            full[:start], full[start + len(first) : again], full[again + len(second) :], typed
        )

    def _strips_first_space(self) -> bool:
        """Whether decoding drops the space ahead of a first word (Llama-2's SentencePiece)."""
        (ids,) = self._encode(["a the"], add_special_tokens=False)
        word = ids[-1:]
        twice, once = self._decode([word * 2, word])
        return twice != once * 2


def _find(ids: list[int], part: list[int], start: int) -> int:
    """Where `part` stands in `ids` at or after `start`; -1 if nowhere."""
    places = range(max(start, 0), len(ids) - len(part) + 1)
    return next((at for at in places if ids[at : at + len(part)] == part), -1)


def _cut(text: str, head: str) -> str:
    """`text` without `head`; a half character at the end of `head` belongs to what follows."""
    if not text.startswith(head):
        head = head.rstrip("\ufffd")
    return text[len(head) :]


def _load(name: str, revision: str | None, *, trust_remote_code: bool) -> Any:
    local = files.is_folder(name)
    if not local:
        files.prefer_cache_if_cut_off()
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code
        )
    # The Rust tokenizers raise bare Exception, and a model's own code raises anything.
    except Exception as error:
        raise _load_error(name, error, local=local, trusted=trust_remote_code) from error


def _load_error(name: str, error: Exception, *, local: bool, trusted: bool) -> JobError:
    text = str(error)
    if not trusted and ("trust_remote_code" in text or _has_own_tokenizer(name, local=local)):
        return _needs_trust(name)
    if not local and isinstance(error, OSError):
        return files.not_reachable(name, error)
    reason = f"{type(error).__name__}: {text.strip().partition(chr(10))[0]}"
    hint = "It needs tokenizer.json or tokenizer.model; copy them, or set model.tokenizer."
    if trusted:
        hint += " Its own code may have run: model.trust_remote_code is true."
    return JobError(f"no tokenizer can be loaded from {name} ({reason})", hint)


def _has_own_tokenizer(name: str, *, local: bool) -> bool:
    """Whether a folder names a tokenizer class in code of its own."""
    auto_map = files.read_json(name, "tokenizer_config.json", None).get("auto_map") if local else {}
    return isinstance(auto_map, dict) and "AutoTokenizer" in auto_map


def _refuse_remote_code(name: str, config: dict[str, Any]) -> None:
    """Refuse a model that only its own code can read, before anything could import that code."""
    auto_map = config.get("auto_map")
    if not isinstance(auto_map, dict) or "AutoConfig" not in auto_map:
        return
    from transformers import CONFIG_MAPPING

    if config.get("model_type") not in CONFIG_MAPPING:
        raise _needs_trust(name)


def _needs_trust(name: str) -> JobError:
    return JobError(
        f"{name} needs model.trust_remote_code: it comes with Python code of its own",
        "Read that code; if you trust it, set model.trust_remote_code to true.",
    )


def _eos_token_ids(tokenizer: Any, configs: Sequence[dict[str, Any]]) -> tuple[int, ...]:
    found = files.token_ids(configs, "eos_token_id")
    if tokenizer.eos_token_id is not None:
        found.add(int(tokenizer.eos_token_id))
    return tuple(sorted(found))


def _special_tokens(tokenizer: Any) -> tuple[str, ...]:
    added = tokenizer.added_tokens_decoder.values()
    marked = [str(token.content) for token in added if token.special]
    return tuple(dict.fromkeys([*map(str, tokenizer.all_special_tokens), *marked]))
