"""From a bundle on disk to tokens: NumPy and the engine's own package, nothing of the compiler."""
