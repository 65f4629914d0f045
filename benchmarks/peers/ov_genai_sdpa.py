"""Worker of OpenVINO GenAI with its other attention: stateful, not paged."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.ov_genai import OvGenai
from benchmarks.peers.worker import serve


class OvGenaiSdpa(OvGenai):
    """OpenVINO GenAI with `ATTENTION_BACKEND` SDPA."""

    def notes(self) -> str:
        """What the peer was told, in one line."""
        return f"{super().notes()}; ATTENTION_BACKEND SDPA"

    def pipeline_options(self) -> dict[str, Any]:
        """Options of the pipeline beside the device's properties."""
        return {"ATTENTION_BACKEND": "SDPA"}


if __name__ == "__main__":
    serve(OvGenaiSdpa)
