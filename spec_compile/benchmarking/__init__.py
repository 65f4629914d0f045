"""What `spec-compile bench` measures, and where it measured it."""
