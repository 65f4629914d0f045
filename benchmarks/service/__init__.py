"""A real server on loopback, and clients that load it."""
