"""The command line as a user meets it: a process, its exit status, its last line."""

import subprocess
import sys

import pytest


def ampgnn(*arguments, cwd=None):
    return subprocess.run([sys.executable, "-m", "ampgnn", *arguments], capture_output=True, text=True, cwd=cwd)


@pytest.mark.parametrize(
    "text, words",
    [
        (
            "dataset: digits\nmodel: gcn\nprecision: fp32\nepochs: -3\n",
            "epochs: Input should be greater than or equal to 1, got -3",
        ),
        ("dataset: digits\nmodel: gcn\nprecision: fp32\nseed: 1\n", "unknown key 'seed'"),
        ("model: gcn\nprecision: fp32\n", "dataset is missing"),
        ("[", "not YAML"),
    ],
)
def test_bad_configurations_exit_with_2(tmp_path, digits_record, text, words):
    (tmp_path / "c.yaml").write_text(text)
    done = ampgnn("train", "--config", "c.yaml", "--data", str(digits_record), "--out", "out", cwd=tmp_path)
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and words in lines[0]


def test_bad_datasets_exit_with_2(tmp_path):
    done = ampgnn("data", "karate", "--out", "k.json", "--cache", ".", cwd=tmp_path)
    assert done.returncode == 2 and "unknown dataset 'karate'" in done.stderr and not (tmp_path / "k.json").exists()
    (tmp_path / "c.yaml").write_text("dataset: digits\nmodel: gcn\nprecision: fp32\n")
    done = ampgnn("train", "--config", "c.yaml", "--data", "none.json", "--out", "out", cwd=tmp_path)
    assert done.returncode == 2 and "none.json is not a dataset record" in done.stderr
    done = ampgnn("report", cwd=tmp_path)
    assert done.returncode == 2 and "no result.json to report on" in done.stderr


def test_doctor_says_what_runs(tmp_path):
    done = ampgnn("doctor", cwd=tmp_path)
    assert done.returncode == 0
    assert "Combinations" in done.stdout and "torch.cuda" in done.stdout and "float16" in done.stdout


def test_help_is_quick_to_import():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import ampgnn.cli, sys; print({'torch', 'dgl', 'mlflow', 'matplotlib'} & set(sys.modules))",
        ],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "set()"
