"""`AsyncDecoder`: many requests in one event loop, cancelling, limits, closing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_compile.errors import ClosedError, GenerationError, QueueFullError
from spec_compile.runtime.api import Decoder
from spec_compile.runtime.async_decoder import AsyncDecoder
from spec_compile.runtime.shared_decoder import SharedDecoder
from tests.helpers.gate import GatedEngine
from tests.helpers.toy_bundle import NAN_TOKEN, VOCAB, Toy
from tests.helpers.workload import alone, mixed_requests

LoadToy = Callable[[Toy], Decoder]
ToyFolder = Callable[[Toy], Path]
LONG: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True, "temperature": 1.0}


def test_requests_side_by_side(load_toy: LoadToy, toy_folder: ToyFolder) -> None:
    requests = mixed_requests(30, vocab_size=VOCAB, longest=20, seed=5)

    async def main() -> list[Any]:
        async with AsyncDecoder.load(toy_folder(Toy()), num_slots=4, num_threads=1) as decoder:
            runs = [decoder.generate(prompt, **options) for prompt, options in requests]
            return [(one.token_ids, one.finish_reason) for one in await asyncio.gather(*runs)]

    assert asyncio.run(main()) == alone(load_toy(Toy()), requests)


def test_streams_lists_and_chat(load_toy: LoadToy, toy_folder: ToyFolder) -> None:
    plain = load_toy(Toy())
    options: Any = {"temperature": 0.9, "seed": 4, "max_new_tokens": 12, "stop": "cc"}
    messages = [{"role": "user", "content": "ab"}]

    async def main() -> None:
        async with AsyncDecoder.load(toy_folder(Toy()), num_threads=1) as decoder:
            async with await decoder.stream("ab", **options) as stream:
                text = "".join([piece async for piece in stream])
            expected = plain.generate("ab", **options)
            assert text == stream.result.text == expected.text
            tokens = await decoder.stream_tokens("ab", **options)
            assert tuple([token async for token in tokens]) == expected.token_ids
            results = await decoder.generate(["ab", "b"], **options)
            expected_list = plain.generate(["ab", "b"], **options)
            assert [r.token_ids for r in results] == [r.token_ids for r in expected_list]
            answer = await decoder.chat(messages, **options)
            assert answer.token_ids == plain.chat(messages, **options).token_ids

    asyncio.run(main())


def test_a_cancelled_task_frees_its_slot(toy_folder: ToyFolder) -> None:
    async def main() -> None:
        async with AsyncDecoder.load(toy_folder(Toy()), num_slots=1, num_threads=1) as decoder:
            stream = await decoder.stream_tokens([1, 2], **LONG)
            await anext(stream)
            waiting = asyncio.create_task(decoder.generate([3], **LONG))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await stream.aclose()
            assert [token async for token in stream] == []
            assert stream.result.finish_reason == "cancelled"
            assert (await decoder.generate([2], max_new_tokens=2)).token_ids

    asyncio.run(main())


def test_limits_and_errors(load_toy: LoadToy) -> None:
    plain = load_toy(Toy(with_nan=True))
    engine = GatedEngine(plain.engine)
    shared = SharedDecoder(plain.bundle, engine, plain.tokenizer, num_slots=1, max_queue=1)

    async def main() -> None:
        decoder = AsyncDecoder(shared)
        engine.close()
        first = await decoder.stream_tokens([1, 2], **LONG)
        await asyncio.to_thread(engine.wait_for_call)
        late = await decoder.stream_tokens([2], timeout=0.0, **LONG)
        with pytest.raises(QueueFullError):
            await decoder.generate([3])
        await first.aclose()
        engine.open()
        assert [token async for token in late] == []
        assert late.result.finish_reason == "deadline"
        with pytest.raises(GenerationError, match="NaN or infinity"):
            await decoder.generate([NAN_TOKEN], max_new_tokens=4)
        with pytest.raises(TypeError, match="no option 'beam'"):
            await decoder.generate([1], beam=2)  # type: ignore[call-overload]
        with pytest.raises(GenerationError, match="takes one prompt"):
            await decoder.stream([[1]])  # type: ignore[list-item]
        await decoder.aclose()
        with pytest.raises(ClosedError):
            await decoder.generate([1])

    asyncio.run(main())


def test_a_bundle_without_tokenizer(toy_folder: ToyFolder) -> None:
    async def main() -> None:
        path = toy_folder(Toy(with_tokenizer=False))
        async with AsyncDecoder.load(path, num_threads=1) as decoder:
            with pytest.raises(GenerationError, match="use stream_tokens"):
                await decoder.stream([1])
            assert (await decoder.generate([1], max_new_tokens=2)).text is None

    asyncio.run(main())


def test_a_loop_that_has_gone_disturbs_nobody(toy_folder: ToyFolder) -> None:
    shared = SharedDecoder.load(toy_folder(Toy()), num_slots=2, num_threads=1)
    decoder = AsyncDecoder(shared)

    async def leave() -> None:
        await decoder.stream_tokens([1, 2], **LONG)

    asyncio.run(leave())
    assert len(shared.generate([1, 2], **LONG).token_ids) == 30
    assert shared.close()
