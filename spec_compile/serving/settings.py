"""What a server allows."""

from __future__ import annotations

from dataclasses import dataclass, fields

from spec_compile.errors import ConfigError


@dataclass(frozen=True)
class ServerSettings:
    """Limits and names of one server.

    Args:
        model_name: what clients call the model.
        api_key: clients must send it as a bearer token to everything under `/v1`; None asks none.
        cors_origins: origins of web pages that may call the server; none by default.
        max_body_bytes: of a request's body.
        max_prompt_tokens: of one prompt; None leaves it to the bundle's `max_length`.
        max_tokens: most tokens that a request may ask for, per choice.
        max_choices: most outputs of one request: prompts times `n`.
        max_concurrency: requests under `/v1` that are open at a time.
        max_connections: that are open at a time, idle ones included.
        request_seconds: after which a request ends.
        head_seconds: within which a request's line and headers must have come in.
        body_seconds: within which a body must have come in.
        send_seconds: after which a client that takes nothing of its answer is left.
        idle_seconds: that a connection stays open between two requests.
        playground: whether `/` is a page to try the model on.

    Raises:
        ConfigError: a value that serves nobody.
    """

    model_name: str
    api_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 2**20
    max_prompt_tokens: int | None = None
    max_tokens: int = 4096
    max_choices: int = 16
    max_concurrency: int = 256
    max_connections: int = 1000
    request_seconds: float = 600.0
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    send_seconds: float = 60.0
    idle_seconds: float = 5.0
    playground: bool = True

    def __post_init__(self) -> None:
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.strip()):
            raise ConfigError("the API key must be ASCII text and not empty")
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, int | float) and value is not False and not value > 0:
                raise ConfigError(f"{one.name}={value} must be greater than 0")
