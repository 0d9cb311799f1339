"""The report from real runs: with the store, without it, in a real browser."""

import json
import re
import shutil
import subprocess

import pytest

from ampgnn import config, datasets
from ampgnn.report import summary, tables, write_report
from ampgnn.report.collect import collect
from ampgnn.training import run_config


@pytest.fixture(scope="module")
def runs(tmp_path_factory, cache):
    """Result files of configurations of digits and of the stand-in."""
    folder = tmp_path_factory.mktemp("runs")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    digits = {"dataset": "digits", "model": "gcn", "epochs": 4, "seeds": [0, 1]}
    reddit = {"dataset": "reddit-0.001", "model": "gat", "hidden": 8, "epochs": 3}
    for key, name, scale in (("digits", "digits", None), ("reddit-0.001", "reddit", 0.001)):
        datasets.prepare(name, folder / f"{key}.json", scale=scale, cache=cache)
    for values in (
        {**digits, "precision": "fp32"},
        {**digits, "precision": "fp32", "backend": "dgl", "epochs": 2},
        {**digits, "precision": "bf16"},
        {**digits, "precision": "fp16", "backend": "dgl"},
        {**digits, "precision": "fp32", "batch_size": 512, "seeds": [0]},
        {**reddit, "precision": "fp32"},
        {**reddit, "precision": "fp16"},
        {**reddit, "precision": "fp32", "batch_size": 64},
    ):
        setting = config.parse(values)
        run_config(
            setting,
            folder / f"{setting.dataset}.json",
            folder / "runs" / setting.dataset / setting.id,
            tracking_uri=uri,
        )
    return folder


def files(folder):
    return sorted((folder / "runs").rglob("result.json"))


def test_tables_figures_and_reasons(runs, tmp_path):
    write_report(files(runs), tmp_path)
    page, markdown = (tmp_path / "index.html").read_text(), (tmp_path / "report.md").read_text()
    results = [json.loads(f.read_text()) for f in files(runs)]
    for result in results:
        for run in result["runs"]:
            if run["status"] == "finished":
                assert f"/runs/{run['mlflow_run_id']}" in page and f"/runs/{run['mlflow_run_id']}" in markdown
    native = next(r for r in results if r["id"] == "gcn-bf16-amp-native-cpu")
    accuracy = 50 * sum(run["final"]["test/acc"] for run in native["runs"])
    assert f"{accuracy:.2f} ±" in page and f"{accuracy:.2f} ±" in markdown
    assert "time only, 2 epochs" in page  # DGL's rows are shorter
    assert page.count("<svg") == 3  # two for digits; the stand-in has no DGL row to compare with
    assert "bf16 amp" in markdown and re.search(r"bf16 amp (matches|differs from) fp32: loss", markdown)
    assert "DGL&#39;s CPU kernels take no float16" in page
    assert "http" not in page.replace("http://127.0.0.1:5000", "").replace("http://www.w3.org", "")


def test_the_rows_of_a_markdown_table_are_as_long_as_its_head(runs, tmp_path):
    write_report(files(runs), tmp_path)
    found = re.findall(r"(?:^\|.*\n)+", (tmp_path / "report.md").read_text(), re.MULTILINE)
    assert len(found) == 3  # digits, the stand-in, memory
    for table in found:
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_each_time_is_compared_with_its_own_backends_fp32(runs, tmp_path):
    found = {r.id: r for t in tables.make(collect(files(runs)).runs, {}, {}) for r in t.rows}
    fp32, bf16 = found["gcn-fp32-native-cpu"], found["gcn-bf16-amp-native-cpu"]
    assert fp32.over_fp32 == found["gcn-fp32-dgl-cpu"].over_fp32 == 1
    assert bf16.over_fp32 == pytest.approx(fp32.seconds[0] / bf16.seconds[0])
    sampled, whole = found["gat-h1.1.1-fp32-native-cpu-b64"], found["gat-h1.1.1-fp32-native-cpu"]
    assert sampled.over_fp32 == whole.over_fp32 == 1  # an epoch of mini-batches is no measure of one of the whole graph
    assert (sampled.setting, whole.setting) == ("heads 1 1 1, batches of 64", "heads 1 1 1")
    stand_in = found["gat-h1.1.1-fp16-amp-native-cpu"]
    assert stand_in.speedup is None and stand_in.over_fp32 is not None  # DGL did not run there


def test_the_stand_in_is_named_wherever_it_is_used(runs, tmp_path):
    write_report(files(runs), tmp_path)
    page, markdown = (tmp_path / "index.html").read_text(), (tmp_path / "report.md").read_text()
    section = page.split('<section id="reddit-0-001-gat">')[1].split("</section>")[0]
    assert "synthetic stand-in" in section.split("</h2>")[0] and "on a synthetic stand-in" in section
    assert section.count(">stand-in</span>") == section.count('<tr class="native">') == 3
    assert all("Synthetic stand-in." in c for c in re.findall(r"<figcaption>.*?</figcaption>", section))
    assert "## reddit-0.001, GAT (synthetic stand-in)" in markdown and markdown.count("native (stand-in)") == 3
    assert "stand-in" not in page.split('<section id="digits-gcn">')[1].split("</section>")[0]
    assert any("synthetic stand-in" in line for line in summary(list(map(str, files(runs))), []))


def test_without_the_store_the_files_serve_and_the_page_says_so(runs, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(runs / "runs", copy / "runs")
    for file in files(copy):
        result = json.loads(file.read_text())
        result["tracking"]["uri"] = "http://127.0.0.1:9"
        file.write_text(json.dumps(result))
    write_report(files(copy), tmp_path / "down")
    write_report(files(runs), tmp_path / "up")
    down, up = ((tmp_path / d / "report.md").read_text() for d in ("down", "up"))
    assert "MLflow at http://127.0.0.1:9 could not be reached" in down and "could not be reached" not in up
    numbers = [re.findall(r"\| (fp32|bf16|fp16) \|.*?\| ([\d.]+(?: ± [\d.]+)?) \|", text) for text in (down, up)]
    assert numbers[0] == numbers[1] and len(numbers[0]) >= 5


@pytest.mark.parametrize("width", [1200, 390])
def test_it_renders_in_a_browser(runs, tmp_path, width):
    """A real Chromium: no script or network error, and no part wider than the window but inside its own scroll bar."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert browser, "this test needs Chromium: apt-get install chromium"
    write_report(files(runs), tmp_path)
    page = tmp_path / "index.html"
    probe = "<script>document.title = [document.documentElement.scrollWidth, innerWidth].join('/')</script></body>"
    page.write_text(page.read_text().replace("</body>", probe))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += [
        "--disable-background-networking",
        "--disable-component-update",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    frame = f'<iframe src="index.html" style="width:{width}px;height:900px;border:0"></iframe>'
    (tmp_path / "frame.html").write_text(
        f"<body>{frame}<script>onload = () => document.title = document.querySelector('iframe').contentDocument.title</script>"
    )
    command = [browser, *flags, "--allow-file-access-from-files", "--dump-dom", f"file://{tmp_path / 'frame.html'}"]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    content, window = map(int, re.search(r"<title>(\d+)/(\d+)</title>", dom).groups())
    assert window == width and content <= window
