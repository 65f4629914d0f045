"""Type promotion from known types, instead of running every node of a graph to learn them.

torch.onnx.export makes promotions explicit by interpreting the whole graph on fake tensors, a third
of its time. The nodes of an exported program carry their types already: only nodes that change
have to be run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import fx

try:
    from torch.onnx._internal.fx.passes import type_promotion as _torch_pass
except ImportError:  # a later torch may do without it
    _torch_pass = None  # type: ignore[assignment]

_INTERPRETER = "_TypePromotionInterpreter"


@contextmanager
def promotion_by_metadata() -> Iterator[None]:
    """While active, torch.onnx.export trusts the metadata of nodes that it does not change."""
    original = getattr(_torch_pass, _INTERPRETER, None)
    if original is None or not hasattr(_torch_pass, "get_type_promotion_rule"):
        yield
        return
    with mock.patch.object(_torch_pass, _INTERPRETER, _by_metadata(original)):
        yield


def _by_metadata(original: Any) -> Any:
    class ByMetadata(original):  # type: ignore[misc]
        def run_node(self, n: fx.Node) -> Any:
            if n.op != "call_function" or "val" not in n.meta:
                return super().run_node(n)
            with self._set_current_node(n):
                rule = _torch_pass.get_type_promotion_rule(n, self.type_promotion_table)
                if rule:
                    self._maybe_promote_node(n, rule)
            return n.meta["val"]

    return ByMetadata
