"""Prompts by number: templates over subjects and passages of freely licensed text.

A prompt is held out by its subject (topic, task, passage), never by its wording: what is measured
on held-out prompts was not trained on in another dress.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import random
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from examples.distill_draft import subjects

HELD_OUT_SHARE = 16
_DOCUMENTS = Path("/usr/share/doc")
_QUESTIONS = (
    "What is {topic}?", "Explain {topic} to {person}.", "Tell me about {topic}.",
    "Give me five facts about {topic}.", "Why does {topic} matter?",
    "What are the advantages and disadvantages of {topic}?", "Write a short essay about {topic}.",
    "Write a poem about {topic}.", "Write a short story about {topic}.",
    "How can I learn more about {topic}?", "List ten things to know about {topic}.",
    "What is the history of {topic}?", "Compare {topic} with {other}.",
    "How do {topic} and {other} relate?", "Give me three tips about {topic}.",
    "Write a dialogue between two friends about {topic}.",
    "What is a common mistake about {topic}?",
    "Write an email to {person} about {topic}.", "Describe {topic} in one paragraph.",
    "Make a plan for a lesson on {topic} for {person}.",
    "How does {topic} affect our daily life?",
    "What questions should I ask about {topic}?", "Write a blog post about {topic} and {other}.",
    "Summarize what you know about {topic}.", "I am interested in {topic}. Where do I start?",
    "Write a product description inspired by {topic}.", "Who should care about {topic}, and why?",
)  # fmt: skip
_CODE = (
    "Write a Python function that {task}.", "Write a Python program that {task}.",
    "Write a Python class or function that {task}, with a docstring.",
    "Write Python code that {task} and explain how it works.",
    "Write a JavaScript function that {task}.", "Write a C function that {task}.",
    "Write a Java method that {task}.", "How do I write code that {task}?",
    "Write unit tests for a function that {task}.",
    "Write a Python function that {task}. Only code.",
    "Show me a simple example in Python of code that {task}.",
)  # fmt: skip
_TEXT = (
    "Summarize the following text:\n\n{passage}",
    "Rewrite this text in simpler words:\n\n{passage}",
    "Rewrite the following text and correct mistakes:\n\n{passage}",
    "Give the main points of this text as a list:\n\n{passage}",
    "Repeat this text, but more formally:\n\n{passage}", "What is this text about?\n\n{passage}",
    "Write one question and its answer about this text:\n\n{passage}",
    "Make this text shorter:\n\n{passage}", "Give this text a title:\n\n{passage}",
)  # fmt: skip
_SOURCE = (
    "Explain this Python code:\n\n```python\n{code}\n```",
    "Add a docstring and comments to this code:\n\n```python\n{code}\n```",
    "Rename the variables of this code to be clearer:\n\n```python\n{code}\n```",
    "Find a problem in this code and improve it:\n\n```python\n{code}\n```",
    "Write a test for this code:\n\n```python\n{code}\n```",
)
_CONTINUE = ("Continue this story: {opening}", "Continue the text: {opening}")


@dataclass(frozen=True)
class Prompt:
    """A text to answer.

    Args:
        kind: chat, code, text, source, prose, raw_prose or raw_code.
        text: the user's message, or the beginning of a text when `kind` starts with `raw`.
        subject: what it is about; decides alone whether it is held out.
    """

    kind: str
    text: str
    subject: str

    @property
    def is_chat(self) -> bool:
        """Whether the target's chat template goes around it."""
        return not self.kind.startswith("raw")

    @property
    def is_held_out(self) -> bool:
        """Whether it may never be trained on."""
        return held_out(self.subject)


def held_out(subject: str) -> bool:
    """One subject in sixteen, by its hash."""
    return hashlib.sha256(subject.encode()).digest()[0] % HELD_OUT_SHARE == 0


def make_prompt(number: int) -> Prompt:
    """The prompt of that number; the same on every run of the same Python."""
    choose = random.Random(number)
    kind = choose.choices(
        ("chat", "code", "text", "source", "prose", "raw_prose", "raw_code"), (8, 7, 3, 2, 2, 1, 2)
    )[0]
    if kind == "chat":
        topic, other = choose.sample(subjects.split(subjects.TOPICS), 2)
        person = choose.choice(subjects.split(subjects.PEOPLE))
        text = choose.choice(_QUESTIONS).format(topic=topic, other=other, person=person)
        return Prompt(kind, text, topic)
    if kind == "code":
        task = choose.choice(subjects.split(subjects.CODE_TASKS))
        return Prompt(kind, choose.choice(_CODE).format(task=task), task)
    if kind == "text":
        passage = choose.choice(passages())
        return Prompt(kind, choose.choice(_TEXT).format(passage=passage), passage)
    if kind in ("source", "raw_code"):
        code = choose.choice(functions())
        template = choose.choice(_SOURCE)
        start = code[: max(60, len(code) // 3)]
        return Prompt(kind, template.format(code=code) if kind == "source" else start, code)
    opening = choose.choice(subjects.split(subjects.OPENINGS))
    return (
        Prompt(kind, choose.choice(_CONTINUE).format(opening=opening + " "), opening)
        if (kind == "prose")
        else Prompt(kind, opening, opening)
    )


@lru_cache(maxsize=1)
def passages() -> tuple[str, ...]:
    """Paragraphs of 200 to 600 characters of English, in a fixed order."""
    return tuple(sorted({each for text in documents() for each in _paragraphs(text)}))


@lru_cache(maxsize=1)
def functions() -> tuple[str, ...]:
    """Short functions of Python's standard library, in a fixed order."""
    return tuple(sorted({each for text in sources() for each in _functions(text)}))


def sources() -> Iterator[str]:
    """Modules of Python's standard library (PSF-2.0)."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.glob("*.py")):
        inside = path.relative_to(library).parts
        if not {"site-packages", "test", "tests", "lib2to3", "idlelib"} & set(inside):
            yield path.read_text("utf-8", "replace")


def documents() -> Iterator[str]:
    """Documents that come with the system's packages, and the docstrings of `sources`."""
    for path in sorted(_DOCUMENTS.glob("*/*")):
        if re.match(r"(README|NEWS|FAQ|HACKING|CONTRIBUTING|TODO)", path.name) and path.is_file():
            data = path.read_bytes()[:200_000]
            yield (_unpacked(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
    for text in sources():
        yield from _docstrings(text)


def _unpacked(data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (EOFError, OSError):
        return b""


def _paragraphs(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        words = " ".join(block.split())
        plain = sum(char.isalpha() or char in " .,'" for char in words)
        if 200 <= len(words) <= 600 and plain > 0.93 * len(words) and words[0].isupper():
            yield words


def _parsed(text: str) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return []


def _docstrings(text: str) -> Iterator[str]:
    for node in _parsed(text):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
            found = ast.get_docstring(node)
            if found:
                yield found


def _functions(text: str) -> Iterator[str]:
    for node in _parsed(text):
        if isinstance(node, ast.FunctionDef) and node.col_offset == 0:
            code = ast.get_source_segment(text, node) or ""
            if 120 <= len(code) <= 700:
                yield code
