"""The deployment that holds a bundle: each replica serves many requests on one engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ray import serve

from spec_compile import AsyncDecoder
from spec_compile.errors import (
    ClosedError,
    ConfigError,
    GenerationError,
    QueueFullError,
    SpecCompileError,
)


class Engine:
    """One replica.

    Args:
        bundle: its folder, on every machine.
        num_slots: requests served at a time; None takes the bundle's `batch_size`.
        num_threads: threads of one graph call; None leaves the choice to the engine.
        request_seconds: after which a request ends with what it has.
    """

    def __init__(
        self,
        bundle: str,
        num_slots: int | None = None,
        num_threads: int | None = None,
        request_seconds: float = 600.0,
    ) -> None:
        self._service = AsyncDecoder.load(bundle, num_slots=num_slots, num_threads=num_threads)
        self._seconds = request_seconds
        self._name = serve.get_replica_context().replica_id.unique_id

    async def answer(self, prompt: str, options: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Pieces of text, then why it ended; or, as its only event, why it was refused.

        Args:
            prompt: a text.
            options: see `GenerationOptions`.
        """
        try:
            stream = await self._service.stream(prompt, timeout=self._seconds, **options)
            async with stream:
                async for piece in stream:
                    yield {"text": piece, "replica": self._name}
            result = stream.result
        except QueueFullError as error:
            yield {"error": str(error), "status": 429}
        except (ConfigError, GenerationError) as error:
            yield {"error": str(error), "status": 400}
        except SpecCompileError as error:  # the engine failed, or is being closed
            yield {"error": str(error), "status": 503 if isinstance(error, ClosedError) else 500}
        else:
            yield {
                "replica": self._name,
                "finish_reason": result.finish_reason,
                "prompt_tokens": result.prompt_length,
                "completion_tokens": len(result.token_ids),
            }

    def check_health(self) -> None:
        """Tell Serve to replace this replica when its worker has ended.

        Raises:
            RuntimeError: it has.
        """
        if not self._service.decoder.scheduler.is_running:
            raise RuntimeError("the engine's worker has ended")
