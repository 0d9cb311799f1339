"""The operators' formulas in plain torch, gather and scatter, differentiable: in float64 the reference, in other types
what a careful user would write (reductions in float32, one cast at the end)."""

import torch


def acc(t):
    return t if t.dtype == torch.float64 else t.float()


def per_edge(graph, t, target):
    src, dst = graph.coo()
    return t if target == "e" else t[(src if target == "u" else dst).long()]


def combine(op, a, b):
    if op in ("copy_u", "copy_lhs"):
        return a
    if op in ("copy_e", "copy_rhs"):
        return b
    if op == "dot":
        return (a * b).sum(-1, keepdim=True)
    # DGL's rule: feature dimensions align at the right, after the row dimension
    n = max(a.dim(), b.dim())
    a, b = (t.reshape(t.shape[0], *[1] * (n - t.dim()), *t.shape[1:]) for t in (a, b))
    return {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}[op](a, b)


def messages(graph, x, w, op):
    return combine(op, None if x is None else per_edge(graph, acc(x), "u"), None if w is None else acc(w))


def first_extreme(dst, m, num_dst, reduce):
    """The rows' first extreme message (the gradient goes to it alone), 0 for a row without any."""
    index = dst.reshape(-1, *[1] * (m.dim() - 1)).expand_as(m)
    top = m.detach().new_zeros((num_dst, *m.shape[1:]))
    top = top.scatter_reduce(0, index, m.detach(), {"max": "amax", "min": "amin"}[reduce], include_self=False)
    edge = torch.arange(len(m)).reshape(index.shape[0], *[1] * (m.dim() - 1)).expand_as(m)
    edge = torch.where(m.detach() == top.gather(0, index), edge, len(m))
    first = torch.full(top.shape, len(m)).scatter_reduce(0, index, edge, "amin")
    return torch.cat([m, m.new_zeros(1, *m.shape[1:])]).gather(0, first)


def reduce_rows(graph, m, reduce, dtype):
    dst = graph.coo()[1].long()
    if reduce in ("max", "min"):
        return first_extreme(dst, m, graph.num_dst, reduce).to(dtype)
    out = m.new_zeros((graph.num_dst, *m.shape[1:])).index_add(0, dst, m)
    if reduce == "mean":
        out = out / graph.in_degrees().clamp(min=1).reshape(-1, *[1] * (m.dim() - 1))
    return out.to(dtype)


def spmm(graph, x=None, w=None, *, op, reduce="sum"):
    return reduce_rows(graph, messages(graph, x, w, op), reduce, (w if x is None else x).dtype)


def sddmm(graph, op, lhs=None, rhs=None, lhs_target="u", rhs_target="v"):
    a = None if lhs is None else per_edge(graph, acc(lhs), lhs_target)
    b = None if rhs is None else per_edge(graph, acc(rhs), rhs_target)
    return combine(op, a, b).to((rhs if lhs is None else lhs).dtype)


def softmax_rows(graph, logits, rows, num_rows):
    index = rows.long().reshape(-1, *[1] * (logits.dim() - 1)).expand_as(logits)
    top = logits.new_zeros((num_rows, *logits.shape[1:]))
    top = top.scatter_reduce(0, index, logits.detach(), "amax", include_self=False)
    e = (logits - top.gather(0, index)).exp()
    return e / torch.zeros_like(top).scatter_add(0, index, e).gather(0, index)


def edge_softmax(graph, logits, norm_by="dst"):
    src, dst = graph.coo()
    rows, n = (dst, graph.num_dst) if norm_by == "dst" else (src, graph.num_src)
    return softmax_rows(graph, acc(logits), rows, n).to(logits.dtype)


def gat_attention(graph, h, el, er, negative_slope=0.2):
    logits = per_edge(graph, acc(el), "u") + per_edge(graph, acc(er), "v")
    logits = torch.nn.functional.leaky_relu(logits, negative_slope)
    return attention(graph, h, logits)


def gatv2_attention(graph, h, h_dst, attn, negative_slope=0.2):
    pairs = torch.nn.functional.leaky_relu(
        per_edge(graph, acc(h), "u") + per_edge(graph, acc(h_dst), "v"), negative_slope
    )
    return attention(graph, h, (pairs * acc(attn)).sum(-1))


def dot_attention(graph, h, h_dst, scale):
    return attention(graph, h, (per_edge(graph, acc(h), "u") * per_edge(graph, acc(h_dst), "v")).sum(-1) * scale)


def attention(graph, h, logits):
    a = softmax_rows(graph, logits, graph.coo()[1], graph.num_dst)
    return reduce_rows(graph, per_edge(graph, acc(h), "u") * a[..., None], "sum", h.dtype)
