"""A loaded model to its graphs, proven against the model: one, or two where it has an encoder."""

from __future__ import annotations

from transformers import PreTrainedModel

from spec_compile.export.capture import capture
from spec_compile.export.capture_seq2seq import capture_seq2seq
from spec_compile.export.checkpoint import is_seq2seq
from spec_compile.export.self_check import check_capture
from spec_compile.graph_contract import ENCODERS
from spec_compile.program import Graph


def capture_model(
    name: str,
    model: PreTrainedModel,
    *,
    max_length: int,
    slots: int,
    batch_size: int,
    tree: bool = False,
) -> dict[str, Graph]:
    """Capture a model and prove the capture.

    Args:
        name: `target` or `draft`.
        model: ready to be captured.
        max_length: tokens a row, and a source, may hold.
        slots: cache entries a row has room for.
        batch_size: most rows of a call.
        tree: as in `capture`.

    Returns:
        The graph `name` and, of an encoder-decoder model, its encoder, by name.

    Raises:
        CaptureError: the model cannot be captured.
    """
    prefix = "" if name == "target" else "draft_"
    sizes = {"max_length": max_length, "slots": slots, "batch_size": batch_size}
    graphs: dict[str, Graph] = {}
    if is_seq2seq(model.config):
        found = capture_seq2seq(model, **sizes, prefix=prefix, tree=tree)
        graphs = {ENCODERS[name]: found.encoder, name: found.decoder}
    else:
        graphs = {name: capture(model, **sizes, prefix=prefix, tree=tree)}
    check_capture(
        model,
        graphs[name],
        vocab_size=head_rows(graphs[name]),
        max_length=max_length,
        encoder=graphs.get(ENCODERS[name]),
    )
    return graphs


def head_rows(graph: Graph) -> int:
    """Token ids that a captured model has logits for."""
    return int(next(spec.shape[-1] for spec in graph.outputs if spec.name == "logits"))
