"""Read a Dockerfile: its stages, and each one's instructions in order."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction: its keyword and the rest of its line."""

    keyword: str
    text: str

    @property
    def words(self) -> list[str]:
        """The arguments of the form that is a JSON list."""
        words: list[str] = json.loads(self.text[self.text.index("[") :])
        return words


def read_dockerfile(path: Path) -> list[list[Instruction]]:
    """The stages of a Dockerfile; each begins with its FROM."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", "")
    stages: list[list[Instruction]] = []
    for line in filter(None, joined.split("\n")):
        keyword, _, text = line.partition(" ")
        if keyword == "FROM":
            stages.append([])
        stages[-1].append(Instruction(keyword, text.strip()))
    return stages


def texts(stage: list[Instruction], keyword: str) -> list[str]:
    """What a stage says by one keyword, in order."""
    return [one.text for one in stage if one.keyword == keyword]


def words(stage: list[Instruction], keyword: str) -> list[str]:
    """The arguments of the one instruction of a keyword."""
    (found,) = [one for one in stage if one.keyword == keyword]
    return found.words
