"""Whether new requests are welcome, told truly."""

from __future__ import annotations

import asyncio

from spec_compile.errors import BackendError, QueueFullError, SpecCompileError
from spec_compile.runtime.async_decoder import AsyncDecoder

_PROBE_SECONDS = 10.0


class Readiness:
    """What `/health/ready` reports.

    One request may have made the engine fail, or the engine may be broken for all. So after a
    failure the next question is answered by a probe: one token, generated as for any request.

    Attributes:
        draining: whether the server shuts down.
    """

    def __init__(self) -> None:
        self.draining = False
        self._doubtful = False
        self._probing = asyncio.Lock()

    def note(self, error: SpecCompileError | None) -> None:
        """A request that the engine ran for has ended, well or with an error."""
        if error is None or isinstance(error, BackendError):
            self._doubtful = error is not None

    async def engine_works(self, decoder: AsyncDecoder) -> bool:
        """Whether the engine's last call went well, or a probe goes well now."""
        async with self._probing:
            if self._doubtful:
                try:
                    result = await decoder.generate([0], max_new_tokens=1, timeout=_PROBE_SECONDS)
                    self._doubtful = not result.token_ids  # none: it was not in time
                except QueueFullError:
                    return True  # what becomes of those that wait will tell
                except SpecCompileError:
                    return False
        return not self._doubtful
