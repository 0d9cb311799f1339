"""DGL's message passing on the kernels: every built-in against float64 and stock DGL, and DGL's silent errors."""

import subprocess
import sys
import warnings
from itertools import product

import dgl
import dgl.function as fn
import pytest
import torch
from dgl.nn.functional import edge_softmax

import ampgnn
from ampgnn.dgl import is_enabled, stock_layers, to_graph
from ampgnn.errors import UserError

HALVES = [torch.float16, torch.bfloat16]
DTYPES = [torch.float32, *HALVES]
BINARY = [f"{a}_{op}_{b}" for op in ("add", "sub", "mul", "div", "dot") for a, b in product("uve", "uve") if a != b]
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
SUMMED = 100 * 2.0**-24  # of sums of some tens of terms about 1, made in float32


@pytest.fixture
def kernels():
    with ampgnn.enabled():
        yield


def graph(idtype=torch.int32, nodes=40, edges=300):
    torch.manual_seed(0)
    g = dgl.graph((torch.randint(nodes, (edges,)), torch.randint(nodes - 2, (edges,))), num_nodes=nodes, idtype=idtype)
    for frame, rows in ((g.ndata, nodes), (g.edata, edges)):
        frame["x"] = torch.randn(rows, 2, 5, dtype=torch.float64)
        frame["y"] = torch.rand(rows, 2, 5, dtype=torch.float64) + 0.5
    return g


def converted(g, dtype):
    h = g.local_var()
    for frame in (h.ndata, h.edata):
        for key in ("x", "y"):
            frame[key] = frame[key].detach().to(dtype, copy=True).requires_grad_()
    return h


def rounded(g, dtype):
    """In float64 again, from the values in ``dtype``: the reference's inputs."""
    return converted(converted(g, dtype), torch.float64)


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["copy_u", "copy_e", *BINARY])
def test_every_message_with_every_reducer(name, dtype, idtype):
    g = graph(idtype)
    message = getattr(fn, name)
    message = message("x", "m") if name.startswith("copy") else message("x", "y", "m")
    for reduce in ("sum", "mean", "max", "min"):
        reducer = getattr(fn, reduce)("m", "out")
        half, exact = converted(g, dtype), rounded(g, dtype)
        with ampgnn.enabled():
            half.update_all(message, reducer)
        exact.update_all(message, reducer)  # stock DGL in float64
        out, want = half.ndata["out"], exact.ndata["out"]
        assert out.dtype == dtype and out.shape == want.shape
        # messages of a binary function over v or two u's are stored per edge, in half, before they are reduced
        assert torch.allclose(out.double(), want, rtol=4 * UNIT[dtype], atol=40 * UNIT[dtype])
        (out.double() * want.detach()).sum().backward()
        (want * want.detach()).sum().backward()
        for ours, theirs in ((half.ndata, exact.ndata), (half.edata, exact.edata)):
            for key in ("x", "y"):
                a, b = ours[key].grad, theirs[key].grad
                assert (a is None) == (b is None)
                if a is not None and reduce in ("sum", "mean"):
                    scale = b.abs().max().clamp(min=1)
                    assert (a.double() - b).abs().max() <= 16 * UNIT[dtype] * scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BINARY)
def test_apply_edges(kernels, name, dtype):
    g = graph()
    half, exact = converted(g, dtype), rounded(g, dtype)
    message = getattr(fn, name)("x", "y", "m")
    half.apply_edges(message)
    exact.apply_edges(message)
    assert half.edata["m"].dtype == dtype
    assert torch.allclose(half.edata["m"].double(), exact.edata["m"], rtol=2 * UNIT[dtype], atol=8 * UNIT[dtype])


def test_float32_equals_stock_dgl_on_other_paths():
    g = graph()
    g.ndata["x"], g.edata["y"] = g.ndata["x"].float(), g.edata["y"].float()

    def run(g):
        g = g.local_var()
        g.pull(torch.tensor([0, 3, 5], dtype=g.idtype), fn.u_mul_e("x", "y", "m"), fn.sum("m", "a"))
        g.push(torch.tensor([0, 3, 5], dtype=g.idtype), fn.copy_u("x", "m"), fn.max("m", "b"))
        g.send_and_recv(torch.tensor([1, 2, 3, 4], dtype=g.idtype), fn.copy_u("x", "m"), fn.mean("m", "c"))
        some = torch.arange(10, dtype=g.idtype)
        block = dgl.to_block(dgl.in_subgraph(g, some), some)
        block.update_all(fn.copy_u("x", "m"), fn.sum("m", "d"))
        batch = dgl.batch([g, g])
        batch.update_all(fn.copy_u("x", "m"), fn.mean("m", "e"))
        soft = edge_softmax(g, g.edata["y"]), edge_softmax(g, g.edata["y"], norm_by="src")
        some = edge_softmax(g, g.edata["y"][:7], eids=torch.arange(7, dtype=g.idtype))
        segments = [
            dgl.ops.segment_reduce(torch.tensor([3, 0, 37]), g.ndata["x"], r) for r in ("sum", "mean", "max", "min")
        ]
        return [g.ndata["a"], g.ndata["b"], g.ndata["c"], block.dstdata["d"], batch.ndata["e"], *soft, some, *segments]

    stock = run(g)
    with ampgnn.enabled():
        ours = run(g)
    for a, b in zip(ours, stock, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_several_edge_types():
    torch.manual_seed(0)
    g = dgl.heterograph(
        {
            ("user", "follows", "user"): ([0, 1, 2, 2], [1, 2, 0, 1]),
            ("user", "plays", "game"): ([0, 1, 1], [0, 0, 1]),
            ("game", "attracts", "user"): ([0, 1], [2, 2]),
        }
    )
    g.nodes["user"].data["h"], g.nodes["game"].data["h"] = torch.randn(3, 4), torch.randn(2, 4)

    def run(dtype):
        h = g.local_var()
        for kind in ("user", "game"):
            h.nodes[kind].data["h"] = h.nodes[kind].data["h"].to(dtype)
        results = []
        for reduce in ("sum", "max", "min"):
            h.update_all(fn.copy_u("h", "m"), getattr(fn, reduce)("m", "out"))
            results += [h.nodes[kind].data["out"] for kind in ("user", "game")]
        calls = {e: (fn.copy_u("h", "m"), fn.mean("m", "z")) for e in ("follows", "attracts")}
        h.multi_update_all(calls, "sum")
        results.append(h.nodes["user"].data["z"])
        logits = {e: torch.arange(h.num_edges(e), dtype=dtype).reshape(-1, 1) for e in h.canonical_etypes}
        results += list(edge_softmax(h, logits).values())
        return results

    stock = run(torch.float32)
    with ampgnn.enabled():
        for dtype in DTYPES:
            for a, b in zip(run(dtype), stock, strict=True):
                assert a.dtype == dtype and torch.allclose(a.float(), b, rtol=4 * UNIT[dtype], atol=8 * UNIT[dtype])


# ---- where stock DGL is silently wrong


def star(degree):
    return dgl.graph((torch.arange(degree), torch.zeros(degree, dtype=torch.int64)), num_nodes=degree)


@pytest.mark.parametrize("degree", [512, 1000, 5000, 20_000])
def test_bf16_softmax_of_a_hub_adds_up_to_one(kernels, degree):
    weights = edge_softmax(star(degree), torch.ones(degree, 1, dtype=torch.bfloat16))
    assert abs(weights.double().sum() - 1) < 2 * 2.0**-8


@pytest.mark.parametrize("logit", [-100.0, -200.0])
def test_bf16_softmax_of_negative_logits(kernels, logit):
    weights = edge_softmax(star(10), torch.full((10, 1), logit, dtype=torch.bfloat16))
    assert torch.equal(weights, torch.full((10, 1), 0.1, dtype=torch.bfloat16))


def test_bf16_dot_does_not_stall(kernels):
    g = dgl.graph(([0], [1]))
    g.ndata["x"] = torch.ones(2, 4096, dtype=torch.bfloat16)
    g.apply_edges(fn.u_dot_v("x", "x", "d"))
    assert g.edata["d"].item() == 4096


@pytest.mark.parametrize("dtype", DTYPES)
def test_max_keeps_nan_and_inf(kernels, dtype):
    g = dgl.graph(([0, 1, 2], [3, 3, 4]), num_nodes=6)
    g.ndata["x"] = torch.tensor([float("nan"), 1, float("inf"), 0, 0, 0], dtype=dtype).reshape(-1, 1)
    g.update_all(fn.copy_u("x", "m"), fn.max("m", "y"))
    y = g.ndata["y"].flatten()
    assert y[3].isnan() and y[4].isinf() and y[5] == 0


def test_fp16_sum_and_mean_of_a_hub(kernels):
    g = star(13_000)
    g.ndata["x"] = torch.ones(13_000, 1, dtype=torch.float16)
    g.update_all(fn.copy_u("x", "m"), fn.sum("m", "y"))
    assert g.ndata["y"][0].item() == 13_000
    g.ndata["x"] *= 60_000
    g.update_all(fn.copy_u("x", "m"), fn.mean("m", "y"))
    assert g.ndata["y"][0].item() == 60_000


def test_degrees_are_not_rounded_in_graph_conv(kernels):
    g = star(1001)
    g.ndata["x"] = torch.ones(1001, 1)
    conv = dgl.nn.GraphConv(1, 1, norm="right", weight=False, bias=False, allow_zero_in_degree=True)
    out = conv(g, torch.full((1001, 1), 60_000.0, dtype=torch.float16))
    assert out[0].item() == 60_000 and out[1].item() == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_in_degree_is_zero_not_the_largest_negative(kernels, dtype):
    g = dgl.graph(([0], [1]), num_nodes=3)
    x = torch.full((3, 2), -3.0, dtype=dtype, requires_grad=True)
    for reduce in ("max", "min", "mean", "sum"):
        out = getattr(dgl.ops, f"copy_u_{reduce}")(g, x)
        assert torch.equal(out[1], x[0]) and not out[[0, 2]].any()
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(grad, torch.tensor([[1.0, 1], [0, 0], [0, 0]], dtype=dtype))


def test_fp16_softmax_of_the_largest_logits(kernels):
    logits = torch.tensor([[60_000.0], [-60_000], [60_000]], dtype=torch.float16)
    assert torch.equal(edge_softmax(star(3), logits), torch.tensor([[0.5], [0], [0.5]], dtype=torch.float16))


def test_nan_stays_in_its_row(kernels):
    g = dgl.graph(([0, 1], [2, 3]), num_nodes=4)
    x = torch.tensor([[float("nan")], [float("inf")], [0], [0]], dtype=torch.bfloat16)
    for reduce in ("sum", "mean", "max", "min"):
        out = getattr(dgl.ops, f"copy_u_{reduce}")(g, x).flatten()
        assert out[2].isnan() and out[3].isposinf() and not out[:2].any()


def test_sum_across_edge_types_is_rounded_once(kernels):
    g = dgl.heterograph({("a", "r", "b"): ([0], [0]), ("a", "s", "b"): ([0], [0]), ("a", "t", "b"): ([0], [0])})
    g.nodes["a"].data["x"] = torch.ones(1, 1, dtype=torch.bfloat16)
    g.edata["w"] = dict(zip(g.canonical_etypes, torch.tensor([256.0, 1, 1]).bfloat16().reshape(3, 1, 1), strict=True))
    g.update_all(fn.u_mul_e("x", "w", "m"), fn.sum("m", "y"))
    assert g.nodes["b"].data["y"].item() == 258


def test_features_of_one_number(kernels):
    g = graph()
    x, w = torch.rand(40).half(), torch.rand(300).half()
    src, dst = g.edges()
    assert torch.equal(dgl.ops.u_dot_v(g, x, x), x[src.long()] * x[dst.long()])
    assert dgl.ops.u_mul_e_sum(g, x, w).shape == (40,) and edge_softmax(g, w).shape == (300,)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shapes", [((3, 1), (5, 3, 4)), ((4,), (1,)), ((2, 1, 3), (1, 5, 1)), ((), (2,)), ((0,), (0,))]
)
def test_broadcasting(dtype, shapes):
    g = graph()
    x, w = (torch.rand(n, *s).to(dtype) + 0.5 for n, s in zip((40, 300), shapes, strict=True))
    for op, reduce in product(("add", "sub", "mul", "div"), ("sum", "max", "mean")):
        name = f"u_{op}_e_{reduce}"
        with ampgnn.enabled():
            out = getattr(dgl.ops, name)(g, x, w)
        src, dst = g.edges()
        a, b = x.double()[src.long()], w.double()
        ndim = max(a.dim(), b.dim())
        a, b = (t.reshape(300, *[1] * (ndim - t.dim()), *t.shape[1:]) for t in (a, b))
        message = {"add": a + b, "sub": a - b, "mul": a * b, "div": a / b}[op]
        kind = {"sum": "sum", "max": "amax", "mean": "mean"}[reduce]
        at = dst.long().reshape(-1, *[1] * (ndim - 1)).expand_as(message)
        want = torch.zeros(40, *message.shape[1:], dtype=torch.float64)
        want = want.scatter_reduce(0, at, message, kind, include_self=False)
        assert out.dtype == dtype and out.shape == want.shape
        assert torch.allclose(out.double(), want, rtol=UNIT[dtype], atol=SUMMED)


# ---- switching


def test_switching_and_views():
    assert not is_enabled()
    original = dgl.ops.gspmm
    with ampgnn.enabled():
        assert is_enabled() and dgl.ops.gspmm is not original
        with ampgnn.enabled():
            pass
        assert is_enabled()
        ampgnn.enable()
        ampgnn.enable()
    assert is_enabled()  # asked for inside the block, it outlasts it
    with ampgnn.enabled():
        ampgnn.disable()
        assert is_enabled()  # until the block ends
    assert not is_enabled() and dgl.ops.gspmm is original
    ampgnn.disable()


def test_views():
    g = graph()
    view = to_graph(g)
    assert to_graph(g) is view and view.num_edges == 300
    g.add_edges([0], [1])
    assert to_graph(g) is not view and to_graph(g).num_edges == 301
    h = dgl.heterograph({("a", "r", "b"): ([0], [0]), ("a", "s", "b"): ([0], [0])})
    with pytest.raises(ValueError, match="name one of"):
        to_graph(h)


def test_an_unknown_dgl_is_refused(monkeypatch):
    monkeypatch.setattr(dgl, "__version__", "9.9")
    with pytest.raises(UserError, match=r"dgl 9\.9 is not known to ampgnn, known are 1\.1\.3, 2\.1\.0"):
        ampgnn.enable()
    monkeypatch.undo()
    monkeypatch.setattr("dgl.ops.spmm.gspmm", lambda g: None)
    with pytest.raises(UserError, match=r"this DGL has dgl\.ops\.spmm\.gspmm\(g\), ampgnn knows"):
        ampgnn.enable()
    assert not is_enabled()


def test_strict_and_announced_fallback(monkeypatch):
    """A device without kernels, played by an operator that raises as torch does for one."""
    g = star(3)
    x = torch.tensor([[1.0], [float("-inf")], [2.0]])

    def no_kernel(*args, **kwargs):
        raise NotImplementedError("Could not run 'ampgnn::spmm' with arguments from the 'XPU' backend.\nmore")

    monkeypatch.setattr("ampgnn_kernels.spmm", no_kernel)
    monkeypatch.setattr("ampgnn.dgl.seam._warned", set())
    with ampgnn.enabled():
        with pytest.warns(RuntimeWarning, match=r"gspmm runs on DGL's own kernels: Could not run .* backend\.$"):
            assert dgl.ops.copy_u_max(g, x)[0] == 2
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # said once
            assert dgl.ops.copy_u_max(g, x)[0] == 2
    ampgnn.enable(strict=True)
    try:
        with pytest.raises(UserError, match="strict=True"):
            dgl.ops.copy_u_max(g, x)
    finally:
        ampgnn.disable()


def test_an_error_of_the_users_function_is_no_reason_to_fall_back():
    calls = []

    def unfinished(nodes):
        calls.append(nodes)
        raise NotImplementedError("my reducer")

    g = star(3)
    g.ndata["x"] = torch.ones(3, 1)
    with ampgnn.enabled(), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NotImplementedError, match="my reducer"):
            g.update_all(fn.copy_u("x", "m"), unfinished)
        with pytest.raises(NotImplementedError, match="my reducer"):
            dgl.nn.GINConv(unfinished, "sum")(g, g.ndata["x"])
    assert len(calls) == 2


def test_threads_that_enter_and_leave():
    from concurrent.futures import ThreadPoolExecutor

    g = star(300)
    x = torch.ones(300, 1, dtype=torch.float16)

    def work(_):
        for _ in range(30):
            with ampgnn.enabled():  # without the kernels DGL has no fp16
                assert dgl.ops.copy_u_sum(g, x)[0] == 300

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert not is_enabled()


def test_stock_layers_stay_stock():
    g, x = dgl.add_self_loop(dgl.rand_graph(30, 100)), torch.randn(30, 5)
    layers = stock_layers()
    for layer in (layers.GATConv(5, 3, 2), layers.GraphConv(5, 3)):
        want = layer(g, x)
        with ampgnn.enabled():
            out = layer(g, x)
            out.sum().backward()
            with pytest.raises(dgl.DGLError, match="bfloat16"):  # DGL's own kernels take no fp16
                layer.half()(g, x.half())
            assert torch.equal(out, want)


def test_a_view_lives_as_long_as_its_graph(kernels):
    import gc
    import weakref

    g = graph()
    g.update_all(fn.copy_u("x", "m"), fn.sum("m", "out"))
    assert to_graph(g) is to_graph(g[g.canonical_etypes[0]])
    assert to_graph(g).csr.indices.numel() == 300
    index = weakref.ref(g._graph)
    gc.disable()
    try:
        del g
        assert index() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("formats", ["coo", "csr", "csc", ["coo", "csr", "csc"]])
def test_restricted_formats(kernels, formats):
    g = graph()
    h = g.formats(formats)
    x, w = g.ndata["x"].float().requires_grad_(), g.edata["y"].float().requires_grad_()
    results = []
    for each in (g, h):
        out = dgl.ops.u_mul_e_sum(each, x, w)
        results.append([out, *torch.autograd.grad(out.square().sum(), (x, w))])
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-4) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_segment_and_gather_mm(kernels, dtype):
    torch.manual_seed(0)
    for rows, wide, many in ((40, 16, 5), (12, 4, 3)):
        a, b = torch.randn(rows, wide).to(dtype).requires_grad_(), torch.randn(many, wide, 6).to(dtype).requires_grad_()
        index = torch.randint(many, (rows,)).sort().values
        lengths = torch.bincount(index, minlength=many)
        shuffle = torch.randperm(rows)
        exact_a, exact_b = (t.detach().double().requires_grad_() for t in (a, b))
        want = torch.bmm(exact_a.unsqueeze(1), exact_b[index]).squeeze(1)
        wants = [want, *torch.autograd.grad(want.sum(), (exact_a, exact_b))]
        out = dgl.ops.segment_mm(a, b, lengths)
        mixed = dgl.ops.gather_mm(a[shuffle], b, idx_b=index[shuffle])[torch.argsort(shuffle)]
        for found in (out, mixed):
            assert found.dtype == dtype
            for got, exact in zip([found, *torch.autograd.grad(found.sum(), (a, b))], wants, strict=True):
                assert torch.allclose(got.double(), exact, rtol=2 * UNIT[dtype], atol=8 * UNIT[dtype] + SUMMED)


def test_refusals_are_dgl_errors(kernels):
    g = graph()
    with pytest.raises(dgl.DGLError, match="do not broadcast"):
        dgl.ops.u_add_e(g, torch.ones(40, 3), torch.ones(300, 2))
    with pytest.raises(dgl.DGLError, match=r"float16 or bfloat16, got torch\.int64"):
        dgl.ops.copy_e_sum(g, torch.ones(300, 1, dtype=torch.int64))
    with pytest.raises(dgl.DGLError, match="5 rows together, value has 7"):
        dgl.ops.segment_reduce(torch.tensor([2, 3]), torch.ones(7, 1))
    h = dgl.heterograph({("a", "r", "b"): ([0], [0]), ("a", "s", "b"): ([0], [0])})
    logits = {e: torch.ones(1, 1) for e in h.canonical_etypes}
    with pytest.raises(dgl.DGLError, match="one edge type"):
        edge_softmax(h, logits, eids=torch.tensor([0]))


def test_mixed_types_follow_torch(kernels):
    g = graph()
    g.ndata["x"], g.edata["w"] = g.ndata["x"].half(), torch.ones(300, 1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        g.update_all(fn.u_mul_e("x", "w", "m"), fn.sum("m", "out"))
    assert g.ndata["out"].dtype == torch.float32
    with torch.amp.autocast("cpu", dtype=torch.bfloat16):
        g.update_all(fn.u_mul_e("x", "w", "m"), fn.sum("m", "out"))
    assert g.ndata["out"].dtype == torch.bfloat16


PEAK = """
import torch, ampgnn, dgl, dgl.function as fn
from ampgnn.training.meters import peak_resident as peak
torch.manual_seed(0)
g = dgl.rand_graph(2000, 400_000, idtype=torch.int32)
g.create_formats_()
ampgnn.enable(strict=True)
for op, reduce in (("mul", "sum"), ("mul", "mean"), ("mul", "max"), ("add", "sum"), ("div", "sum"), ("sub", "min")):
    g.ndata["x"] = torch.rand(2000, 128, dtype=torch.{dtype}).requires_grad_()
    g.edata["w"] = torch.rand(400_000, 1, dtype=torch.{dtype}).add(0.5).requires_grad_()
    before = peak()
    g.update_all(getattr(fn, f"u_{{op}}_e")("x", "w", "m"), getattr(fn, reduce)("m", "y"))
    g.ndata["y"].sum().backward()
    print(op, reduce, peak() - before)
"""


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weighted_sums_hold_no_message(dtype):
    """Forward and backward; 400 000 messages of 128 numbers would be 100 or 200 MB."""
    done = subprocess.run([sys.executable, "-c", PEAK.format(dtype=dtype)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rises = [line.split() for line in done.stdout.splitlines()]
    assert len(rises) == 6 and all(int(rise) < 48 << 20 for *_, rise in rises), rises


def test_run_script(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import sys, torch, dgl, dgl.function as fn\n"
        "g = dgl.rand_graph(5, 9); g.ndata['x'] = torch.ones(5, 2).half()\n"
        "g.update_all(fn.copy_u('x', 'm'), fn.sum('m', 'y'))\n"
        "print(sys.argv[1:], __name__, g.ndata['y'].dtype); sys.exit(3)\n"
    )
    command = [sys.executable, "-m", "ampgnn", "run", str(script), "--flag", "7"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3 and "['--flag', '7'] __main__ torch.float16" in done.stdout
    done = subprocess.run([*command[:4], str(tmp_path / "none.py")], capture_output=True, text=True)
    assert done.returncode == 2 and "no script at" in done.stderr
