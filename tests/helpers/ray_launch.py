"""Run in Ray's environment: python ray_launch.py PORT NAME=VALUE... serves until stdin ends."""

from __future__ import annotations

import sys

import ray
from ray import serve

from examples.ray_serve.app import build


def main() -> None:
    """Start a local Ray of our own, deploy, say so, wait."""
    port, *pairs = sys.argv[1:]
    ray.init(
        address="local",
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    serve.run(build(dict(pair.split("=", 1) for pair in pairs)))
    sys.stdout.write("READY\n")
    sys.stdout.flush()
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
