"""From checkpoints to graphs (capture), and from graphs to engine files (backends, bundles)."""
