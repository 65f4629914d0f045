"""What schemathesis checks beyond its own: loaded by its command as hooks."""

from __future__ import annotations

from typing import Any

import schemathesis

# What a document cannot say: rules about several fields, and the tokens of a text.
NOT_IN_THE_DOCUMENT = (
    "prompts times n",
    "stream_options needs stream",
    "give max_tokens or max_completion_tokens",
    "the prompt has",
    "adaptive=True and speculative=False exclude each other",
    "prompt_lookup_min=",
)


@schemathesis.check
def fits_or_is_known(
    _: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> None:
    """A request that fits the document is served, or breaks a rule that no document can say."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if response.status_code == 400:
        message = response.json()["error"]["message"]
        assert any(rule in message for rule in NOT_IN_THE_DOCUMENT), message


@schemathesis.check
def tells_no_internals(
    _: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> None:
    """No request makes the server fail, and no answer shows its inside."""
    assert response.status_code < 500, case.body
    assert b"Traceback" not in response.content
