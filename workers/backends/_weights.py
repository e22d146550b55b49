"""The one set of weights that a worker process holds: loaded when first asked for, replaced when another is.

torch and transformers (the extra `local`) are imported here only, so that a worker without local models stays
small. Weights are read from safetensors, never from pickles, and no code of a model's own is run.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from assay.errors import BadInputError

__all__ = ["Generated", "Weights", "resident"]

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]

#: Decoding parameters of the protocol that have the same meaning here, and their names.
SAMPLING = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k"}


@dataclass(frozen=True)
class Generated:
    """One answer.

    Attributes:
        text: The answer, without special tokens.
        finished: Whether the model ended it itself.
        input_tokens: Tokens of the prompt, chat template included.
        output_tokens: Tokens of the answer.
        gpu_ms: Its share of the batch's time on a GPU; 0 on a CPU.
    """

    text: str
    finished: bool
    input_tokens: int
    output_tokens: int
    gpu_ms: int


class Weights:
    """A causal language model and its tokenizer on one device; to be used by one thread at a time.

    Args:
        path: Folder of the weights, or their name in the local cache of the Hugging Face hub.
        device: "cpu", "cuda", "cuda:1"; "auto" takes a GPU where there is one.
        dtype: "auto" (as stored), "float32", "bfloat16" or "float16".
    """

    def __init__(self, path: str, device: str, dtype: str) -> None:
        self.device = torch.device(_device(device))
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path, padding_side="left")
            self._model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, use_safetensors=True)
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:300]
            raise BadInputError(
                f"the weights '{path}' cannot be loaded: {reason}",
                "give a folder with config, tokenizer and safetensors, or a name in the hub's local cache",
            ) from None
        cast(Any, self._model).to(self.device).eval()
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token or self._tokenizer.unk_token

    def generate(self, texts: Sequence[str], parameters: Mapping[str, Any]) -> list[Generated]:
        """Answer some prompts as one batch.

        Args:
            texts: The prompts, put into the tokenizer's chat template where it has one.
            parameters: max_tokens, temperature (0 = greedy), top_p, top_k, seed.
        """
        batch = self._padded([self._prompt_ids(text) for text in texts])
        if (seed := parameters.get("seed")) is not None:
            torch.manual_seed(int(seed))
        most = int(parameters.get("max_tokens", 512))
        started = time.monotonic()
        with torch.inference_mode():
            found = self._model.generate(
                **batch,
                max_new_tokens=most,
                pad_token_id=self._tokenizer.pad_token_id,
                **_decoding(parameters),
            )
        new = found[:, batch["input_ids"].shape[1] :].tolist()
        gpu_ms = self._share(started, len(texts))
        lengths = batch["attention_mask"].sum(1).tolist()
        return [self._generated(ids, int(length), gpu_ms) for ids, length in zip(new, lengths, strict=True)]

    def likelihoods(self, text: str, choices: Sequence[str]) -> tuple[list[float], int, int]:
        """Log-likelihood (natural logarithm, summed over tokens) of each choice after a prompt.

        Returns:
            The log-likelihoods, the tokens read, and the GPU milliseconds.
        """
        prompt = self._prompt_ids(text)
        tails = [self._tokenizer(choice, add_special_tokens=False)["input_ids"] for choice in choices]
        batch = self._padded([prompt + tail for tail in tails])
        started = time.monotonic()
        with torch.inference_mode():
            logits = self._model(**batch).logits.float().log_softmax(-1)
        found = [_tail_logprob(logits[i], batch["input_ids"][i], len(tail)) for i, tail in enumerate(tails)]
        read = len(prompt) + sum(map(len, tails))  # the prompt is the same for all
        return found, read, self._share(started, 1)

    def _prompt_ids(self, text: str) -> list[int]:
        if not self._tokenizer.chat_template:
            plain: list[int] = self._tokenizer(text)["input_ids"]
            return plain
        messages = [{"role": "user", "content": text}]
        chat = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids: list[int] = self._tokenizer(chat, add_special_tokens=False)["input_ids"]
        return ids

    def _padded(self, rows: Sequence[list[int]]) -> dict[str, torch.Tensor]:
        """Rows of ids, padded on the left, so that every answer begins in the same place."""
        longest, pad = max(map(len, rows)), self._tokenizer.pad_token_id or 0
        ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        parts = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        return {name: part.to(self.device) for name, part in parts.items()}

    def _generated(self, ids: list[int], input_tokens: int, gpu_ms: int) -> Generated:
        ends = self._model.generation_config.eos_token_id
        stops = set(ends if isinstance(ends, list) else [ends]) | {self._tokenizer.eos_token_id}
        at = next((i for i, token in enumerate(ids) if token in stops), None)
        text = self._tokenizer.decode(ids[:at], skip_special_tokens=True)
        output_tokens = len(ids) if at is None else at + 1
        return Generated(text, at is not None, input_tokens, output_tokens, gpu_ms)

    def _share(self, started: float, among: int) -> int:
        if self.device.type != "cuda":
            return 0
        torch.cuda.synchronize(self.device)
        return -(-round((time.monotonic() - started) * 1000) // among)


def _device(name: str) -> str:
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def _decoding(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The protocol's decoding parameters in the words of `generate`; temperature 0 is greedy."""
    if not float(parameters.get("temperature", 0.0)):
        return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    given = {SAMPLING[name]: value for name, value in parameters.items() if name in SAMPLING}
    return {"do_sample": True, **given}


def _tail_logprob(logprobs: torch.Tensor, ids: torch.Tensor, length: int) -> float:
    """Summed log-probability of the last `length` tokens, each given all before it."""
    if not length:
        return 0.0
    before, tokens = logprobs[-length - 1 : -1], ids[-length:]
    return float(before.gather(1, tokens[:, None]).sum())


class _Resident:
    """Holds at most one set of weights; another one that is asked for takes its place."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key: tuple[str, str, str] | None = None
        self._weights: Weights | None = None

    def use(self, key: tuple[str, str, str]) -> Weights:
        if self._weights is None or self._key != key:
            self._key = self._weights = None
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self._weights = Weights(*key)
            self._key = key
        return self._weights

    def __enter__(self) -> _Resident:
        self._lock.acquire()
        return self

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


#: Of this process; to be entered for as long as its weights are in use.
resident = _Resident()
