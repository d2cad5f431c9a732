"""Images and sounds in a prompt: what stands for them, and how many tokens they become."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchwright.core.errors import RowError
from batchwright.core.media import MediaKind
from batchwright.tokens.files import read_json

# Names under which a model's config.json has the token that stands for an item.
_TOKEN_KEYS: dict[str, tuple[str, ...]] = {
    "image": ("image_token_id", "image_token_index"),
    "audio": ("audio_token_id", "audio_token_index"),
}

# Where nothing better is known. Most vision models lie between 250 and 2,000 for a photograph.
GUESSED_TOKENS: dict[str, int] = {"image": 1024, "audio": 512}

# The size of an image that is not known before it is fetched.
_USUAL_SIZE = (1024, 768)


class Patches(NamedTuple):
    """A model that reads images in nearly their own size: so many pixels make a token.

    Attributes:
        unit: edge of the square of pixels that one token stands for.
        min_pixels: smaller images are enlarged to about so many.
        max_pixels: larger ones are made smaller.
    """

    unit: int
    min_pixels: int
    max_pixels: int


class MediaTokens(NamedTuple):
    """How many tokens an item takes, by the model's own configuration.

    Attributes:
        per_image: the same for each image; None if it depends on its size or is not known.
        patches: how it depends on the size; None if it does not, or that is not known.
    """

    per_image: int | None = None
    patches: Patches | None = None

    @property
    def needs_size(self) -> bool:
        """Whether an image's size would tell its tokens."""
        return self.per_image is None and self.patches is not None

    def count(self, kind: MediaKind, size: tuple[int, int] | None = None) -> int:
        """Tokens that an item adds to a prompt, its placeholder not counted: exact or a guess."""
        if kind == "audio":
            return GUESSED_TOKENS["audio"]
        if self.per_image is not None:
            return self.per_image - 1
        if self.patches is not None:
            return _patch_tokens(self.patches, *(size or _USUAL_SIZE)) - 1
        return GUESSED_TOKENS["image"]


def load_media_tokens(name: str, revision: str | None) -> MediaTokens:
    """How many tokens the items of a model take; guesses where no model is named."""
    if not name:
        return MediaTokens()
    config = read_json(name, "config.json", revision)
    return media_token_counts(config, read_json(name, "preprocessor_config.json", revision))


def media_token_counts(config: Mapping[str, Any], preprocessor: Mapping[str, Any]) -> MediaTokens:
    """What a model's config.json and preprocessor_config.json say of its images.

    The processor itself knows best, but to load one takes torch and 20 s in each process that
    tokenises. The engine counts exactly; these numbers are for plans, and to keep room.
    """
    for key in ("image_seq_length", "mm_tokens_per_image"):
        if _is_count(config.get(key)):
            return MediaTokens(per_image=config[key])
    patches = _patches(config, preprocessor)
    if patches is not None:
        return MediaTokens(patches=patches)
    vision = config.get("vision_config")
    if config.get("model_type") == "llava" and isinstance(vision, Mapping):
        size, patch = vision.get("image_size", 336), vision.get("patch_size", 14)
        if _is_count(size) and _is_count(patch):
            whole = config.get("vision_feature_select_strategy") == "full"
            return MediaTokens(per_image=(size // patch) ** 2 + whole)
    return MediaTokens()


def _patches(config: Mapping[str, Any], preprocessor: Mapping[str, Any]) -> Patches | None:
    """Of Qwen2-VL and its kin, which cut an image of any size into patches."""
    patch: Any = preprocessor.get("patch_size")
    merge: Any = preprocessor.get("merge_size")
    if "qwen" not in str(config.get("model_type")) or not (_is_count(patch) and _is_count(merge)):
        return None
    size = preprocessor.get("size")
    size = size if isinstance(size, Mapping) else {}
    low: Any = preprocessor.get("min_pixels") or size.get("shortest_edge")
    high: Any = preprocessor.get("max_pixels") or size.get("longest_edge")
    if not (_is_count(low) and _is_count(high)):
        return None
    return Patches(patch * merge, low, high)


def _patch_tokens(patches: Patches, width: int, height: int) -> int:
    unit = patches.unit
    wide, high = (max(unit, round(edge / unit) * unit) for edge in (width, height))
    if wide * high > patches.max_pixels:
        shrink = math.sqrt(width * height / patches.max_pixels)
        wide, high = (max(unit, math.floor(e / shrink / unit) * unit) for e in (width, height))
    elif wide * high < patches.min_pixels:
        grow = math.sqrt(patches.min_pixels / (width * height))
        wide, high = (math.ceil(edge * grow / unit) * unit for edge in (width, height))
    return (wide // unit) * (high // unit)


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def placeholders(tokenizer: Any, config: Mapping[str, Any]) -> dict[str, str]:
    """The spelling of the tokens that stand for an image or a sound, where the model names them."""
    found = {}
    for kind, keys in _TOKEN_KEYS.items():
        token_id = next((config[key] for key in keys if type(config.get(key)) is int), None)
        if token_id is not None:
            token = tokenizer.convert_ids_to_tokens(token_id)
            if token:
                found[kind] = str(token)
    return found


def in_words(message: dict[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    """A message with one text as its content, placeholders in it, each on a line of its own.

    Raises:
        RowError: `chat_template_error` where the model has no placeholder.
    """
    content = message["content"]
    if isinstance(content, str):
        return message
    lines = []
    for part in content:
        kind = part["type"]
        if kind != "text" and kind not in known:
            raise RowError(
                "chat_template_error", f"the model and its chat template take no {kind} in messages"
            )
        lines.append(part["text"] if kind == "text" else known[kind])
    return {**message, "content": "\n".join(lines)}
