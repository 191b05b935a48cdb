"""What a tokenizer is made of, however it was stored: the seam between the readers and `Tokenizer`.

`Backends` are views on one `tokenizers` model that differ in what happens at the start of a text. They share the
vocabulary and merges, so a view costs next to nothing. None of them turns text into a control id: control tokens are
split off before (control_tokens.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken

from safegen.engine.control_tokens import ControlTokens
from safegen.errors import ModelLoadError

# Control tokens that end a turn or a text, by their strings, whatever the file's own keys say.
END_OF_TURN_STRINGS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|end_of_turn|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<EOT>",
        "<｜end▁of▁sentence｜>",
    }
)


_LeafChange = Callable[[dict[str, Any]], dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Backends:
    """start: for the beginning of a text. later: for the text after a control token. exact: for text that continues
    other text, without the space and the normalization that a tokenizer puts on a text's beginning.
    prefix: what is to be put in front of a whole text before `start` sees it: "" or a space. adds_space: the ids of a
    whole text begin with a space that the text may not have, put there by `prefix` or by `start` itself."""

    start: tokenizers.Tokenizer
    later: tokenizers.Tokenizer
    exact: tokenizers.Tokenizer
    prefix: str
    adds_space: bool


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """token_bytes: one entry an id the tokenizer knows (not yet padded to the model). prefix_ids: what a prompt
    starts with (BOS or nothing). special_strings: bos_token, eos_token, ... for the chat template."""

    backends: Backends
    token_bytes: tuple[bytes | None, ...]
    control: ControlTokens
    stop_ids: frozenset[int]
    bos_id: int | None
    eos_id: int | None
    prefix_ids: tuple[int, ...]
    special_strings: dict[str, str]
    chat_template: str | None


def build_backends(base: tokenizers.Tokenizer, source: str, prefix: str = "") -> Backends:
    """The three views of `base`, which becomes `start`."""
    base.no_truncation()
    base.no_padding()
    base.encode_special_tokens = True
    normalizer, pre_tokenizer = _state(base.normalizer), _state(base.pre_tokenizer)
    later_pre = _map_components(pre_tokenizer, _without_first_space)
    exact_pre = _map_components(pre_tokenizer, _without_space)
    exact_normalizer = _map_components(normalizer, _only_replacements)
    adds_space = prefix == " " or exact_pre != pre_tokenizer or _has_component(normalizer, "Prepend")
    later = base if later_pre == pre_tokenizer else _view(base, normalizer, later_pre, source)
    same = exact_pre == pre_tokenizer and exact_normalizer == normalizer
    exact = base if same else _view(base, exact_normalizer, exact_pre, source)
    return Backends(base, later, exact, prefix, adds_space)


def component_states(component: object) -> list[dict[str, Any]]:
    """The settings of a normalizer, pre-tokenizer or decoder as flat list of dicts with a "type"; None is empty."""
    return _flatten(_state(component))


def _state(component: object) -> dict[str, Any] | None:
    if component is None:
        return None
    state: dict[str, Any] = json.loads(component.__getstate__())  # type: ignore[arg-type]
    return state


def _children(state: dict[str, Any]) -> str | None:
    return next((key for key in ("normalizers", "pretokenizers", "decoders") if key in state), None)


def _flatten(state: dict[str, Any] | None) -> list[dict[str, Any]]:
    if state is None:
        return []
    key = _children(state)
    return [state] if key is None else [leaf for child in state[key] for leaf in _flatten(child)]


def _has_component(state: dict[str, Any] | None, kind: str) -> bool:
    return any(leaf.get("type") == kind for leaf in _flatten(state))


def _map_components(state: dict[str, Any] | None, change: _LeafChange) -> dict[str, Any] | None:
    """`change` applied to every leaf; a leaf that becomes None is dropped."""
    if state is None:
        return None
    key = _children(state)
    if key is None:
        return change(state)
    kept = [leaf for leaf in (_map_components(child, change) for child in state[key]) if leaf is not None]
    return {**state, key: kept} if kept else None


def _without_first_space(leaf: dict[str, Any]) -> dict[str, Any]:
    """Metaspace "first" means the first piece of a whole text only; a later piece is encoded on its own here."""
    if leaf.get("type") == "Metaspace" and leaf.get("prepend_scheme") == "first":
        return {**leaf, "prepend_scheme": "never"}
    return leaf


def _without_space(leaf: dict[str, Any]) -> dict[str, Any]:
    if leaf.get("type") == "Metaspace" and leaf.get("prepend_scheme") != "never":
        return {**leaf, "prepend_scheme": "never"}
    if leaf.get("type") == "ByteLevel" and leaf.get("add_prefix_space"):
        return {**leaf, "add_prefix_space": False}
    return leaf


def _only_replacements(leaf: dict[str, Any]) -> dict[str, Any] | None:
    """Keep what respells text for the vocabulary (space to its mark), drop what changes its bytes."""
    return leaf if leaf.get("type") in ("Replace", "ByteLevel") else None


def _view(
    base: tokenizers.Tokenizer,
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any] | None,
    source: str,
) -> tokenizers.Tokenizer:
    """A tokenizer over `base`'s model with other surroundings."""
    skeleton = tokenizers.Tokenizer.from_str(
        json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [],
                "normalizer": normalizer,
                "pre_tokenizer": pre_tokenizer,
                "post_processor": None,
                "decoder": None,
                "model": {"type": "BPE", "vocab": {}, "merges": []},
            }
        )
    )
    view = tokenizers.Tokenizer(base.model)
    if skeleton.normalizer is not None:
        view.normalizer = skeleton.normalizer
    if skeleton.pre_tokenizer is not None:
        view.pre_tokenizer = skeleton.pre_tokenizer
    added: dict[int, AddedToken] = base.get_added_tokens_decoder()
    view.add_tokens([added[token_id] for token_id in sorted(added)])
    if {i: token.content for i, token in view.get_added_tokens_decoder().items()} != {
        i: token.content for i, token in added.items()
    }:
        raise ModelLoadError("added tokens have gaps in their ids", path=source, hint="re-export the tokenizer")
    view.encode_special_tokens = True
    return view
