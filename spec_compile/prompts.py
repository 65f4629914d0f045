"""Prompts for checks and measurements: built-in texts, or a file of the user's."""

from __future__ import annotations

import json
import os
from pathlib import Path

from spec_compile.errors import ConfigError

BUILT_IN: tuple[str, ...] = (
    "def fib(n):",
    "class Stack:\n    def __init__(self):\n        self.items = []\n",
    "import os\nimport sys\n\n\ndef main():\n",
    "The capital of France is",
    "Once upon a time there was a small town by the sea, and",
    "for index, value in enumerate(values):\n    if value",
    '    """Return the sum of two numbers.',
    "Write a short letter to a friend about your new garden.",
    "try:\n    with open(path) as file:\n        return file.read()\nexcept OSError as error:\n",
    "To make bread you need flour, water,",
    "def binary_search(items, wanted):\n    low, high = 0, len(items)\n",
    "Q: What is the difference between a list and a tuple?\nA:",
    "raise ValueError(",
    "The three most important things to know about the moon are:\n1.",
    "if __name__ ==",
    "In mathematics, a prime number is",
    "def test_addition(self):\n        self.assertEqual(",
    "She opened the door, looked outside and",
    "# Read the configuration file and return a dictionary\ndef read_config(path):\n",
    "Summarise: a compiler reads a program and writes another program that does the same.",
)
"""Code and prose, from a few tokens to a few dozen."""


def read_prompt_file(path: str | os.PathLike[str]) -> list[str]:
    """Prompts of a UTF-8 file: one a line, empty lines skipped; a `.json` file is a list of texts.

    Raises:
        ConfigError: not such a file, or no prompt in it.
        OSError: it cannot be read.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        found = json.loads(text) if file.suffix == ".json" else text.splitlines()
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: is no UTF-8 file of prompts: {error}") from error
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ConfigError(f"{file}: must be a JSON list of texts")
    prompts = [one for one in found if one.strip()]
    if not prompts:
        raise ConfigError(f"{file}: holds no prompt; write one a line")
    return prompts
