"""Lowerings of the ONNX Runtime backend: what its CPU runs faster than standard operators."""
