"""The measurements behind `docs/benchmarks.md`, one a file; `foundation.py` runs them."""
