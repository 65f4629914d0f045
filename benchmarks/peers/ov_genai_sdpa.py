"""Worker of OpenVINO GenAI with its other attention, stateful instead of paged: plain alone."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.ov_genai import OvGenai
from benchmarks.peers.task import PLAIN
from benchmarks.peers.worker import Generate, NotAvailable, serve


class OvGenaiSdpa(OvGenai):
    """OpenVINO GenAI with `ATTENTION_BACKEND` SDPA."""

    def notes(self) -> str:
        """What the peer was told, in one line."""
        return f"{super().notes()}; ATTENTION_BACKEND SDPA"

    def open(self, mode: str) -> Generate:
        """Load what a mode needs; see `Peer.open`."""
        if mode != PLAIN:
            raise NotAvailable("this attention takes no draft model; see the paged one")
        return super().open(mode)

    def pipeline_options(self) -> dict[str, Any]:
        """Options of the pipeline beside the device's properties."""
        return {"ATTENTION_BACKEND": "SDPA"}


if __name__ == "__main__":
    serve(OvGenaiSdpa)
