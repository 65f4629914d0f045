"""The bundle's folder appears whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spec_compile.errors import ArtifactError
from spec_compile.export.bundle import describe_files
from spec_compile.manifest import MANIFEST_FILE
from spec_compile.staging import check_output, staged
from tests.helpers.small_disk import small_disk


def everything(folder: Path) -> list[str]:
    """Every path below `folder`."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def write(output: Path, fill: Callable[[Path], object]) -> None:
    """Make a bundle of what `fill` writes."""
    with staged(output) as folder:
        fill(folder)


def test_success_is_one_rename(tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    with staged(output) as folder:
        (folder / "file").write_text("content")
        assert folder.parent == tmp_path, "a rename is atomic on one file system only"
        assert not output.exists()
    assert everything(tmp_path) == ["bundle", "bundle/file"]
    assert output.stat().st_mode & 0o777 == 0o755


def test_missing_parents_are_made(tmp_path: Path) -> None:
    check_output(tmp_path / "a" / "b" / "bundle")
    assert everything(tmp_path) == []
    with staged(tmp_path / "a" / "b" / "bundle") as folder:
        (folder / "file").touch()
    assert everything(tmp_path) == ["a", "a/b", "a/b/bundle", "a/b/bundle/file"]


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("name", ["bundle", "a/b/bundle"])
def test_nothing_is_left_of_a_failure(name: str, kind: type[BaseException], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")

    def fail(folder: Path) -> None:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text("half")
        raise kind

    with pytest.raises(kind):
        write(tmp_path / name, fail)
    assert everything(tmp_path) == ["mine"]


def test_a_parent_that_others_use_stays(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder.parent / "other").touch()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write(tmp_path / "a" / "bundle", fail)
    assert everything(tmp_path) == ["a", "a/other"]


def test_an_output_that_appears_meanwhile_is_not_touched(tmp_path: Path) -> None:
    output = tmp_path / "bundle"

    def fill(folder: Path) -> None:
        (folder / "file").touch()
        output.mkdir()
        (output / "theirs").touch()

    with pytest.raises(ArtifactError, match=r"cannot write .*bundle"):
        write(output, fill)
    assert everything(tmp_path) == ["bundle", "bundle/theirs"]


def exists_as_folder(output: Path) -> None:
    output.mkdir()


def exists_as_file(output: Path) -> None:
    output.touch()


def exists_as_dangling_link(output: Path) -> None:
    output.symlink_to("nowhere")


@pytest.mark.parametrize("make", [exists_as_folder, exists_as_file, exists_as_dangling_link])
def test_an_existing_output_is_refused(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "bundle")
    with pytest.raises(ArtifactError, match="exists; remove it or choose another"):
        check_output(tmp_path / "bundle")
    assert everything(tmp_path) == ["bundle"]


def test_a_parent_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file/bundle", "file/deep/bundle"):
        with pytest.raises(ArtifactError, match=r"cannot write to .*file: Not a directory"):
            check_output(tmp_path / name)


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="File name too long"):
        check_output(tmp_path / ("x" * 300))


def test_a_name_that_no_system_takes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot name a folder"):
        check_output(tmp_path / "a\0b")


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        with pytest.raises(ArtifactError) as error:
            write(disk / "bundle", lambda folder: (folder / "w").write_bytes(bytes(1 << 20)))
        assert str(error.value) == f"cannot write {disk}/bundle: No space left on device"
        assert everything(disk) == []


def test_a_reason_that_numpy_keeps_to_itself(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        with (folder / "weights").open("wb") as file:
            np.zeros(1 << 20).tofile(file)

    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        with pytest.raises(ArtifactError, match="No space left on device"):
            write(disk / "bundle", fill)
        assert everything(disk) == []


def test_files_are_described_by_size_and_hash(tmp_path: Path) -> None:
    contents = {"a.onnx": b"graph", "deep/b.weights": bytes(range(256)) * 8192, "empty": b""}
    (tmp_path / "deep").mkdir()
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / MANIFEST_FILE).write_text("{}")
    described = describe_files(tmp_path)
    assert set(described) == set(contents)
    for name, content in contents.items():
        assert described[name].size == len(content)
        assert described[name].sha256 == hashlib.sha256(content).hexdigest()
