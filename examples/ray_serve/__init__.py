"""A bundle on many machines, with Ray Serve: replicas that scale, streams, and retries."""
