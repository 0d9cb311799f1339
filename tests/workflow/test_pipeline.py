"""The pipeline with the real Snakemake and a real MLflow store, in a folder of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "threads": 1,
    "cache": "results/cache",
    "on_unavailable": "record",
    "datasets": {"digits": None, "reddit-0.001": {"name": "reddit", "scale": 0.001}},
    "matrix": [
        {"dataset": ["digits"], "model": ["gcn"], "precision": ["fp32", "bf16"], "backend": ["native", "dgl"], "epochs": 3, "seeds": [0, 1]},
        {"dataset": ["reddit-0.001"], "model": ["gat"], "precision": ["bf16"], "hidden": 8, "epochs": 2},
    ],
}  # fmt: skip


def silent_engines(folder) -> Path:
    """A folder with engines that no daemon stands behind; `tests/containers` has real ones."""
    programs = folder / "engines"
    programs.mkdir(exist_ok=True)
    for name in ("docker", "podman"):
        (programs / name).write_text("#!/bin/sh\necho Cannot connect >&2\nexit 1\n")
        (programs / name).chmod(0o755)
    return programs


def snakemake(folder, *arguments, config=None, timeout=300, **env):
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    command = [Path(sys.executable).parent / "snakemake", "-s", ROOT / "Snakefile", "--directory", folder]
    command += [*arguments, "--configfile", folder / "config.yaml"]
    done = subprocess.run(
        [str(c) for c in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=folder,
        env={**os.environ, "PATH": f"{silent_engines(folder)}:{os.environ['PATH']}", **env},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline")
    code, output = snakemake(folder, "--cores", "2", "--verbose", config=TINY)
    assert code == 0, output
    return folder, output


def results(folder) -> dict[str, dict]:
    return {
        f"{r['config']['dataset']}/{r['id']}": r
        for r in map(json.loads, (f.read_text() for f in folder.rglob("result.json")))
    }


def test_every_configuration_has_a_result_and_its_runs_in_mlflow(finished):
    folder, output = finished
    found = results(folder)
    assert set(found) == {
        "digits/gcn-fp32-native-cpu",
        "digits/gcn-fp32-dgl-cpu",
        "digits/gcn-bf16-amp-native-cpu",
        "digits/gcn-bf16-amp-dgl-cpu",
        "reddit-0.001/gat-h1.1.1-bf16-amp-native-cpu",
    }
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'results' / 'mlflow.db'}")
    stored = {r.info.run_id: r for r in client.search_runs([client.get_experiment_by_name("ampgnn").experiment_id])}
    runs = [run for r in found.values() for run in r["runs"]]
    assert {run["mlflow_run_id"] for run in runs} == set(stored) and len(runs) == 9
    status = {name: {run["status"] for run in r["runs"]} for name, r in found.items()}
    assert status.pop("digits/gcn-bf16-amp-dgl-cpu") == {"not_run"}
    assert all(s == {"finished"} for s in status.values())
    for line in (
        "7 runs finished, 0 failed, 2 not run",
        "DGL ignores autocast",
        "synthetic stand-in",
        "report: results/report/index.html",
    ):
        assert line in output.split("Elapsed")[0][-2500:]


def test_the_report_says_what_is_synthetic_and_what_did_not_run(finished):
    folder, _ = finished
    for name in ("index.html", "report.md"):
        text = (folder / "results" / "report" / name).read_text()
        assert "synthetic stand-in for Reddit at scale 0.001" in text and "DGL ignores autocast on the CPU" in text
        for result in results(folder).values():
            for run in result["runs"]:
                assert run["status"] != "finished" or f"/runs/{run['mlflow_run_id']}" in text


def test_snakemake_sleeps_while_the_jobs_run(finished):
    """Its scheduler looks for jobs when one has ended, not all the time: the cores are for what is timed."""
    output = finished[1]
    assert 1 < output.count("Ready jobs:") <= output.count("Finished jobid:") + 1


def test_without_an_engine_the_report_says_so(finished, tmp_path):
    folder, output = finished
    words = "images: not built, no container engine (docker: Cannot connect; podman: Cannot connect)"
    assert words in output
    for name in ("index.html", "report.md"):
        text = (folder / "results" / "report" / name).read_text()
        assert words in text and "the host" in text
    (tmp_path / "results").mkdir()
    shutil.copytree(folder / "results" / "images", tmp_path / "results" / "images")
    code, output = snakemake(tmp_path, "images", "--cores", "1", config=TINY)
    assert code != 0 and f"error: {words}" in output
    code, output = snakemake(tmp_path, "--cores", "1", "--forcerun", "image", "--config", "runner=docker", config=TINY)
    assert code != 0 and f"error: {words}" in output and "Traceback" not in output


def test_with_runner_docker_each_stage_runs_in_its_image(tmp_path):
    code, output = snakemake(tmp_path, "-n", "-p", "--config", "runner=docker", config=TINY)
    assert code == 0, output
    commands = [line for line in output.splitlines() if line.startswith("Shell command:") and " -m ampgnn " in line]
    stages = [
        line for line in commands if "-m ampgnn image run --until $$ --until $PPID results/images/cpu.json " in line
    ]
    assert len(stages) == 9 and len(commands) == 10 and "image build cpu --engine auto" in output


def test_a_second_run_does_nothing(finished):
    folder, _ = finished
    code, output = snakemake(folder, "--cores", "1")
    assert code == 0 and "Nothing to be done" in output


def planned(folder, config) -> dict[str, int]:
    """The jobs that a dry run names, by rule."""
    code, output = snakemake(folder, "-n", config=config)
    assert code == 0, output
    lines = [line.split() for line in output.split("Job stats:")[1].splitlines()] if "Job stats:" in output else []
    found = {}
    for words in lines:
        if len(words) == 2 and words[1].isdigit():
            found[words[0]] = int(words[1])
        if words[:1] == ["total"]:
            break
    return found


def test_a_changed_key_reruns_what_depends_on_it(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished[0], folder, symlinks=True, ignore=shutil.ignore_patterns("mlartifacts"))
    assert planned(folder, TINY) == {}
    changed = json.loads(json.dumps(TINY))
    changed["matrix"][1]["epochs"] = 3
    assert planned(folder, changed) == {"all": 1, "configure": 1, "train": 1, "report": 1, "total": 4}
    changed = json.loads(json.dumps(TINY))
    changed["matrix"][0]["seeds"] = [0]
    assert planned(folder, changed) == {"all": 1, "configure": 4, "train": 4, "report": 1, "total": 10}


def test_a_killed_job_is_taken_up_by_the_next_run(tmp_path):
    """Both Snakemake and the training process are killed; the plain command goes on from the checkpoint."""
    config = json.loads(json.dumps(TINY))
    config["datasets"] = {"digits": None}
    config["matrix"] = [
        {"dataset": ["digits"], "model": ["gcn"], "precision": ["fp32"], "epochs": 800, "checkpoint_epochs": 10}
    ]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    command = [Path(sys.executable).parent / "snakemake", "-s", ROOT / "Snakefile", "--directory", tmp_path]
    command += ["--configfile", tmp_path / "config.yaml", "--cores", "1", "runs"]
    folder = tmp_path / "results/runs/digits/gcn-fp32-native-cpu"
    process = subprocess.Popen([str(c) for c in command], stderr=subprocess.DEVNULL, start_new_session=True)
    while not (folder / "seed0" / "checkpoint.safetensors").exists() and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)  # the whole job, its session
    process.wait()
    assert not (folder / "result.json").exists()
    code, output = snakemake(tmp_path, "--unlock")
    assert code == 0, output
    code, output = snakemake(tmp_path, "--cores", "1", "runs")
    assert code == 0, output
    assert "seed 0 goes on after epoch" in (folder / "train.log").read_text()
    assert len((folder / "seed0" / "metrics.jsonl").read_text().splitlines()) == 800


def test_graph_lint_and_snakemakes_own_report(finished):
    folder, _ = finished
    code, output = snakemake(folder, "--lint")
    assert code == 0, output
    code, output = snakemake(folder, "--dag")
    assert code == 0 and "digraph" in output
    code, output = snakemake(folder, "--report", "snakemake.html")
    assert code == 0 and (folder / "snakemake.html").stat().st_size > 100_000, output


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda c: c.update(tracking="x"), "config: unknown key 'tracking', allowed are threads"),
        (lambda c: c.update(engine="lxc"), "'lxc' is not one of ['auto', 'docker', 'podman', 'none']"),
        (lambda c: c.update(build_args={"tpu": {}}), "unknown key 'tpu', allowed are cpu, cuda"),
        (lambda c: c["matrix"][0].update(precision=["fp8"]), "'fp8' is not one of ['fp32', 'fp16', 'bf16']"),
        (lambda c: c["matrix"][0].update(dataset=["cora"]), "dataset 'cora' is not under datasets, allowed are digits"),
        (lambda c: c["matrix"][1].update(heads=[1, 1]), "gat has 3 layers, got 2 numbers of heads"),
    ],
)
def test_a_wrong_configuration_is_one_clear_message(tmp_path, change, words):
    config = json.loads(json.dumps(TINY))
    change(config)
    code, output = snakemake(tmp_path, "-n", config=config)
    assert code != 0 and words in output and "Traceback" not in output
    assert not (tmp_path / "results").exists()


def test_an_unavailable_dataset_is_recorded_or_fails(tmp_path):
    """No address of Citeseer answers here: the mirror is an empty folder and the proxy a closed port."""
    nowhere = {
        "AMPGNN_DATA_MIRROR": str(tmp_path),
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    config = json.loads(json.dumps(TINY))
    config["datasets"] = {"citeseer": None, "digits": None}
    config["matrix"] = [{"dataset": ["citeseer", "digits"], "model": ["gcn"], "precision": ["fp32"], "epochs": 2}]
    code, output = snakemake(tmp_path, "--cores", "2", config=config, **nowhere)
    assert code == 0, output
    found = results(tmp_path)
    assert found["citeseer/gcn-fp32-native-cpu"]["runs"][0]["status"] == "not_run"
    assert found["digits/gcn-fp32-native-cpu"]["runs"][0]["status"] == "finished"
    assert "1 x dataset unavailable: planetoid/ind.citeseer.x cannot be had" in output
    assert "planetoid/ind.citeseer.x cannot be had" in (tmp_path / "results" / "report" / "report.md").read_text()
    shutil.rmtree(tmp_path / "results" / "data")
    code, output = snakemake(tmp_path, "--cores", "2", "--config", "on_unavailable=fail", config=config, **nowhere)
    assert code != 0 and "error: planetoid/ind.citeseer.x cannot be had" in output
