"""Triton kernels for the acceptance tail, as torch operators with a reference: docs/kernels.md."""

from __future__ import annotations
