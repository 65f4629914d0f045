"""Import every module of an installed spec_compile, in an environment with the extra cpu alone.

Modules of the compiler and of the server may fail, but only for want of a package of their extra,
and the one that Triton runs for want of Triton's module; all others load.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from importlib.util import find_spec

COMPILE_PACKAGES = (
    "torch",
    "transformers",
    "onnx",
    "onnxscript",
    "onnx_ir",
    "safetensors",
    "sympy",
    "triton",
)
SERVE_PACKAGES = ("starlette", "uvicorn")
SERVER = ("serving",)
TRITON_MODEL, TRITON_MODULE = ("deploying.triton_model",), "triton_python_backend_utils"
COMPILER = (
    "acceptance",
    "driver",
    "export",
    "graph_call",
    "graph_weights",
    "kernels",
    "ops",
    "passes",
    "program",
    "sampling",
    "torch_compile",
)


def main() -> None:
    """Import module by module; exit with the names of those that should load and do not."""
    extras = (*COMPILE_PACKAGES, *SERVE_PACKAGES)
    installed = [name for name in extras if find_spec(name) is not None]
    if installed:
        sys.exit(f"this environment has {', '.join(installed)}: use one with the extra cpu only")
    package = importlib.import_module("spec_compile")
    modules = [found.name for found in pkgutil.walk_packages(package.__path__, "spec_compile.")]
    problems = [problem for name in modules if (problem := import_problem(name))]
    if problems or not modules:
        sys.exit("\n".join(problems) or "spec_compile has no modules")
    print(f"{len(modules)} modules of {package.__path__[0]} import or name their extra")


def import_problem(name: str) -> str | None:
    """Import the module `name` and return what is wrong with the outcome, if anything is."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        wanted = (error.name or "").split(".")[0]
        of_compiler = is_of(COMPILER, name) and wanted in COMPILE_PACKAGES
        of_server = is_of(SERVER, name) and wanted in SERVE_PACKAGES
        in_triton = is_of(TRITON_MODEL, name) and wanted == TRITON_MODULE
        if not (of_compiler or of_server or in_triton):
            return f"{name}: {error}"
    return None


def is_of(parts: tuple[str, ...], name: str) -> bool:
    """Tell whether the module `name`, or a package around it, is one of `parts`."""
    return any(f"{name}.".startswith(f"spec_compile.{part}.") for part in parts)


if __name__ == "__main__":
    main()
