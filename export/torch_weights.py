"""Weights of compiled graphs: one safetensors file for all of them, each distinct weight once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor
from torch.export import ExportedProgram


def write_weights(
    programs: Mapping[str, ExportedProgram], names: Mapping[int, str], path: Path
) -> None:
    """Write the weights and constants of `programs` to `path`.

    Its metadata says for every graph which stored tensor each constant is, as JSON.

    Args:
        programs: by graph.
        names: `<owner>.<name in the checkpoint>` by the address of a weight's memory.
        path: the file to write.
    """
    stored: dict[str, Tensor] = {}
    keys: dict[tuple[object, ...], str] = {}
    tables: dict[str, dict[str, str]] = {}
    for graph, program in programs.items():
        constants = {**program.constants, **program.state_dict}
        table = tables.setdefault(graph, {})
        for constant, value in constants.items():
            if not isinstance(value, Tensor):
                continue
            tensor = value.detach()
            key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
            if key not in keys:
                keys[key] = _free_name(names.get(tensor.data_ptr(), f"{graph}.{constant}"), stored)
                stored[keys[key]] = tensor.contiguous()
            table[constant] = keys[key]
    metadata = {graph: json.dumps(table) for graph, table in tables.items()}
    # safetensors refuses tensors that share memory: views of one weight, of other shapes.
    save_file({name: _own_memory(stored, name) for name in stored}, path, metadata=metadata)
    path.chmod(0o644)  # like every file of a bundle; safetensors leaves it to its owner alone


def _free_name(name: str, taken: Mapping[str, Tensor]) -> str:
    return name if name not in taken else f"{name}.{len(taken)}"


def _own_memory(stored: Mapping[str, Tensor], name: str) -> Tensor:
    tensor = stored[name]
    shares = any(
        other.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        for key, other in stored.items()
        if key != name
    )
    return tensor.clone() if shares else tensor
