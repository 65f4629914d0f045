"""`generate --show-acceptance`: the text in the colours of its tokens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from spec_compile.cli import main
from spec_compile.runtime.api import load
from spec_compile.runtime.token_kinds import ACCEPTED, RECOVERED, kinds_of
from tests.helpers.toy_bundle import Toy, write_toy_bundle

COLOUR = re.compile(r"\x1b\[(\d+)m(.*?)\x1b\[0m", re.DOTALL)


@pytest.fixture(scope="module", params=[True, False], ids=["text", "ids"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    toy = Toy(with_tokenizer=request.param)
    return write_toy_bundle(toy, tmp_path_factory.mktemp("colours") / "bundle")


@pytest.mark.parametrize("stop", [[], ["--stop", "a"]], ids=["whole", "stopped"])
def test_the_text_is_the_output(
    bundle: Path, stop: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    decoder = load(bundle, num_threads=1)
    if decoder.tokenizer is None and stop:
        stop = []
    options: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_new_tokens": 30}
    wanted = decoder.generate([1, 2], stop=stop[1:], **options)
    arguments = ["--prompt-ids", "1,2", "--temperature", "1", "--seed", "7", *stop]
    kinds = kinds_of(wanted.stats.rounds)
    code = main(
        ["generate", str(bundle), "--show-acceptance", "--max-new-tokens", "30", *arguments]
    )
    out, err = capsys.readouterr()
    assert code == 0
    plain = re.sub(r"\x1b\[\d+m", "", out).removesuffix("\n")
    ids = " ".join(str(token) for token in wanted.token_ids)
    assert plain == (ids if wanted.text is None else wanted.text)
    counts = [len([c for c, _ in COLOUR.findall(out) if c == colour]) for colour in ("32", "33")]
    if wanted.text is None:
        assert counts == [kinds.count(ACCEPTED), kinds.count(RECOVERED)]
    assert {ACCEPTED, RECOVERED} <= set(kinds) or stop
    assert "accepted draft" in err


@pytest.mark.parametrize("other", ["--json", "--target-only"])
def test_what_does_not_go_together(
    bundle: Path, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(bundle), "--prompt-ids", "1", "--show-acceptance", other]) == 2
    assert f"--show-acceptance and {other} exclude each other" in capsys.readouterr().err
