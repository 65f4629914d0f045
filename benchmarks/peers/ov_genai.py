"""Worker of OpenVINO GenAI: optimum-intel's conversion, `LLMPipeline`, its `draft_model`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.conversion import converted, run_quietly
from benchmarks.peers.task import PLAIN, Task
from benchmarks.peers.worker import Generate, Output, draft_of, serve

_EXPORT: Mapping[str, Sequence[str]] = {
    "float32": ("fp32",),
    "int8": ("int8",),
    "int4": ("int4", "--sym", "--group-size", "32", "--all-layers"),
}
_PACKAGES = ("openvino-genai", "openvino", "optimum-intel", "nncf")


class OvGenai:
    """OpenVINO GenAI at one precision."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._target = self._model_folder(Path(task.target))

    def versions(self) -> Mapping[str, str]:
        """Packages and their versions."""
        return {name: metadata.version(name) for name in _PACKAGES}

    def notes(self) -> str:
        """What the peer was told, in one line."""
        exported = " ".join(_EXPORT[self._task.precision])
        computed = "float32" if self._task.precision == "float32" else "the engine's default type"
        return f"optimum-cli --weight-format {exported}; computes in {computed}"

    def open(self, mode: str) -> Generate:
        """Load what a mode needs; see `Peer.open`."""
        ov: Any = import_module("openvino")
        genai: Any = import_module("openvino_genai")
        properties = self._properties()
        extra = self.pipeline_options()
        draft = draft_of(self._task, mode)
        if draft is not None:
            folder = self._model_folder(draft)
            extra["draft_model"] = genai.draft_model(str(folder), "CPU", **properties)
        pipeline = genai.LLMPipeline(str(self._target), "CPU", **properties, **extra)

        def generate(prompt: Sequence[int], max_new_tokens: int) -> Output:
            config = self._config(genai, mode, max_new_tokens)
            result = pipeline.generate(ov.Tensor(np.array([prompt], dtype=np.int64)), config)
            detail = result.extended_perf_metrics if mode != PLAIN else None
            rounds = len(detail.main_model_metrics.raw_metrics.m_batch_sizes) if detail else None
            return Output(result.tokens[0], rounds)

        return generate

    def pipeline_options(self) -> dict[str, Any]:
        """Options of the pipeline beside the device's properties."""
        return {}

    def _config(self, genai: Any, mode: str, max_new_tokens: int) -> Any:
        task = self._task
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = max_new_tokens, True
        config.apply_chat_template = False
        config.do_sample = task.temperature > 0
        if task.temperature > 0:
            config.temperature, config.rng_seed = task.temperature, task.seed
        if mode != PLAIN:
            config.num_assistant_tokens = task.num_speculative_tokens
        return config

    def _properties(self) -> dict[str, Any]:
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": self._task.num_threads}
        if self._task.precision == "float32":
            properties["INFERENCE_PRECISION_HINT"] = "f32"  # else bfloat16 where the CPU has it
        return properties

    def _model_folder(self, checkpoint: Path) -> Path:
        """The checkpoint as OpenVINO files."""
        how = _EXPORT[self._task.precision]

        def convert(folder: Path) -> None:
            tool = str(Path(sys.executable).with_name("optimum-cli"))
            what = ["export", "openvino", "--task", "text-generation-with-past"]
            model = ["-m", str(checkpoint.resolve()), "--weight-format", *how, str(folder)]
            run_quietly([tool, *what, *model], {**os.environ, "HF_HUB_OFFLINE": "1"})

        name = f"ov-genai-{self._task.precision}"
        return converted(Path(self._task.converted), checkpoint, name, convert)

    def close(self) -> None:
        """Nothing outlives this process."""

    def calls(self, num_tokens: int) -> Iterator[float]:
        """The model's own stateful graph, run by OpenVINO; its state is made anew before a call."""
        task = self._task
        core: Any = import_module("openvino").Core()
        model = core.read_model(self._target / "openvino_model.xml")
        request = core.compile_model(model, "CPU", self._properties()).create_infer_request()
        names = {name for port in model.inputs for name in port.names}

        def feed(start: int, width: int) -> dict[str, Any]:
            given = {
                "input_ids": np.full((1, width), task.prompts[0][0], dtype=np.int64),
                "attention_mask": np.ones((1, start + width), dtype=np.int64),
                "position_ids": np.arange(start, start + width, dtype=np.int64)[None],
                "beam_idx": np.zeros(1, dtype=np.int32),
            }
            return {name: array for name, array in given.items() if name in names}

        while True:
            request.reset_state()
            request.infer(feed(0, task.valid))
            given = feed(task.valid, num_tokens)
            started = time.perf_counter()
            request.infer(given)
            yield 1000.0 * (time.perf_counter() - started)


if __name__ == "__main__":
    serve(OvGenai)
