"""Worker of ONNX Runtime GenAI: its model builder's graphs, its generator, its draft model.

Speculation is a second decoder under `model.draft` of `genai_config.json`; the files of both models
lie in one folder. EOS is made an ordinary token by naming an unused special token in its
place.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.conversion import converted, run_quietly
from benchmarks.peers.task import Task
from benchmarks.peers.worker import Generate, NotAvailable, Output, draft_of, serve

_NAMES = {"float32": "fp32", "int8": "int8", "int4": "int4"}
_SLOTS = 512


class OrtGenai:
    """ONNX Runtime GenAI at one precision."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._model_folder(Path(task.target))  # a conversion that fails says so before all else

    def versions(self) -> Mapping[str, str]:
        """Packages and their versions."""
        return {name: metadata.version(name) for name in ("onnxruntime-genai", "onnxruntime")}

    def notes(self) -> str:
        """What the peer was told, in one line."""
        if self._task.precision == "float32":
            return "model builder, float32"
        return f"model builder, MatMulNBits {self._task.precision}, blocks of 32, accuracy level 4"

    def open(self, mode: str) -> Generate:
        """Load what a mode needs; see `Peer.open`."""
        og: Any = import_module("onnxruntime_genai")
        draft = draft_of(self._task, mode)
        model = og.Model(str(self._run_folder(mode, draft)))

        def generate(prompt: Sequence[int], max_new_tokens: int) -> Output:
            generator = og.Generator(
                model, self._parameters(og, model, len(prompt), max_new_tokens)
            )
            generator.append_tokens(np.array(prompt, dtype=np.int32))
            while not generator.is_done():
                generator.generate_next_token()
            tokens = generator.get_sequence(0)[len(prompt) :]
            if draft is None:
                return Output(tokens)
            return Output(tokens, int(generator.get_speculative_stats()["rounds"]))

        return generate

    def _parameters(self, og: Any, model: Any, prompt_length: int, max_new_tokens: int) -> Any:
        task = self._task
        parameters = og.GeneratorParams(model)
        options: dict[str, Any] = {"max_length": prompt_length + max_new_tokens}
        if task.temperature > 0:
            options |= {"do_sample": True, "temperature": task.temperature, "top_p": 1.0}
            options |= {"top_k": 0, "random_seed": task.seed}
        else:
            options |= {"do_sample": False}
        parameters.set_search_options(**options)
        parameters.set_speculative_options(max_draft_tokens=task.num_speculative_tokens)
        return parameters

    def _model_folder(self, checkpoint: Path, stem: str = "model") -> Path:
        """The model builder's output for a checkpoint, its files named after `stem`."""
        precision = self._task.precision

        def convert(folder: Path) -> None:
            builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
            what = ["-i", str(checkpoint.resolve()), "-o", str(folder), "-e", "cpu"]
            how = ["-p", _NAMES[precision], "-c", str(folder / "cache")]
            named = ["--extra_options", f"filename={stem}.onnx"]
            run_quietly([*builder, *what, *how, *named], {**os.environ, "HF_HUB_OFFLINE": "1"})

        name = f"ort-genai-{stem}-{precision}"
        return converted(Path(self._task.converted), checkpoint, name, convert)

    def _run_folder(self, mode: str, draft: Path | None) -> Path:
        """A folder that ONNX Runtime GenAI opens: links to the files and a config of this run."""
        target = self._model_folder(Path(self._task.target))
        config = json.loads((target / "genai_config.json").read_text(encoding="utf-8"))
        sources = [target]
        if draft is not None:
            source = self._model_folder(draft, "draft")  # one folder has to hold both
            sources.append(source)
            other = json.loads((source / "genai_config.json").read_text(encoding="utf-8"))
            config["model"]["draft"] = other["model"]["decoder"]
        for name in ("decoder", "draft"):
            if name in config["model"]:
                options = config["model"][name]["session_options"]
                options["intra_op_num_threads"] = self._task.num_threads
        config["model"]["eos_token_id"] = [_unused_token(Path(self._task.target), config["model"])]
        folder = target.parent / f"ort-genai-run-{self._task.precision}-{mode}"
        folder.mkdir(exist_ok=True)
        for file in (file for source in sources for file in source.iterdir() if file.is_file()):
            link = folder / file.name
            link.unlink(missing_ok=True)
            if file.name != "genai_config.json":
                os.link(file, link)  # a symbolic link would lead outside of the model's folder
        (folder / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
        return folder

    def close(self) -> None:
        """Nothing outlives this process."""

    def calls(self, num_tokens: int) -> Iterator[float]:
        """Milliseconds of single calls of the target; see `Peer.calls`."""
        return decoder_calls(self._model_folder(Path(self._task.target)), self._task, num_tokens)


def _unused_token(checkpoint: Path, model: Mapping[str, Any]) -> int:
    """A special token without a part in this model's texts, to stand where EOS has to stand.

    Raises:
        NotAvailable: the tokenizer has none.
    """
    used: set[Any] = set()
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = model.get(name)
        used |= set(value) if isinstance(value, list) else {value}
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    special = {one["id"] for one in tokenizer["added_tokens"] if one["special"]}
    free = {token for token in special - used if token < model["vocab_size"]}
    if not free:
        raise NotAvailable("the tokenizer has no unused special token to put in the place of EOS")
    return int(max(free))


def decoder_calls(folder: Path, task: Task, num_tokens: int) -> Iterator[float]:
    """Milliseconds of single runs of the builder's decoder graph, by ONNX Runtime directly."""
    import onnxruntime as ort

    text = (folder / "genai_config.json").read_text(encoding="utf-8")
    config = json.loads(text)["model"]
    slots = max(_SLOTS, task.valid + num_tokens)
    shape = (1, config["decoder"]["num_key_value_heads"], slots, config["decoder"]["head_size"])
    options = ort.SessionOptions()
    options.intra_op_num_threads = task.num_threads
    session = ort.InferenceSession(
        str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    tokens = np.array([task.prompts[0][:1] * num_tokens], dtype=np.int64)
    mask = np.ones((1, task.valid + num_tokens), dtype=np.int64)
    held = {"input_ids": tokens, "attention_mask": mask}
    caches: dict[str, Any] = {}
    for tensor in session.get_inputs():
        if tensor.name in held:
            array = held[tensor.name]
            binding.bind_input(tensor.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
            continue
        random = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        caches[tensor.name] = ort.OrtValue.ortvalue_from_numpy(random)
        binding.bind_ortvalue_input(tensor.name, caches[tensor.name])
        present = tensor.name.replace("past_key_values", "present")
        binding.bind_ortvalue_output(present, caches[tensor.name])
    logits = np.zeros((1, num_tokens, config["vocab_size"]), dtype=np.float32)
    binding.bind_output("logits", "cpu", 0, logits.dtype, logits.shape, logits.ctypes.data)
    while True:
        started = time.perf_counter()
        session.run_with_iobinding(binding)
        yield 1000.0 * (time.perf_counter() - started)


if __name__ == "__main__":
    serve(OrtGenai)
