"""The OpenAPI document: of every route, of what is really read and sent, of this very server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.routing import Route

from spec_compile.runtime.api import Decoder
from spec_compile.runtime.async_decoder import AsyncDecoder
from spec_compile.runtime.shared_decoder import SharedDecoder
from spec_compile.runtime.token_kinds import TOKEN_KINDS
from spec_compile.runtime.tokenizer import BundleTokenizer
from spec_compile.serving.app import create_app
from spec_compile.serving.settings import ServerSettings
from tests.helpers.toy_bundle import VOCAB, toy_tokenizer
from tests.serving.conftest import MODEL, TOY, Running, StartServer
from tests.serving.test_completions import CHAT, TEXT, events

jsonschema_rs = pytest.importorskip("jsonschema_rs")

API = ("/v1/", "/health", "/metrics")


def document_of(running: Running) -> dict[str, Any]:
    answer = running.client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    document: dict[str, Any] = answer.json()
    return document


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for one in value.values():
            yield from references(one)
    elif isinstance(value, list):
        for one in value:
            yield from references(one)


def validator(document: dict[str, Any], name: str) -> Any:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return jsonschema_rs.validator_for(schema)


def test_every_route_is_described(plain: Decoder, running: Running) -> None:
    with SharedDecoder(plain.bundle, plain.engine, plain.tokenizer) as shared:
        app = create_app(AsyncDecoder(shared), ServerSettings(MODEL))
    served = {
        (route.path.replace(":path}", "}"), method.lower())
        for route in app.routes
        if isinstance(route, Route) and route.path.startswith(API)
        for method in (route.methods or set()) - {"HEAD"}
    }
    paths = document_of(running)["paths"]
    described = {(path, method) for path in paths for method in paths[path] if len(method) < 5}
    assert served | {("/openapi.json", "get")} == described


def test_references_lead_somewhere(running: Running) -> None:
    document = document_of(running)
    found = set(references(document))
    assert len(found) > 20
    for reference in found:
        place: Any = document
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]
        assert place


def test_limits_are_those_of_the_server(start: StartServer) -> None:
    schemas = document_of(start(max_tokens=7, max_choices=3, max_prompt_tokens=5))["components"]
    fields = schemas["schemas"]["CompletionRequest"]["properties"]
    assert fields["max_tokens"]["maximum"] == 7
    assert fields["n"]["maximum"] == 3
    ids = fields["prompt"]["anyOf"][1]
    assert (ids["maxItems"], ids["items"]["maximum"]) == (5, VOCAB - 1)
    assert TOY.max_length > 5


@pytest.mark.parametrize("key", [None, "s3cret"])
def test_a_key_is_described_where_it_is_asked_for(start: StartServer, key: str | None) -> None:
    document = document_of(start(api_key=key))
    text = json.dumps(document)
    assert ("bearer" in text) == ("error_401" in text) == (key is not None)
    assert "s3cret" not in text
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if isinstance(operation, dict):
                asks = key is not None and path.startswith("/v1/")
                assert ("security" in operation) == asks


def test_a_bundle_without_chat_template_offers_no_chat(plain: Decoder) -> None:
    tokenizer = BundleTokenizer(toy_tokenizer(), {}, None)
    with SharedDecoder(plain.bundle, plain.engine, tokenizer) as shared:
        app = create_app(AsyncDecoder(shared), ServerSettings(MODEL))
    assert "/v1/chat/completions" not in app.state.document["paths"]
    assert "/v1/completions" in app.state.document["paths"]


@pytest.mark.parametrize(
    "path,body,kind,chunk",
    [
        ("/v1/completions", TEXT, "TextCompletion", "TextChunk"),
        ("/v1/chat/completions", CHAT, "ChatCompletion", "ChatChunk"),
    ],
)
def test_answers_and_events_fit(
    running: Running, path: str, body: dict[str, Any], kind: str, chunk: str
) -> None:
    document = document_of(running)
    validator(document, kind).validate(running.client.post(path, json=body).json())
    fits = validator(document, chunk)
    asked = {**body, "n": 2, "stream_options": {"include_usage": True}}
    for event in events(running, path, asked):
        fits.validate(event)
    told = {**body, "return_token_kinds": True}
    validator(document, kind).validate(running.client.post(path, json=told).json())
    for event in events(running, path, told):
        fits.validate(event)
    card = running.client.get("/v1/models").json()["data"][0]
    validator(document, "ModelCard").validate(card)
    wrong = running.client.post(path, json={**body, "n": 0}).json()
    validator(document, "ErrorBody").validate(wrong)
    assert not fits.is_valid(wrong)


def test_kinds_of_tokens_are_the_runtimes(running: Running) -> None:
    schema = document_of(running)["components"]["schemas"]["ToldToken"]
    assert schema["properties"]["kind"]["enum"] == [kind.name for kind in TOKEN_KINDS]
