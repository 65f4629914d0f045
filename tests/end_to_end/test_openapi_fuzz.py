"""A real server of the demonstration pair keeps to its OpenAPI document, whatever is sent to it.

Schemathesis derives requests from the document, such as fit it and such as do not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("schemathesis")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from tests.helpers.server_process import ServerProcess
from tests.helpers.toy_bundle import file_spec

ROOT = Path(__file__).resolve().parents[2]
KEY = "a-key"
OPTIONS = (
    *("--model-name", "demo", "--max-tokens", "4", "--max-choices", "3"),
    *("--max-body-bytes", "20000", "--api-key", KEY),
)
# 400 is right for requests that fit the document where `fits_or_is_known` says so.
CONFIG = f"""
seed = 1
hooks = "tests.helpers.openapi_checks"
[generation]
max-examples = 40
database = "none"
[auth.openapi.api_key]
bearer = "{KEY}"
[checks]
positive_data_acceptance.expected-statuses = ["200", "400"]
negative_data_rejection.expected-statuses = ["400", "401", "404", "405", "415"]
"""


TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


@pytest.fixture
def chatting_bundle(demo_verify_bundle: Path, tmp_path: Path) -> Path:
    """The demonstration pair, which knows no chat, with a template."""
    folder = tmp_path / "demo"
    shutil.copytree(demo_verify_bundle, folder)
    template = folder / "chat_template.jinja"
    template.write_text(TEMPLATE)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][template.name] = asdict(file_spec(template))
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_requests_of_every_kind(chatting_bundle: Path, tmp_path: Path) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"]
    with ServerProcess(chatting_bundle, *OPTIONS) as server:
        found = subprocess.run(
            [*command, f"{server.url}/openapi.json", "--no-color"],
            cwd=tmp_path,  # it leaves a cache where it runs
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, found.stdout + found.stderr
        with server.client() as client:
            assert client.get("/health").json() == {"status": "ok"}
    assert "Traceback" not in server.log
