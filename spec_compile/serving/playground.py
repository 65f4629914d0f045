"""The page at `/`: a prompt, an answer whose tokens show how they came about, live figures.

It is a client like any other: it holds no secret, so that no key guards it, and asks `/v1` with the
key that its user types. The files lie in the package; nothing comes from elsewhere.
"""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spec_compile.runtime.token_kinds import TOKEN_KINDS

_FILES = {
    "base.css": "text/css",
    "page.css": "text/css",
    "icon.svg": "image/svg+xml",
    "main.js": "text/javascript",
    "client.js": "text/javascript",
    "figures.js": "text/javascript",
    "transcript.js": "text/javascript",
    "form.js": "text/javascript",
}
# Trusted types leave no way to make markup of a string, whatever a script does.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",
}


def playground_routes() -> list[Route]:
    """The page and its files."""

    async def page(_: Request) -> Response:
        return _answer(_page(), "text/html")

    async def kinds(_: Request) -> Response:
        return _answer(_kinds_css(), "text/css")

    routes = [Route("/", page), Route("/playground/kinds.css", kinds)]
    routes += [_file_route(name, kind) for name, kind in _FILES.items()]
    return routes


def _file_route(name: str, kind: str) -> Route:
    async def file(_: Request) -> Response:
        return _answer(_asset(name), kind)

    return Route(f"/playground/{name}", file)


def _answer(text: str, kind: str) -> Response:
    return Response(text, headers=HEADERS, media_type=kind)


@cache
def _asset(name: str) -> str:
    return (files("spec_compile") / "assets" / "playground" / name).read_text(encoding="utf-8")


@cache
def _page() -> str:
    """The page, with what the kinds of tokens are called."""
    items = "\n".join(
        f'<li data-kind="{kind.name}"><span class="token {kind.name}">{escape(kind.label)}</span> '
        f"<span>{escape(kind.about)}</span></li>"
        for kind in TOKEN_KINDS
    )
    return _asset("index.html").replace("<!-- kinds -->", items)


@cache
def _kinds_css() -> str:
    """Colours and underlines of the kinds."""
    rules = [
        f":root {{ --{kind.name}: light-dark({kind.light}, {kind.dark}) }}\n"
        f".token.{kind.name} {{ color: var(--{kind.name}); --underline: {_line(kind.underline)} }}"
        for kind in TOKEN_KINDS
    ]
    return "\n".join([*rules, ""])


def _line(style: str) -> str:
    return style if style == "none" else f"underline {style}"
