"""The application: `serve run examples.ray_serve.app:build bundle=/models/bundle`."""

from __future__ import annotations

from typing import Any

from ray import serve

from examples.ray_serve.engine import Engine
from examples.ray_serve.gateway import Gateway
from spec_compile import ConfigError
from spec_compile.runtime.loader import open_bundle

_DEFAULTS: dict[str, Any] = {
    "bundle": "",
    "min_replicas": 1,
    "max_replicas": 4,
    "num_slots": 0,  # the bundle's batch_size
    "max_queue": 32,  # requests that wait at a replica
    "num_threads": 1,
    "cpus": 1.0,  # of a machine, for each replica
    "gpus": 0.0,
}


def build(arguments: dict[str, Any]) -> serve.Application:
    """The gateway over the engine, as Ray Serve deploys it.

    Args:
        arguments: `name=value` of the command line, see `_DEFAULTS`; `bundle` is needed.

    Raises:
        ConfigError: an argument that does not exist.
        SpecCompileError: the bundle cannot be opened here.
    """
    unknown = sorted(set(arguments) - set(_DEFAULTS))
    if unknown:
        raise ConfigError(f"unknown: {', '.join(unknown)}; there are {', '.join(_DEFAULTS)}")
    if not arguments.get("bundle"):
        raise ConfigError("which bundle? give bundle=FOLDER")
    values = {
        name: type(default)(arguments.get(name, default)) for name, default in _DEFAULTS.items()
    }
    manifest = open_bundle(values["bundle"], verify_hash=False).manifest
    slots = values["num_slots"] or manifest.config.batch_size
    engine = serve.deployment(
        Engine,
        # Full replicas get no more: what does not fit waits at the gateway, for any of them.
        max_ongoing_requests=slots + values["max_queue"],
        autoscaling_config={
            "min_replicas": values["min_replicas"],
            "max_replicas": values["max_replicas"],
            "target_ongoing_requests": slots,
        },
        ray_actor_options={"num_cpus": values["cpus"], "num_gpus": values["gpus"]},
        health_check_period_s=5.0,
        graceful_shutdown_timeout_s=60.0,  # streams finish before a replica is scaled away
    )
    gateway = serve.deployment(
        Gateway, num_replicas=1, max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0.1}
    )
    bound = engine.bind(values["bundle"], slots, values["num_threads"])
    application: serve.Application = gateway.bind(bound)
    return application
