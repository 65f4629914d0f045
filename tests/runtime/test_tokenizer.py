"""Text prompts and chat templates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from spec_compile.errors import ArtifactError, GenerationError
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.tokenizer import BundleTokenizer
from tests.helpers.toy_bundle import EOS, Toy, toy_tokenizer, write_toy_bundle

LoadToy = Callable[[Toy], Decoder]
MESSAGES = [{"role": "user", "content": "ab"}]


def with_template(template: str) -> BundleTokenizer:
    """The toy's tokenizer with another template."""
    return BundleTokenizer(toy_tokenizer(), {"eos_token": "<eos>"}, template)


def test_text_prompt_is_its_ids(load_toy: LoadToy) -> None:
    decoder = load_toy(Toy())
    from_text, from_ids = decoder.generate("ab c"), decoder.generate([1, 2, 6, 3])
    assert from_text.token_ids == from_ids.token_ids
    assert from_text.prompt_length == 4


@pytest.mark.parametrize("special", [True, False])
def test_a_long_text_is_encoded_as_a_short_one(special: bool) -> None:
    tokenizer = BundleTokenizer(toy_tokenizer(), {}, None)
    piece = "ab c<eos>é bca"
    short = tokenizer.encode(piece, add_special_tokens=special)
    assert tokenizer.encode(piece * 1000, add_special_tokens=special) == short * 1000
    with pytest.raises(GenerationError, match="cannot encode"):
        tokenizer.encode("\ud800" * 3000)


def test_chat_goes_through_the_template(load_toy: LoadToy) -> None:
    decoder = load_toy(Toy())
    expected = decoder.generate([EOS, 1, 2, 6], max_new_tokens=9).token_ids
    assert decoder.encode_chat(MESSAGES) == [EOS, 1, 2, 6]
    assert decoder.chat(MESSAGES, max_new_tokens=9).token_ids == expected
    assert decoder.generate("ab", chat=True, max_new_tokens=9).token_ids == expected
    stream = decoder.stream_tokens("ab", chat=True, max_new_tokens=9)
    assert tuple(stream) == expected


def test_template_sees_special_tokens_and_helpers() -> None:
    template = "{{ eos_token }}{{ messages | tojson }}{{ add_generation_prompt }}"
    rendered = with_template(template).render_chat(MESSAGES)
    assert rendered == f"<eos>{json.dumps(MESSAGES)}True"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for %}",
        "{{ messages[0]['content'] + 1 }}",
        "{{ 1 / 0 }}",
        "{{ 'x'.encode('nope') }}",
        "{{ '%c' | format(10 ** 9) }}",
        "{% for i in range(10 ** 9) %}a{% endfor %}",
        "{{ raise_exception('two\nlines') }}",
        "{{ nope." + "x" * 5000 + ".y }}",
    ],
)
def test_template_that_fails_is_one_line(template: str) -> None:
    with pytest.raises(GenerationError, match="chat template") as error:
        with_template(template).render_chat(MESSAGES)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_template_that_is_no_text(tmp_path: Path) -> None:
    folder = write_toy_bundle(Toy(), tmp_path / "bundle")
    path = folder / "chat_template.jinja"
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(ArtifactError, match=r"chat_template\.jinja: is not UTF-8"):
        load(folder, verify_hash=False)


def test_tokenizer_that_fails_when_used() -> None:
    no_ids = Tokenizer(models.WordPiece({}, unk_token="<unk>"))
    panics = toy_tokenizer()
    panics.decoder = decoders.Strip("a", 1000, 1000)
    with pytest.raises(GenerationError, match="cannot encode this text"):
        BundleTokenizer(no_ids, {}, None).encode("ab")
    with pytest.raises(GenerationError, match="cannot decode the output"):
        BundleTokenizer(panics, {}, None).decode([1, 2])


def test_no_template(load_toy: LoadToy) -> None:
    tokenizer = BundleTokenizer(toy_tokenizer(), {}, None)
    with pytest.raises(GenerationError, match="no chat template"):
        tokenizer.render_chat(MESSAGES)
    with pytest.raises(GenerationError, match="takes a text"):
        load_toy(Toy()).generate([1], chat=True)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_damaged_tokenizer_file(tmp_path: Path, name: str) -> None:
    folder = write_toy_bundle(Toy(), tmp_path / "bundle")
    path = folder / name
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(ArtifactError, match=name):
        load(folder, verify_hash=False)
