"""What is replaced in DGL, and back."""

from __future__ import annotations

import functools
import inspect
import threading
import types
from contextlib import contextmanager
from typing import NamedTuple

from ampgnn.errors import UserError

KNOWN = ("1.1.3",)
_lock = threading.RLock()
_before: list[tuple[object, str, object]] = []


class _Patch(NamedTuple):
    owner: object
    name: str
    replacement: object
    signature: str | None  # that the original must have; None for a module


def _replace(function, like):
    """``function`` under the name and documentation of the one it stands for."""

    @functools.wraps(like)
    def replacement(*args, **kwargs):
        return function(*args, **kwargs)

    return replacement


def _patches() -> list[_Patch]:
    import importlib

    import dgl
    from dgl.nn.pytorch.conv.gatconv import GATConv
    from dgl.nn.pytorch.conv.graphconv import GraphConv

    from ampgnn.nn.gat import gat_forward
    from ampgnn.nn.gcn import gcn_forward

    from . import message_passing as ours

    spmm, sddmm, softmax, segment = (
        importlib.import_module(f"dgl.ops.{name}") for name in ("spmm", "sddmm", "edge_softmax", "segment")
    )
    # update_all of max and min turns every infinity into 0. The kernels give 0 where there is no edge, so the
    # module's view of the backend gets a version that leaves results alone.
    heterograph = importlib.import_module("dgl.heterograph")
    backend = types.ModuleType(heterograph.F.__name__)
    backend.__dict__.update(heterograph.F.__dict__)
    backend.replace_inf_with_zero = lambda x: x
    spmm_arguments = "(g, op, reduce_op, lhs_data, rhs_data)"
    sddmm_arguments = "(g, op, lhs_data, rhs_data, lhs_target='u', rhs_target='v')"
    segment_arguments = "(seglen, value, reducer='sum')"
    return [
        _Patch(spmm, "gspmm", ours.gspmm, spmm_arguments),
        _Patch(dgl.ops, "gspmm", ours.gspmm, spmm_arguments),
        _Patch(sddmm, "gsddmm", ours.gsddmm, sddmm_arguments),
        _Patch(dgl.ops, "gsddmm", ours.gsddmm, sddmm_arguments),
        _Patch(
            softmax,
            "edge_softmax_internal",
            ours.edge_softmax,
            "(gidx, logits, eids='__ALL__', norm_by='dst')",
        ),
        _Patch(
            softmax,
            "edge_softmax_hetero_internal",
            ours.edge_softmax_hetero,
            "(gidx, eids='__ALL__', norm_by='dst', *logits)",
        ),
        _Patch(segment, "segment_reduce", ours.segment_reduce, segment_arguments),
        _Patch(dgl.ops, "segment_reduce", ours.segment_reduce, segment_arguments),
        _Patch(heterograph, "F", backend, None),
        _Patch(GATConv, "forward", gat_forward, "(self, graph, feat, edge_weight=None, get_attention=False)"),
        _Patch(GraphConv, "forward", gcn_forward, "(self, graph, feat, weight=None, edge_weight=None)"),
    ]


def enable() -> None:
    """Makes every DGL program in this process compute on the kernels. Calling it again changes nothing.

    Raises:
        UserError: DGL is of a version, or has a function of a form, that is not known here; nothing is changed then.
    """
    with _lock:
        if _before:
            return
        import dgl

        if dgl.__version__ not in KNOWN:
            raise UserError(f"dgl {dgl.__version__} is not known to ampgnn, known are {', '.join(KNOWN)}")
        patches = _patches()
        for patch in patches:
            _check(patch)
        for patch in patches:
            original = getattr(patch.owner, patch.name)
            replacement = patch.replacement if patch.signature is None else _replace(patch.replacement, original)
            _before.append((patch.owner, patch.name, original))
            setattr(patch.owner, patch.name, replacement)


def _check(patch: _Patch) -> None:
    original = getattr(patch.owner, patch.name, None)
    if original is None:
        raise UserError(f"this DGL has no {patch.owner.__name__}.{patch.name}")
    if patch.signature is not None and str(inspect.signature(original)) != patch.signature:
        have = f"{patch.owner.__name__}.{patch.name}{inspect.signature(original)}"
        raise UserError(f"this DGL has {have}, ampgnn knows {patch.signature}")


def disable() -> None:
    """Gives DGL its own functions back. Calling it again changes nothing."""
    with _lock:
        while _before:
            owner, name, original = _before.pop()
            setattr(owner, name, original)


def is_enabled() -> bool:
    return bool(_before)


@contextmanager
def enabled():
    """DGL on the kernels within a ``with`` block, and as it was before after it. For the whole process, not a thread."""
    was = is_enabled()
    enable()
    try:
        yield
    finally:
        if not was:
            disable()


def stock_layers() -> types.SimpleNamespace:
    """DGL's own GATConv and GraphConv, for comparisons; they run on DGL's kernels while ``enable()`` is not in force."""
    from dgl.nn.pytorch.conv import GATConv, GraphConv

    return types.SimpleNamespace(GATConv=GATConv, GraphConv=GraphConv)
