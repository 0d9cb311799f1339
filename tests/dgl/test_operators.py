"""DGL's message passing on the kernels: every built-in against float64 and stock DGL, and DGL's silent errors."""

import warnings
from itertools import product

import dgl
import dgl.function as fn
import pytest
import torch
from dgl.nn.functional import edge_softmax

import ampgnn
from ampgnn.dgl import is_enabled, to_graph
from ampgnn.errors import UserError

HALVES = [torch.float16, torch.bfloat16]
DTYPES = [torch.float32, *HALVES]
BINARY = [f"{a}_{op}_{b}" for op in ("add", "sub", "mul", "div", "dot") for a, b in product("uve", "uve") if a != b]
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


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


def test_run_script(tmp_path):
    import subprocess
    import sys

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
