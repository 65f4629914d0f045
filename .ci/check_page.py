"""Start `spec-compile serve` as installed and read its page, all of it: check_page.py BUNDLE."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from urllib.parse import urljoin
from urllib.request import urlopen

LISTENING = re.compile(r'"message": "listening".*"port": (\d+)')
REFERENCE = re.compile(r"""(?:\b(?:href|src)="|\bfrom ")([^"]+)""")


def main() -> None:
    """Serve the bundle, read, and end the server; exit with what is wrong."""
    command = ["spec-compile", "serve", sys.argv[1], "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        port = listening_port(server.stderr)
        files = read_all(f"http://127.0.0.1:{port}/")
    finally:
        server.terminate()
        server.wait(60)
    print(f"the page and {len(files) - 1} files of it come from the wheel")
    if len(files) < 5:
        sys.exit("the page names fewer files than it needs")


def listening_port(log: Iterable[str]) -> int:
    """The port that the server's log says it listens on."""
    for line in log:
        if found := LISTENING.search(line):
            return int(found.group(1))
    sys.exit("the server did not start")


def read_all(address: str) -> dict[str, str]:
    """The page and the files that it, or a file of it, names; one that is missing raises."""
    found: dict[str, str] = {}
    waiting = [address]
    while waiting:
        name = waiting.pop()
        if name not in found:
            with urlopen(name, timeout=30) as answer:
                found[name] = answer.read().decode("utf-8")
            waiting += [urljoin(name, other) for other in REFERENCE.findall(found[name])]
    return found


if __name__ == "__main__":
    main()
