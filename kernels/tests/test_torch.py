"""The operators within torch: opcheck, compile, transforms, copies, determinism, forks."""

import copy
import multiprocessing
import os
import pickle

import ampgnn_kernels as ak
import pytest
import torch
from support import features, random_graph

OPERATORS = {
    "spmm",
    "sddmm",
    "edge_softmax",
    "edge_softmax_backward",
    "gat_attention",
    "gat_attention_backward",
    "gatv2_attention",
    "gatv2_attention_backward",
    "dot_attention",
    "dot_attention_backward",
    "arg_scatter",
    "head_dot",
    "head_dot_backward",
    "segment_linear",
    "segment_outer",
    "group",
}
ops = torch.ops.ampgnn


def tensors(dtype=torch.float32):
    """A graph as the operators take it, and features of sources, edges and destinations that need a gradient."""
    graph = random_graph(6, 5, 17, torch.int64)
    both = (*graph.csc, *graph.csr, graph.num_src)
    x, w, y = (features(n, 2, d, dtype=dtype, seed=n).requires_grad_() for n, d in ((6, 3), (17, 1), (5, 3)))
    return graph, both, x, w, y


def cases(dtype):
    """(operator, arguments) for every operator."""
    graph, both, x, w, y = tensors(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    el, er = features(6, 2, dtype=wide).requires_grad_(), features(5, 2, dtype=wide).requires_grad_()
    scales = torch.rand(6, dtype=wide), torch.rand(5, dtype=wide)
    for op, reduce in [(op, "sum") for op in ak.cpu.SPMM_OPS] + [("mul", reduce) for reduce in ("mean", "max", "min")]:
        operands = (None if op == "copy_e" else x), (None if op == "copy_u" else w)
        extreme = reduce in ("max", "min")
        yield "spmm", (*both, *operands, op, reduce, *((None, None) if extreme else scales), extreme)
    for op in ak.cpu.SDDMM_OPS:
        operands = (None if op == "copy_rhs" else x), (None if op == "copy_lhs" else y)
        yield "sddmm", (*both, *operands, op, "u", "v", None, None)
    yield "edge_softmax", (*graph.csc, w)
    yield "edge_softmax_backward", (*graph.csc, w, w.detach().clone().requires_grad_())
    yield "gat_attention", (*graph.csc[:2], *graph.csr[:2], x, el, er, 0.2)
    plain = [t.detach() for t in (x, el, er)]
    kept = ops.gat_attention(*graph.csc[:2], *graph.csr[:2], *plain, 0.2)
    yield "gat_attention_backward", (*graph.csc[:2], *graph.csr[:2], *plain, *kept, y.detach(), 0.2)
    ends, attn = (*graph.csc[:2], *graph.csr[:2]), features(2, 3, dtype=torch.float32, seed=2).requires_grad_()
    for name, *rest in (("gatv2_attention", x, y, attn, 0.2), ("dot_attention", x, y, 0.5)):
        yield name, (*ends, *rest)
        *plain, factor = (t.detach() if isinstance(t, torch.Tensor) else t for t in rest)
        kept = getattr(ops, name)(*ends, *plain, factor)
        yield f"{name}_backward", (*ends, *plain, *kept, y.detach(), factor)
    arg = ops.spmm(*both, x.detach(), None, "copy_u", "max", None, None, True)[1]
    yield "arg_scatter", (*graph.csc, *graph.csr, y.detach(), arg, "copy_u", "u", 6)
    rows, weight, lengths = x.detach()[:, 0], features(3, 3, 4, dtype=dtype), torch.tensor([2, 0, 4])
    yield "segment_linear", (rows.clone().requires_grad_(), weight.requires_grad_(), lengths)
    yield "segment_outer", (rows.clone().requires_grad_(), features(6, 4, dtype=dtype).requires_grad_(), lengths)
    vectors = features(2, 2, 3, dtype=wide, seed=7).requires_grad_()
    yield "head_dot", (x, vectors)
    yield "head_dot_backward", (x, vectors, features(2, 6, 2, dtype=wide, seed=8).requires_grad_())
    yield "group", (*graph.coo(), 6, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_operator_passes_opcheck(dtype):
    seen = set()
    for name, arguments in cases(dtype):
        torch.library.opcheck(getattr(ops, name).default, arguments)
        seen.add(name)
    registered = {name.split("::")[1] for name in torch._C._dispatch_get_all_op_names() if name.startswith("ampgnn::")}
    assert seen == OPERATORS == registered


def test_head_dot_has_gradients_of_all_orders():
    leaves = [features(*s, dtype=torch.float64).requires_grad_() for s in ((4, 2, 3), (2, 2, 3))]
    assert torch.autograd.gradcheck(ak.head_dot, leaves)
    assert torch.autograd.gradgradcheck(ak.head_dot, leaves)


def test_segments_have_gradients_of_all_orders():
    rows, weight = (features(*s, dtype=torch.float64).requires_grad_() for s in ((6, 3), (3, 3, 4)))
    lengths = torch.tensor([2, 0, 4])
    assert torch.autograd.gradcheck(lambda *t: ak.segment_linear(*t, lengths), (rows, weight))
    assert torch.autograd.gradgradcheck(lambda *t: ak.segment_linear(*t, lengths), (rows, weight))
    with pytest.raises(ValueError, match="the segments have 5 rows together, x has 6"):
        ak.segment_linear(rows, weight, torch.tensor([2, 0, 3]))
    with pytest.raises(ValueError, match=r"lengths \(R,\), got x \(6, 3\), weight \(3, 3, 4\), lengths \(2,\)"):
        ak.segment_linear(rows, weight, lengths[:2])


@pytest.mark.parametrize("lazy", [True, False])
def test_compiled_functions_of_a_graph(lazy):
    """In one graph of torch.compile, whether or not the edges were grouped by source before, for graphs of any size."""

    def f(graph, x, w):
        h = ak.spmm(graph, x, torch.sigmoid(w), op="mul", reduce="mean")
        a = ak.edge_softmax(graph, ak.sddmm(graph, "dot", x, h))
        return ak.spmm(graph, x, a, op="mul", src_scale=graph.degree_scale("out", -0.5))

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for seed, size in enumerate((6, 9, 13)):
        results = []
        for function in (f, compiled):
            graph = random_graph(size, size, 5 * size, torch.int64, seed)
            x = features(size, 2, 3, dtype=torch.float32).requires_grad_()
            w = features(5 * size, 2, 1, dtype=torch.float32).requires_grad_()
            if not lazy:
                assert graph.csr.indptr.numel() == size + 1
            out = function(graph, x, w)
            results.append([out, *torch.autograd.grad(out.square().sum(), (x, w))])
        for a, b in zip(*results, strict=True):
            assert torch.allclose(a, b, atol=1e-5)


def test_transforms_of_torch_func():
    graph, _, x, w, _ = tensors()

    def weighted(x):
        return ak.spmm(graph, x, w.detach(), op="mul")

    batch = torch.randn(4, *x.shape)
    out = torch.func.vmap(weighted)(batch)
    assert torch.equal(out, torch.stack([weighted(each) for each in batch]))
    message = "cannot be differentiated inside torch.func .* use torch.autograd"
    h = torch.randn(6, 2, 3)
    for f in (
        lambda x: weighted(x).sum(),
        lambda x: ak.sddmm(graph, "copy_lhs", x).sum(),
        lambda x: ak.edge_softmax(graph, ak.sddmm(graph, "copy_lhs", x)).sum(),
        lambda x: ak.head_dot(x, x[0]).sum(),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch.func.grad(f)(h)


def test_a_graph_is_pickled_and_copied():
    graph, _, x, _, _ = tensors()
    want = ak.spmm(graph, x, op="copy_u", dst_scale=graph.degree_scale("in", -1.0))
    for twin in (pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph), copy.copy(graph)):
        assert repr(twin) == repr(graph)
        out = ak.spmm(twin, x, op="copy_u", dst_scale=twin.degree_scale("in", -1.0))
        assert torch.equal(out, want)
        assert torch.equal(
            torch.autograd.grad(out.sum(), x)[0], torch.autograd.grad(want.sum(), x, retain_graph=True)[0]
        )


def test_deterministic_algorithms():
    """torch then fills what it allocates with NaN: nothing is read before it is written, and nothing is refused."""
    graph = random_graph(300, 200, 5000)
    torch.use_deterministic_algorithms(True)
    try:
        for dtype in (torch.float32, torch.bfloat16):
            h = features(300, 2, 16, dtype=dtype).requires_grad_()
            el, er = (features(n, 2, dtype=torch.float32).requires_grad_() for n in (300, 200))
            w = features(5000, 2, 1, dtype=dtype).requires_grad_()
            results = []
            for _ in range(2):
                outs = [ak.spmm(graph, h, w, op="mul", reduce=reduce) for reduce in ("sum", "mean", "max", "min")]
                outs += [
                    ak.gat_attention(graph, h, el, er),
                    ak.gatv2_attention(graph, h, h[:200], el[:2, :1].expand(2, 16)),
                    ak.dot_attention(graph, h, h[:200], 0.25),
                    ak.edge_softmax(graph, w),
                    ak.sddmm(graph, "dot", h, h[:200]),
                ]
                results.append([*outs, *torch.autograd.grad(sum(o.float().sum() for o in outs), (h, el, er, w))])
            for a, b in zip(*results, strict=True):
                assert a.isfinite().all() and torch.equal(a, b)
    finally:
        torch.use_deterministic_algorithms(False)


def train_step(graph, h, queue):
    out = ak.gat_attention(graph, h.requires_grad_(), h.sum(-1).float(), h.sum(-1).float())
    out.float().square().sum().backward()
    queue.put((torch.get_num_threads(), *(t.detach().numpy().tobytes() for t in (out, h.grad))))


def test_forked_children_do_not_hang():
    """OpenMP's pool does not survive a fork: a child that waited for the parent's threads would never end."""
    graph, h = random_graph(2000, 2000, 60_000), features(2000, 4, 32, dtype=torch.float32)
    here, context = multiprocessing.Queue(), multiprocessing.get_context("fork")
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        assert (torch.randn(2_000_000) + 1).isfinite().all()  # torch's own parallel loops too
        train_step(graph, h.clone(), here)
        queue = context.Queue()
        child = context.Process(target=train_step, args=(graph, h.clone(), queue))
        child.start()
        try:
            of_parent, of_child = here.get(timeout=10), queue.get(timeout=60)
            child.join(60)
            assert child.exitcode == 0
        finally:
            child.kill()
        assert of_parent[0] == 4 and of_child[0] == 1
        assert of_child[1:] == of_parent[1:]
    finally:
        torch.set_num_threads(threads)


def test_a_child_of_fork_itself_does_not_hang():
    graph, x = random_graph(500, 500, 20_000), torch.randn(500, 64)
    want = ak.spmm(graph, x, op="copy_u")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, b"same" if torch.equal(ak.spmm(graph, x, op="copy_u"), want) else b"other")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 5) == b"same"
