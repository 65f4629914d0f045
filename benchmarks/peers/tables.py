"""From what the workers wrote to the Markdown tables of `docs/benchmarks.md`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.peers.launch import Line, Outcome
from benchmarks.peers.task import PLAIN, SELF, SPECULATIVE, Task
from benchmarks.peers.worker import COST, SPEED

Row = Sequence[str]
_NONE = ""


@dataclass(frozen=True)
class Table:
    """A table with its heading.

    Args:
        title: what it shows, in one line.
        columns: headings.
        rows: cells.
    """

    title: str
    columns: Row
    rows: Sequence[Row]

    def to_markdown(self) -> str:
        """The table to paste."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join([f"{self.title}:", "", *(f"| {' | '.join(line)} |" for line in lines)])


def tokens_per_second(outcome: Outcome, mode: str, prompts: Iterable[int]) -> float | None:
    """Emitted tokens over seconds of the given prompts: the median of the passes; None without."""
    wanted = set(prompts)
    passes: dict[int, list[Line]] = {}
    for line in _outputs(outcome, mode, SPEED):
        if line["prompt"] in wanted:
            passes.setdefault(line["pass"], []).append(line)
    rates: list[float] = []
    for lines in passes.values():
        seconds = sum(float(line["seconds"]) for line in lines)
        rates.append(sum(len(line["tokens"]) for line in lines) / seconds)
    return float(statistics.median(rates)) if rates else None


def tokens_per_round(outcome: Outcome) -> float | None:
    """Emitted tokens for each target call of speculative decoding; None where not told."""
    lines = [one for one in _outputs(outcome, SPECULATIVE, SPEED) if one["rounds"]]
    if not lines:
        return None
    rounds = sum(int(one["rounds"]) for one in lines)
    return sum(len(one["tokens"]) for one in lines) / rounds


def _equal(outcome: Outcome, mode: str, reference: Outcome) -> str:
    """How many prompts' tokens equal those of the reference's plain decoding."""
    theirs = {line["prompt"]: line["tokens"] for line in _outputs(reference, PLAIN, SPEED)}
    ours = {line["prompt"]: line["tokens"] for line in _outputs(outcome, mode, SPEED)}
    shared = ours.keys() & theirs.keys()
    if not shared:
        return _NONE
    return f"{sum(ours[prompt] == theirs[prompt] for prompt in shared)} of {len(shared)}"


def speed_table(outcomes: Sequence[Outcome], kinds: Sequence[str], task: Task) -> Table:
    """Tokens per second of every peer, plain and speculative, in all and by kind of prompt.

    The last two columns count outputs that equal, token for token, plain decoding of the same
    system, and of the first system of that precision.
    """
    named = list(dict.fromkeys(kinds))
    what = "greedy" if task.temperature == 0 else f"temperature {task.temperature:g}"
    title = (
        f"Tokens per second, {len(kinds)} prompts x {task.max_new_tokens} tokens, {what}, "
        f"k = {task.num_speculative_tokens}, {task.num_threads} threads, medians of "
        f"{task.repeat} passes"
    )
    columns = ["precision", "system", "mode", "tokens/s", "over own plain", *named]
    columns += ["tokens a round", "as own plain", "as first plain"]
    first: dict[str, Outcome] = {}
    for outcome in outcomes:
        if tokens_per_second(outcome, PLAIN, range(len(kinds))) is not None:
            first.setdefault(outcome.precision, outcome)
    rows = [
        row
        for outcome in outcomes
        for row in _speed_rows(outcome, first.get(outcome.precision), kinds, named)
    ]
    return Table(title, columns, rows)


def _speed_rows(
    outcome: Outcome, first: Outcome | None, kinds: Sequence[str], named: Sequence[str]
) -> Iterator[Row]:
    everything = range(len(kinds))
    width = len(named) + 4
    base = tokens_per_second(outcome, PLAIN, everything)
    for mode in (PLAIN, SPECULATIVE):
        head = [outcome.precision, outcome.peer, mode]
        rate = tokens_per_second(outcome, mode, everything)
        if rate is None:
            why = outcome.reason or outcome.skipped.get(mode, "its worker measured nothing")
            yield [*head, f"not available: {_cell(why)}", *[_NONE] * width]
            if outcome.reason is not None:
                return
            continue
        by_kind = [
            tokens_per_second(outcome, mode, (i for i, one in enumerate(kinds) if one == kind))
            for kind in named
        ]
        per_round = tokens_per_round(outcome) if mode == SPECULATIVE else None
        yield [
            *head,
            _number(rate),
            _number(rate / base, "x") if base and mode != PLAIN else _NONE,
            *(_number(one) for one in by_kind),
            _number(per_round),
            _NONE if mode == PLAIN else _equal(outcome, mode, outcome),
            _NONE if first is None or first is outcome else _equal(outcome, mode, first),
        ]


@dataclass(frozen=True)
class Cost:
    """What a round costs when the target is its own draft.

    Args:
        step_ms: one token of plain decoding.
        verify_ms: a single call of the target with k + 1 tokens.
        round_ms: one round, measured.
        ideal_ms: k steps and one such call.
    """

    step_ms: float
    verify_ms: float
    round_ms: float
    ideal_ms: float


def cost_of_speculating(outcome: Outcome, task: Task) -> Cost | str:
    """The cost of speculating of a peer, or why there is none."""
    if outcome.reason is not None:
        return outcome.reason
    k = task.num_speculative_tokens
    for what in (SELF, "calls"):
        if what in outcome.skipped:
            return outcome.skipped[what]
    step = _milliseconds_per(outcome, PLAIN, rounds=False, k=k)
    one_round = _milliseconds_per(outcome, SELF, rounds=True, k=k)
    verify = outcome.calls.get(k + 1)
    if step is None or one_round is None or not verify:
        return "its worker did not measure it"
    verify_ms = statistics.median(verify)
    return Cost(step, verify_ms, one_round, k * step + verify_ms)


def _milliseconds_per(outcome: Outcome, mode: str, *, rounds: bool, k: int) -> float | None:
    """Median over prompts and passes of what the longer output takes more than the shorter one,
    for each token, or for each round (as the peer counts them; else as if all were accepted).
    """
    pairs: dict[tuple[int, int], list[Line]] = {}
    for line in _outputs(outcome, mode, COST):
        pairs.setdefault((line["pass"], line["prompt"]), []).append(line)
    found = []
    for lines in pairs.values():
        short, long = sorted(lines, key=lambda line: int(line["asked"]))
        count: float = len(long["tokens"]) - len(short["tokens"])
        if rounds:
            told = short["rounds"] is not None and long["rounds"] is not None
            count = long["rounds"] - short["rounds"] if told else count / (k + 1)
        if count > 0:
            found.append(1000.0 * (long["seconds"] - short["seconds"]) / count)
    return statistics.median(found) if found else None


def cost_table(outcomes: Sequence[Outcome], task: Task) -> Table:
    """Single calls of the target, and the cost of speculating, of every peer."""
    k = task.num_speculative_tokens
    title = (
        f"Single calls at {task.valid} valid entries (medians of {task.call_repeat}) and the cost "
        f"of speculating: the target as its own draft, k = {k}; ideal = {k} steps + one call of "
        f"{k + 1} tokens, in ms"
    )
    columns = ["precision", "system", "call of 1", f"call of {k + 1}", "plain step"]
    columns += ["round", "ideal round", "ideal / measured"]
    return Table(title, columns, [_cost_row(outcome, task) for outcome in outcomes])


def _cost_row(outcome: Outcome, task: Task) -> Row:
    widths = (1, task.num_speculative_tokens + 1)
    calls = [outcome.calls.get(width) for width in widths]
    row = [outcome.precision, outcome.peer]
    row += [_number(statistics.median(one)) if one else _NONE for one in calls]
    cost = cost_of_speculating(outcome, task)
    if isinstance(cost, str):
        return [*row, _NONE, f"not available: {_cell(cost)}", _NONE, _NONE]
    numbers = [cost.step_ms, cost.round_ms, cost.ideal_ms]
    return [*row, *(_number(one) for one in numbers), f"{cost.ideal_ms / cost.round_ms:.2f}"]


def version_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """One line a peer and precision: what it was told, and its versions."""
    lines = []
    for outcome in outcomes:
        if outcome.versions:
            versions = ", ".join(f"{name} {value}" for name, value in outcome.versions.items())
            lines.append(f"- {outcome.peer}, {outcome.precision}: {outcome.notes}; {versions}")
    return lines


def _outputs(outcome: Outcome, mode: str, purpose: str) -> list[Line]:
    """The outputs of a mode; none of one that was given up on the way."""
    if mode in outcome.skipped:
        return []
    return [one for one in outcome.outputs if (one["mode"], one["purpose"]) == (mode, purpose)]


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return _NONE
    return f"{value:.0f}{unit}" if abs(value) >= 100 else f"{value:.3g}{unit}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
