"""Taking down graph calls: every call, in order, and nothing else changed."""

from __future__ import annotations

from pathlib import Path

from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.engines.timed import Call, TimedEngine, split_first
from tests.helpers.toy_bundle import Toy, write_toy_bundle


def test_calls_of_a_generation(tmp_path: Path) -> None:
    plain = load(write_toy_bundle(Toy(), tmp_path / "bundle"), num_threads=1)
    engine = TimedEngine(plain.engine)
    timed = Decoder(plain.bundle, engine, plain.tokenizer)
    result = timed.generate("abc", max_new_tokens=9, ignore_eos=True)
    assert result.token_ids == plain.generate("abc", max_new_tokens=9, ignore_eos=True).token_ids
    calls = engine.take()
    assert [call.graph for call in calls] == ["draft", "verify"] * result.stats.num_rounds
    assert sum(call.milliseconds for call in calls) <= result.stats.wall_ms
    assert engine.take() == []


def test_the_first_call_of_each_graph_reads_the_prompt() -> None:
    calls = [Call("draft", 5), Call("verify", 9), Call("draft", 1), Call("draft", 2)]
    assert split_first(calls) == ({"draft": 5, "verify": 9}, {"draft": [1, 2]})
