"""A local sequence-classification model as a guard: toxicity, topics, prompt attacks, or what else it was trained on.

The model is a folder on disk (config.json, weights, tokenizer), read by transformers with `local_files_only`; nothing
is ever fetched, and no code of the folder is run. It loads on first use. Texts longer than the model's window are read
in overlapping windows, in batches, so no place of a long text hides from it and time stays linear in the length. A
window whose probability for a label reaches the threshold is a match of its span.

What it cannot promise: verdicts are the model's, with its errors. They depend on whole windows, so there is no bound,
and a stream is held to its end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from safegen.errors import ModelLoadError, RequestError
from safegen.guards.base import Guard, GuardView, Match


class Classifier(Guard):
    """path: the model's folder. labels: which of its labels are findings; default: all but the first, or, of a model
    with one label, that one. threshold: least probability (softmax over labels; sigmoid for one label or
    `multi_label`). window, stride: tokens of a window, and by how many the next one begins later; defaults: the model's
    limit (at most 512), and half of the window.
    """

    version = "1"

    def __init__(
        self,
        *,
        path: str,
        labels: Sequence[str] | None = None,
        threshold: float = 0.5,
        window: int | None = None,
        stride: int | None = None,
        batch_size: int = 8,
        multi_label: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.path = str(path)
        self.labels = None if labels is None else (*((labels,) if isinstance(labels, str) else labels),)
        self.threshold, self.window, self.stride = threshold, window, stride
        self.batch_size, self.multi_label = batch_size, multi_label
        self._check()
        self._lock = threading.Lock()
        self._model: _Model | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Its settings: another process loads the model anew."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_model")}

    def __setstate__(self, settings: dict[str, Any]) -> None:
        self.__dict__.update(settings)
        self._lock = threading.Lock()
        self._model = None

    def _check(self) -> None:
        if (
            isinstance(self.threshold, bool)
            or not isinstance(self.threshold, int | float)
            or not 0 < self.threshold <= 1
        ):
            raise RequestError(
                f"Classifier: threshold={self.threshold!r}; it is a probability above 0, at most 1",
                field="threshold",
                value=self.threshold,
            )
        for field, least in (("window", 8), ("stride", 1), ("batch_size", 1)):
            value = getattr(self, field)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise RequestError(
                    f"Classifier: {field}={value!r}; it is a whole number from {least} on", field=field, value=value
                )
        if self.window is not None and self.stride is not None and self.stride > self.window:
            raise RequestError(
                f"Classifier: stride={self.stride!r} leaves gaps between windows of {self.window}; it is at most that",
                field="stride",
                value=self.stride,
            )
        if not (Path(self.path) / "config.json").is_file():
            raise ModelLoadError(
                "no config.json there", path=self.path, hint="name a folder with a sequence-classification model"
            )

    def find(self, view: GuardView) -> list[Match]:
        if not view.text.strip():
            return []
        with self._lock:
            if self._model is None:
                self._model = _Model(self)
            return sorted(self._model.matches(view.text))


class _Model:
    """The loaded model of one guard. Used under its lock."""

    def __init__(self, guard: Classifier) -> None:
        try:
            import torch
            from transformers import AutoModelForSequenceClassification, AutoTokenizer
        except ImportError as error:
            raise RequestError(
                f"Classifier: needs transformers: pip install 'safegen[classifier]' ({error})", field="path"
            ) from error
        settings: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(guard.path, use_fast=True, **settings)
            model = AutoModelForSequenceClassification.from_pretrained(guard.path, use_safetensors=True, **settings)
        except (OSError, ValueError, KeyError) as error:
            raise ModelLoadError(f"{type(error).__name__}: {error}", path=guard.path) from error
        if not self._tokenizer.is_fast:
            raise ModelLoadError(
                "its tokenizer has no offsets", path=guard.path, hint="save it as tokenizer.json (a fast tokenizer)"
            )
        self._torch, self._model, self._guard = torch, model.eval(), guard
        self._names = [str(model.config.id2label[number]) for number in range(model.config.num_labels)]
        self._wanted = self._wanted_labels()
        limit = int(getattr(model.config, "max_position_embeddings", 512) or 512)
        num_special = self._tokenizer.num_special_tokens_to_add()
        self._window = min(guard.window or 512, limit - 2 if limit > 16 else limit, 1 << 20)
        self._stride = min(guard.stride or max(1, self._window // 2), max(1, self._window - num_special))

    def _wanted_labels(self) -> list[int]:
        given = self._guard.labels
        if given is None:
            return list(range(len(self._names)))[1:] or [0]
        for name in given:
            if name not in self._names:
                raise RequestError(
                    f"Classifier: labels holds {name!r}; the model has {', '.join(self._names)}",
                    field="labels",
                    value=name,
                )
        return [self._names.index(name) for name in given]

    def matches(self, text: str) -> Iterator[Match]:
        encoded = self._tokenizer(
            text,
            truncation=True,
            max_length=self._window,
            stride=max(0, self._window - self._tokenizer.num_special_tokens_to_add() - self._stride),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
        )
        size = self._guard.batch_size
        for begin in range(0, len(encoded["input_ids"]), size):
            rows = range(begin, min(begin + size, len(encoded["input_ids"])))
            for row, probabilities in zip(rows, self._probabilities([encoded["input_ids"][row] for row in rows])):
                special = encoded["special_tokens_mask"][row]
                spans = [span for span, is_special in zip(encoded["offset_mapping"][row], special) if not is_special]
                for label in self._wanted:
                    if spans and probabilities[label] >= self._guard.threshold:
                        yield Match(spans[0][0], spans[-1][1], self._names[label], probabilities[label])

    def _probabilities(self, rows: list[list[int]]) -> list[list[float]]:
        """Of each label, a row for each window. Padding is masked, so windows do not depend on their company."""
        torch = self._torch
        padding = self._tokenizer.pad_token_id or 0
        length = max(map(len, rows))
        ids = torch.tensor([row + [padding] * (length - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
        with torch.inference_mode():
            logits = self._model(input_ids=ids, attention_mask=mask).logits.float()
        single = self._guard.multi_label or logits.shape[-1] == 1
        found: list[list[float]] = (logits.sigmoid() if single else logits.softmax(-1)).tolist()
        return found
