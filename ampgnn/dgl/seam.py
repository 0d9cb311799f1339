"""What is replaced in DGL, and back."""

from __future__ import annotations

import functools
import importlib
import inspect
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch

from ampgnn.errors import UserError

KNOWN = ("1.1.3", "2.1.0")

_lock = threading.RLock()
_originals: list[tuple[object, str, object]] = []  # what the replacements stand in for, while they do
_asked = False  # enable() without a disable() since
_blocks = 0  # threads inside ``with enabled()``
_strict = False
_warned: set[str] = set()
_on_stock: ContextVar[bool] = ContextVar("ampgnn_on_stock", default=False)


class _Patch(NamedTuple):
    owner: object
    name: str
    replacement: Callable
    signature: str  # that the original must have
    falls_back: bool = True  # it calls the kernels, which may not have what is asked for


def _patches() -> list[_Patch]:
    import dgl.backend
    from dgl.heterograph_index import HeteroGraphIndex
    from dgl.nn.pytorch import conv
    from dgl.nn.pytorch.conv.twirlsconv import TWIRLSUnfoldingAndAttention

    from ampgnn.nn import dotgat, gat, gatv2, gcn, gin, rgcn, sage

    from . import convert
    from . import message_passing as ours

    spmm, sddmm, softmax, segment, core, heterograph = (
        importlib.import_module(f"dgl.{name}")
        for name in ("ops.spmm", "ops.sddmm", "ops.edge_softmax", "ops.segment", "core", "heterograph")
    )
    public = [
        (spmm, "gspmm", ours.gspmm, "(g, op, reduce_op, lhs_data, rhs_data)"),
        (sddmm, "gsddmm", ours.gsddmm, "(g, op, lhs_data, rhs_data, lhs_target='u', rhs_target='v')"),
        (segment, "segment_reduce", ours.segment_reduce, "(seglen, value, reducer='sum')"),
    ]
    inner = [
        (softmax, "edge_softmax_internal", ours.edge_softmax, "(gidx, logits, eids='__ALL__', norm_by='dst')"),
        (
            softmax,
            "edge_softmax_hetero_internal",
            ours.edge_softmax_hetero,
            "(gidx, eids='__ALL__', norm_by='dst', *logits)",
        ),
        (dgl.backend, "segment_mm", ours.segment_mm, "(A, B, seglen_A)"),
        (dgl.backend, "gather_mm", ours.gather_mm, "(A, B, idx_A=None, idx_B=None)"),
        (core, "message_passing", ours.message_passing(core.message_passing), "(g, mfunc, rfunc, afunc)", False),
        (
            heterograph,
            "reduce_dict_data",
            ours.reduce_dict_data(heterograph.reduce_dict_data),
            "(frames, reducer, order=None)",
            False,
        ),
        (HeteroGraphIndex, "get_relation_graph", convert.relation, "(self, etype)"),
        (HeteroGraphIndex, "number_of_etypes", convert.number_of_etypes, "(self)"),
        (
            conv.APPNPConv,
            "forward",
            _in_type_of_features(conv.APPNPConv.forward),
            "(self, graph, feat, edge_weight=None)",
        ),
        (
            TWIRLSUnfoldingAndAttention,
            "forward",
            _in_type_of_features(TWIRLSUnfoldingAndAttention.forward),
            "(self, g, X)",
        ),
    ]
    weighted, attentive = "(self, graph, feat, edge_weight=None)", "(self, graph, feat, get_attention=False)"
    layers = [
        (conv.GATConv, gat.gat_forward, "(self, graph, feat, edge_weight=None, get_attention=False)"),
        (conv.GATv2Conv, gatv2.gatv2_forward, attentive),
        (conv.DotGatConv, dotgat.dotgat_forward, attentive),
        (conv.GraphConv, gcn.gcn_forward, "(self, graph, feat, weight=None, edge_weight=None)"),
        (conv.EdgeWeightNorm, gcn.edge_weight_norm, "(self, graph, edge_weight)"),
        (conv.SAGEConv, _unless_changed(sage.sage_forward, conv.SAGEConv, "_lstm_reducer"), weighted),
        (conv.GINConv, gin.gin_forward, weighted),
        (
            conv.RelGraphConv,
            _unless_changed(rgcn.rel_graph_forward, conv.RelGraphConv, "message"),
            "(self, g, feat, etypes, norm=None, *, presorted=False)",
        ),
    ]
    return [
        *(_Patch(owner, *rest) for where, *rest in public for owner in (where, dgl.ops)),
        *(_Patch(*patch) for patch in inner),
        *(_Patch(layer, "forward", *rest) for layer, *rest in layers),
    ]


def _unless_changed(forward: Callable, layer: type, method: str) -> Callable:
    """``forward``, and the layer's own for a subclass that has put another ``method`` in the place of DGL's."""
    original, its_own = layer.forward, getattr(layer, method)

    def checked(self, *args, **kwargs):
        changed = getattr(type(self), method) is not its_own
        return (original if changed else forward)(self, *args, **kwargs)

    return checked


def _in_type_of_features(forward: Callable) -> Callable:
    """The result in the features' type, of a layer whose own edge weights are float32 whatever the features are."""

    def cast(self, graph, feat, edge_weight=None):
        if edge_weight is not None:
            return forward(self, graph, feat, edge_weight)
        return forward(self, graph, feat).to(feat.dtype)

    return cast


def enable(strict: bool = False) -> None:
    """Makes every DGL program in this process compute on the kernels. Calling it again changes at most ``strict``.

    What the kernels do not have (a device, say) runs on DGL's own, with a warning the first time. So does a
    ``gspmm``, ``gsddmm`` or ``segment_reduce`` that was imported from ``dgl.ops`` by name before, without a warning.

    Args:
        strict: refuse to fall back on DGL's kernels: a ``UserError`` in place of the warning.

    Raises:
        UserError: DGL is of a version, or has a function of a form, that is not known here; nothing is changed then.
    """
    global _asked, _strict
    with _lock:
        _install()
        _asked, _strict = True, strict


def disable() -> None:
    """Takes ``enable()`` back. DGL has its own functions again once no ``with enabled()`` block is left either."""
    global _asked, _strict
    with _lock:
        _asked = _strict = False
        _remove_if_unused()


@contextmanager
def enabled() -> Iterator[None]:
    """DGL on the kernels within a ``with`` block and as before after it: for the whole process, until the last
    thread leaves its block."""
    global _blocks
    with _lock:
        _install()
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            _remove_if_unused()


def is_enabled() -> bool:
    return bool(_originals)


def _install() -> None:
    if _originals:
        return
    import dgl

    if dgl.__version__ not in KNOWN:
        raise UserError(f"dgl {dgl.__version__} is not known to ampgnn, known are {', '.join(KNOWN)}")
    patches = _patches()
    for patch in patches:
        _check(patch)
    for owner, name, replacement, _, falls_back in patches:
        original = getattr(owner, name)
        routed = _routed(replacement, original, f"{owner.__name__}.{name}") if falls_back else replacement
        _set(owner, name, routed)
    # update_all of max and min turns every infinity into 0. The kernels give 0 where there is no edge, so the
    # module's view of the backend gets a version that leaves their results alone.
    heterograph = importlib.import_module("dgl.heterograph")
    backend = types.ModuleType(heterograph.F.__name__)
    backend.__dict__.update(heterograph.F.__dict__)
    backend.replace_inf_with_zero = _keep_inf(heterograph.F.replace_inf_with_zero)
    _set(heterograph, "F", backend)


def _set(owner: object, name: str, value: object) -> None:
    _originals.append((owner, name, getattr(owner, name)))
    setattr(owner, name, value)


def _remove_if_unused() -> None:
    while _originals and not _asked and not _blocks:
        owner, name, original = _originals.pop()
        setattr(owner, name, original)


def _check(patch: _Patch) -> None:
    original = getattr(patch.owner, patch.name, None)
    if original is None:
        raise UserError(f"this DGL has no {patch.owner.__name__}.{patch.name}")
    if str(inspect.signature(original)) != patch.signature:
        have = f"{patch.owner.__name__}.{patch.name}{inspect.signature(original)}"
        raise UserError(f"this DGL has {have}, ampgnn knows {patch.signature}")


def _routed(replacement: Callable, original: Callable, name: str) -> Callable:
    """``replacement`` under the name of the original, which does what the kernels cannot and what is to be stock."""

    @functools.wraps(original)
    def routed(*args, **kwargs):
        if _on_stock.get():
            return original(*args, **kwargs)
        try:
            return replacement(*args, **kwargs)
        except NotImplementedError as error:  # torch's: the operator has no kernel for this device
            if "ampgnn::" not in str(error):  # a function of the user's
                raise
            reason = str(error).splitlines()[0]
        _fall_back(name, reason)
        with _stock():
            return original(*args, **kwargs)

    return routed


def _fall_back(name: str, reason: str) -> None:
    message = f"{name} runs on DGL's own kernels: {reason}"
    if _strict:
        raise UserError(f"{message} (and enable(strict=True) forbids it)")
    if name not in _warned:
        _warned.add(name)
        warnings.warn(message, RuntimeWarning, stacklevel=4)


def _keep_inf(replace: Callable) -> Callable:
    def replace_inf_with_zero(x):
        device = x.device.type.upper()
        on_kernels = not _on_stock.get() and torch._C._dispatch_has_kernel_for_dispatch_key("ampgnn::spmm", device)
        return x if on_kernels else replace(x)

    return replace_inf_with_zero


@contextmanager
def _stock() -> Iterator[None]:
    token = _on_stock.set(True)
    try:
        yield
    finally:
        _on_stock.reset(token)


@functools.cache
def stock_layers() -> types.SimpleNamespace:
    """DGL's own GATConv and GraphConv on DGL's own kernels, for comparisons, while ``enable()`` is in force too."""
    from dgl.nn.pytorch.conv import GATConv, GraphConv

    def stock(layer: type) -> type:
        def forward(self, *args, **kwargs):
            with _stock():
                return layer.forward(self, *args, **kwargs)

        return type(layer.__name__, (layer,), {"forward": forward, "__doc__": layer.__doc__})

    return types.SimpleNamespace(GATConv=stock(GATConv), GraphConv=stock(GraphConv))
