"""Run in Triton's environment: python triton_client.py ADDRESS MODEL < requests > answers.

Requests: a JSON list of {"inputs": {NAME: [TYPE, VALUES]}, "cancel": bool}; text is sent as
Latin-1, so that any bytes can be asked for. All are sent before the first answer is awaited, each
over a stream of its own; one to be cancelled is, after its first response. Answers: a JSON list of
{"pieces": [[TEXT, IDS, REASON]], "error": message or null}.
"""

from __future__ import annotations

import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as grpc

_TYPES: dict[str, Any] = {
    "BYTES": np.object_,
    "BOOL": np.bool_,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP32": np.float32,
}
_PATIENCE = 120.0  # seconds; a server that does not answer fails the test


class Request:
    """A request over a stream of its own."""

    def __init__(self, address: str, model: str, inputs: dict[str, Any]) -> None:
        self.client = grpc.InferenceServerClient(address)
        self.answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client.start_stream(callback=lambda result, error: self.answers.put((result, error)))
        tensors = [_tensor(name, *given) for name, given in inputs.items()]
        self.client.async_stream_infer(model, tensors)

    def collect(self, *, cancel: bool) -> dict[str, Any]:
        """All that comes, or the first response alone."""
        pieces: list[Any] = []
        error = None
        while True:
            try:
                result, failure = self.answers.get(timeout=_PATIENCE)
            except queue.Empty:
                cancel, error = True, f"no answer in {_PATIENCE} s"
                break
            if failure is not None:
                error = failure.message()
                break
            pieces.append(_piece(result))
            final = result.get_response().parameters["triton_final_response"].bool_param
            if final or cancel:
                break
        self.client.stop_stream(cancel_requests=cancel)
        return {"pieces": pieces, "error": error}


def _tensor(name: str, kind: str, values: list[Any]) -> Any:
    if kind == "BYTES":
        values = [value.encode("latin-1") for value in values]
    array = np.array(values, dtype=_TYPES[kind])
    tensor = grpc.InferInput(name, array.shape, kind)
    tensor.set_data_from_numpy(array)
    return tensor


def _piece(result: Any) -> list[Any]:
    (text,), (reason,) = result.as_numpy("text_output"), result.as_numpy("finish_reason")
    return [text.decode(), result.as_numpy("output_ids").tolist(), reason.decode()]


def main() -> None:
    """Send, collect, report."""
    address, model = sys.argv[1:]
    asked = json.load(sys.stdin)
    requests = [Request(address, model, one["inputs"]) for one in asked]
    answers = [
        request.collect(cancel=one.get("cancel", False))
        for request, one in zip(requests, asked, strict=True)
    ]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
