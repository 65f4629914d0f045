"""Worker of transformers: eager PyTorch, assisted generation with a constant number of drafts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.peers.task import Task
from benchmarks.peers.worker import Generate, NotAvailable, Output, draft_of, serve


class HfTransformers:
    """transformers in float32."""

    def __init__(self, task: Task) -> None:
        import torch

        if task.precision != "float32":
            raise NotAvailable("no int8 or int4 weights on CPU without further packages")
        torch.set_num_threads(task.num_threads)
        torch.set_grad_enabled(False)
        self._task = task
        self._target = self._load(Path(task.target))
        self._calls = 0
        self._target.register_forward_hook(self._count)

    def versions(self) -> Mapping[str, str]:
        """Packages and their versions."""
        return {name: metadata.version(name) for name in ("transformers", "torch")}

    def notes(self) -> str:
        """What the peer was told, in one line."""
        return "eager, sdpa attention, dynamic cache"

    def open(self, mode: str) -> Generate:
        """Load what a mode needs; see `Peer.open`."""
        import torch

        task = self._task
        draft = draft_of(task, mode)
        extra = {} if draft is None else {"assistant_model": self._assistant(draft)}

        def generate(prompt: Sequence[int], max_new_tokens: int) -> Output:
            self._calls = 0
            torch.manual_seed(task.seed)
            tokens = torch.tensor([prompt])
            given = {"max_new_tokens": max_new_tokens, "attention_mask": torch.ones_like(tokens)}
            output = self._target.generate(tokens, **given, **self._sampling(), **extra)
            return Output(output[0, len(prompt) :].tolist(), self._calls)

        return generate

    def _sampling(self) -> dict[str, Any]:
        if self._task.temperature == 0:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": self._task.temperature, "top_k": 0, "top_p": 1.0}

    def _assistant(self, draft: Path) -> Any:
        assistant = self._load(draft)
        config = assistant.generation_config
        config.num_assistant_tokens = self._task.num_speculative_tokens
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = 0.0
        return assistant

    def _load(self, folder: Path) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, local_files_only=True
        )
        model.eval()
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        return model

    def _count(self, *_: object) -> None:
        self._calls += 1

    def close(self) -> None:
        """Nothing outlives this process."""

    def calls(self, num_tokens: int) -> Iterator[float]:
        """Milliseconds of single calls of the target; see `Peer.calls`."""
        import torch
        from transformers import DynamicCache

        task = self._task
        token = task.prompts[0][0]
        cache = DynamicCache(config=self._target.config)
        self._target(torch.full((1, task.valid), token), past_key_values=cache)
        tokens = torch.full((1, num_tokens), token)
        while True:
            started = time.perf_counter()
            self._target(tokens, past_key_values=cache)
            milliseconds = 1000.0 * (time.perf_counter() - started)
            cache.crop(-num_tokens)
            yield milliseconds


if __name__ == "__main__":
    serve(HfTransformers)
