"""Check that a wheel holds the package and all of it: check_wheel.py WHEEL CHECKOUT."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path


def main() -> None:
    """Compare the wheel's files with the checkout's; exit with what is missing or too much."""
    wheel, checkout = Path(sys.argv[1]), Path(sys.argv[2])
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    packed = {name for name in names if ".dist-info/" not in name}
    expected = package_files(checkout)
    problems = [f"missing from the wheel: {name}" for name in sorted(expected - packed)]
    problems += [f"not of the package: {name}" for name in sorted(packed - expected)]
    if not any(name.endswith("/licenses/LICENSE") for name in names):
        problems.append("missing from the wheel: LICENSE")
    if problems:
        sys.exit("\n".join(problems))
    print(f"{wheel.name}: {len(packed)} files, {wheel.stat().st_size:,} bytes")


def package_files(checkout: Path) -> set[str]:
    """Return the files that belong in the wheel: modules, the type marker and the assets."""
    package = checkout / "spec_compile"
    folders = [package, *(link for link in package.iterdir() if link.is_symlink())]
    found = {
        file.relative_to(checkout).as_posix()
        for folder in folders
        for file in folder.rglob("*")
        if file.is_file() and (file.suffix == ".py" or "assets" in file.parts)
    }
    return found | {"spec_compile/py.typed"}


if __name__ == "__main__":
    main()
