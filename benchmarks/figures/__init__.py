"""The measurements behind `docs/benchmarks.md`, one a file; `benchmarks/foundation.py` runs them."""
