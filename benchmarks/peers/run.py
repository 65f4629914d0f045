"""Compare spec-compile with its peers: one command, one worker at a time, one table at the end.

    python benchmarks/peers/run.py --target DIR --draft DIR --bundle NAME=DIR --envs DIR

Every peer runs in its own environment (`setup.py` makes them) with the same weights, prompts, k and
number of threads. What cannot be measured stands in the table as "not available" with the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.peers.bundles import BundleError, NamedBundle, parse_bundle
from benchmarks.peers.catalog import OURS, PEERS
from benchmarks.peers.launch import Outcome, run_worker
from benchmarks.peers.prompts import DEFAULT_FILE, Prompt, PromptError, choose, encode, read_prompts
from benchmarks.peers.tables import cost_table, speed_table, version_lines
from benchmarks.peers.task import PRECISIONS, SELF, SPECULATIVE, Task
from spec_compile.benchmarking.machine import describe_machine

Job = tuple[str, str, Task]
"""Key of PEERS, name in the tables, and what to do."""


def main() -> None:
    """Run the comparison and print it."""
    parser = build_parser()
    arguments = parser.parse_args()
    machine = describe_machine(arguments.threads)  # before the measurement itself loads it
    try:
        bundles = [parse_bundle(one) for one in arguments.bundle]
        selves = {one.precision: one for one in map(parse_bundle, arguments.self_bundle)}
        prompts = choose(read_prompts(arguments.prompts), arguments.num_prompts)
        encoded = encode(prompts, arguments.target)
    except (BundleError, PromptError) as error:
        parser.exit(1, f"{error}\n")
    jobs = list(plan(arguments, encoded, bundles, selves))
    outcomes = [run(job, arguments.envs.resolve()) for job in jobs]
    if arguments.json is not None:
        arguments.json.write_text(data(outcomes, prompts, jobs[0][2], machine), encoding="utf-8")
    print(report(outcomes, prompts, jobs[0][2], arguments, machine))


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--target", type=Path, required=True, help="Hugging Face folder")
    add("--draft", type=Path, help="Hugging Face folder; what the bundles were exported with")
    add("--peer-draft", type=Path, help="draft of the peers, where they cannot load --draft")
    add("--bundle", action="append", default=[], metavar="NAME=DIR", help="e.g. int8=bundles/int8")
    add("--self-bundle", action="append", default=[], metavar="NAME=DIR", help="target as draft")
    add("--envs", type=Path, required=True, help="folder of the environments of setup.py")
    add("--converted", type=Path, help="folder of converted models (default: ENVS/converted)")
    add("--peers", nargs="+", choices=list(PEERS), default=list(PEERS), metavar="PEER")
    add("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    add("--prompts", type=Path, default=DEFAULT_FILE, help="JSON list of kind and text")
    add("--num-prompts", type=int, help="only so many of them, of all kinds in turn")
    add("--cost-prompts", type=int, default=4, help="prompts for the cost of speculating (4)")
    add("--max-new-tokens", type=int, default=128)
    add("-k", "--num-speculative-tokens", type=int, default=4)
    add("--threads", type=int, default=2)
    add("--repeat", type=int, default=3, help="measured passes over the prompts (3)")
    add("--warm-up", type=int, default=1, help="passes before them (1)")
    add("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    add("--seed", type=int, default=0)
    add("--valid", type=int, default=128, help="cache entries in use in single calls (128)")
    add("--call-repeat", type=int, default=30, help="single calls of each width (30)")
    add("--json", type=Path, metavar="FILE", help="write every number there")
    return parser


def plan(
    arguments: argparse.Namespace,
    prompts: list[list[int]],
    bundles: Sequence[NamedBundle],
    selves: dict[str, NamedBundle],
) -> Iterator[Job]:
    """The workers to run, in order: precision by precision, spec-compile first."""
    for precision in arguments.precision:
        for peer in (name for name in PEERS if name in arguments.peers):
            if peer != OURS:
                draft = arguments.peer_draft or arguments.draft
                yield peer, PEERS[peer].title, task(arguments, prompts, peer, precision, draft, {})
                continue
            own = {SELF: str(selves[precision].folder)} if precision in selves else {}
            chosen = [one for one in bundles if one.precision == precision]
            for one in chosen:
                both = {SPECULATIVE: str(one.folder), **own}
                title = f"{PEERS[peer].title} ({one.name})"
                work = task(arguments, prompts, peer, precision, arguments.draft, both)
                yield peer, title, work
            if not chosen:
                work = task(arguments, prompts, peer, precision, arguments.draft, {})
                yield peer, PEERS[peer].title, work


def task(
    arguments: argparse.Namespace,
    prompts: list[list[int]],
    peer: str,
    precision: str,
    draft: Path | None,
    bundles: dict[str, str],
) -> Task:
    """One worker's task."""
    environments = arguments.envs.resolve()
    converted = arguments.converted or environments / "converted"
    return Task(
        target=str(arguments.target.resolve()),
        draft=None if draft is None else str(draft.resolve()),
        precision=precision,
        bundles=bundles,
        converted=str(converted.resolve()),
        environment=str(environments / (PEERS[peer].environment or "")),
        prompts=prompts,
        cost_prompts=arguments.cost_prompts,
        max_new_tokens=arguments.max_new_tokens,
        num_speculative_tokens=arguments.num_speculative_tokens,
        num_threads=arguments.threads,
        repeat=arguments.repeat,
        warm_up=arguments.warm_up,
        temperature=arguments.temperature,
        seed=arguments.seed,
        valid=arguments.valid,
        call_repeat=arguments.call_repeat,
    )


def run(job: Job, environments: Path) -> Outcome:
    """Run one worker, telling standard error."""
    peer, title, work = job
    started = time.monotonic()
    outcome = run_worker(peer, title, work, environments)
    ended = outcome.reason or "done"
    seconds = time.monotonic() - started
    print(f"{work.precision}, {title}: {ended} ({seconds:.0f} s)", file=sys.stderr, flush=True)
    return outcome


def report(
    outcomes: Sequence[Outcome],
    prompts: Sequence[Prompt],
    work: Task,
    arguments: argparse.Namespace,
    machine: dict[str, Any],
) -> str:
    """Both tables, and where and with what they were measured, in Markdown."""
    kinds = [prompt.kind for prompt in prompts]
    tables = [speed_table(outcomes, kinds, work).to_markdown()]
    if work.temperature == 0:
        tables.append(cost_table(outcomes, work).to_markdown())
    load = machine["load_average"]
    where = (
        f"{machine['cpu']}, {machine['usable_cores']} cores, threads: {work.num_threads}, load "
        f"average at start {'unknown' if load is None else f'{load:.1f}'}. "
        f"Target {arguments.target.name}, draft {_name(arguments.draft)}"
    )
    if arguments.peer_draft is not None:
        where += f"; the peers, which cannot load that one, draft with {arguments.peer_draft.name}"
    return "\n\n".join([*tables, f"{where}.", "\n".join(version_lines(outcomes))])


def data(
    outcomes: Sequence[Outcome], prompts: Sequence[Prompt], work: Task, machine: dict[str, Any]
) -> str:
    """Every number, as JSON."""
    found = {
        "machine": machine,
        "task": asdict(work),
        "kinds": [prompt.kind for prompt in prompts],
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    return json.dumps(found, indent=1)


def _name(folder: Path | None) -> str:
    return "none" if folder is None else folder.name


if __name__ == "__main__":
    main()
