"""Classifier: a local model over windows, the same in any batch, offline; what is no model is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from safegen.errors import ModelLoadError, RequestError
from safegen.guards.base import GuardView
from safegen.guards.classifier import Classifier
from safegen.guards.injection import PromptInjection

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of two layers with the labels benign, attack and odd, over single letters."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("classifier")
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(_WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(path)
    torch.manual_seed(3)
    names = {0: "benign", 1: "attack", 2: "odd"}
    config = BertConfig(
        vocab_size=len(_WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, num_labels=3, id2label=names, label2id={name: n for n, name in names.items()},
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(path)
    return path


def test_windows_reach_every_character_and_do_not_depend_on_their_batch(folder: Path) -> None:
    text = " ".join("abcdefghij"[at * 7 % 10] for at in range(100))
    found = {}
    for batch_size in (1, 5):
        guard = Classifier(path=str(folder), threshold=1e-6, window=16, stride=8, batch_size=batch_size)
        found[batch_size] = guard.find(GuardView(text))
        covered = {at for match in found[batch_size] for at in range(match.start, match.end)}
        assert covered == set(range(len(text)))
        assert {match.rule for match in found[batch_size]} == {"attack", "odd"}
        assert guard.hold_bound is None
    for one, other in zip(found[1], found[5], strict=True):
        assert (one.start, one.end, one.rule) == (other.start, other.end, other.rule)
        assert one.score == pytest.approx(other.score, abs=1e-5)


def test_labels_and_threshold_choose_what_is_a_finding(folder: Path) -> None:
    both = Classifier(path=str(folder), threshold=1e-6, labels=["benign", "attack", "odd"]).find(GuardView("a b c"))
    assert sum(match.score for match in both) == pytest.approx(1.0, abs=1e-5)
    least = min(match.score for match in both)
    kept = Classifier(path=str(folder), threshold=least + 1e-4, labels=["benign", "attack", "odd"])
    assert len(kept.find(GuardView("a b c"))) == 2
    assert Classifier(path=str(folder), threshold=1e-6).find(GuardView("  ")) == []


def test_injection_asks_the_classifier_too(folder: Path) -> None:
    guard = PromptInjection(classifier=str(folder), labels=["attack"], classifier_threshold=1e-6)
    assert [match.rule for match in guard.find(GuardView("a b", stage="input"))] == ["attack"]


def test_what_is_no_model_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no config"):
        Classifier(path=str(tmp_path))
    with pytest.raises(RequestError, match="spam"):
        Classifier(path=str(folder), labels=["spam"]).find(GuardView("a"))
    for wrong in ({"threshold": 0}, {"window": 4}, {"window": 16, "stride": 17}, {"batch_size": 0}):
        with pytest.raises(RequestError, match=next(reversed(wrong))):
            Classifier(path=str(folder), **wrong)  # type: ignore[arg-type]
