"""Engines, tags, records and command lines, with programs in place of engines; `check_images.py` has the real ones."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from ampgnn import containers
from ampgnn.errors import UserError

DIGEST = "sha256:" + "ab" * 32
BUILDKIT = """\
#5 [wheels 2/6] COPY kernels kernels
#6 [wheels 3/6] RUN pip wheel ./kernels
#7 [runtime 2/4] RUN apt-get update
#6 ERROR: executor failed running [/bin/sh -c pip wheel ./kernels]: exit code: 1
------
 > [wheels 3/6] RUN pip wheel ./kernels:
------
executor failed running [/bin/sh -c pip wheel ./kernels]: exit code: 1
"""
NO_BASE = """\
#3 [internal] load metadata for docker.io/library/nowhere:1
#3 ERROR: pull access denied, repository does not exist
------
 > [internal] load metadata for docker.io/library/nowhere:1:
------
failed to solve with frontend dockerfile.v0: pull access denied, repository does not exist
"""
FAILED_RUN = """\
#6 [wheels 3/6] RUN pip wheel ./kernels
#7 [environment 2/2] RUN uv pip sync
#7 0.412 Resolved 80 packages
#7 0.719 error: no wheel of torch matches
#6 1.200 error: not of the step that failed
#7 0.720 For more information, try '--help'.
#7 ERROR: executor failed running [/bin/sh -c uv pip sync]: exit code: 2
------
 > [environment 2/2] RUN uv pip sync:
------
executor failed running [/bin/sh -c uv pip sync]: exit code: 2
"""
CLASSIC = """\
Step 3/20 : RUN apt-get update
 ---> Running in 0123
E: Unable to locate package tini
The command '/bin/sh -c apt-get update' returned a non-zero code: 100
"""
BUILDAH = """\
[1/5] STEP 3/7: RUN apt-get update
fatal: no network
Error: building at STEP "RUN apt-get update": while running runtime: exit status 100
"""
FULL = """\
#9 [environment 3/3] RUN uv pip sync
#9 4.0 error: failed to write: No space left on device (os error 28)
executor failed running [/bin/sh -c uv pip sync]: exit code: 2
"""


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Makes a program of an engine's name, that answers `info` and `version` and notes its calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cat", "git", "sh"):
        (folder / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(folder))  # no engine of the machine's own

    def make(name="docker", body="", info="exit 0"):
        script = f'#!/bin/sh\necho "$@" >> {folder}/{name}.calls\ncase "$1 $2" in\n"version "*|"info "*) {info};;\nesac\n{body}'
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)

    make.calls = lambda name="docker": (folder / f"{name}.calls").read_text().splitlines()
    return make


def test_without_an_engine_the_reason_names_each(engine):
    assert containers.find_engine() == (None, "no container engine (docker: not installed; podman: not installed)")
    assert containers.find_engine("none") == (None, "engine: none in the configuration")
    engine("docker", info="echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    engine("podman", info="echo 'dial unix: connect: permission denied' >&2; exit 1")
    found, reason = containers.find_engine()
    assert found is None and "docker: Cannot connect to the Docker daemon;" in reason
    assert f"podman: permission denied for user {os.getuid()}" in reason
    engine("podman")
    assert containers.find_engine() == ("podman", None)
    assert containers.find_engine("docker")[1] == "no container engine (docker: Cannot connect to the Docker daemon)"
    engine("docker")
    assert containers.find_engine() == ("docker", None)


def test_a_tag_follows_from_the_contents(tmp_path, monkeypatch):
    for name in ("ampgnn", "docker", "envs", "kernels"):
        ignore = shutil.ignore_patterns("__pycache__", "*.so", "build")
        shutil.copytree(containers.ROOT / name, tmp_path / name, ignore=ignore)
    for name in (".dockerignore", "LICENSE", "pyproject.toml"):
        shutil.copy(containers.ROOT / name, tmp_path)
    first = containers.image_tag("cpu")
    monkeypatch.setattr(containers, "ROOT", tmp_path)
    assert containers.image_tag("cpu") == first and first.startswith("ampgnn:cpu-")
    (tmp_path / "README.md").write_text("other")
    (tmp_path / "kernels" / "tests" / "conftest.py").write_text("other")
    (tmp_path / "ampgnn" / "__pycache__").mkdir()
    (tmp_path / "ampgnn" / "__pycache__" / "cli.pyc").write_text("other")
    assert containers.image_tag("cpu") == first
    seen = {first, containers.image_tag("cuda"), containers.image_tag("cpu", {"BASE_IMAGE": "other"})}
    for number, name in enumerate(("ampgnn/cli.py", "kernels/src/spmm.h", "envs/cpu.lock", "docker/cpu.Dockerfile")):
        with (tmp_path / name).open("a") as file:
            file.write("\n")
        seen.add(containers.image_tag("cpu"))
        assert len(seen) == 4 + number
    shutil.rmtree(tmp_path / "docker")
    with pytest.raises(UserError, match="from a checkout of the repository"):
        containers.image_tag("cpu")


def test_what_the_dockerfiles_copy_is_what_the_tag_covers():
    top = {str(file.relative_to(containers.ROOT)).split("/")[0] for file in containers._context()}
    assert top == {"LICENSE", "ampgnn", "docker", "envs", "kernels", "pyproject.toml"}
    for device in containers.DEVICES:
        text = (containers.ROOT / "docker" / f"{device}.Dockerfile").read_text()
        lines = [line.split() for line in text.splitlines() if line.startswith("COPY ") and "--from" not in line]
        named = {source.replace("${LOCK}", f"{device}.lock") for words in lines for source in words[1:-1]}
        covered = {str(file.relative_to(containers.ROOT)) for file in containers._context()}
        assert all(any(c == name or c.startswith(f"{name}/") for c in covered) for name in named)


def test_an_image_that_is_there_is_not_built_again(engine, tmp_path):
    engine("docker", f'case "$1 $2" in "image inspect") echo "{DIGEST} 1500000000";; "build "*) exit 1;; esac')
    record = containers.build("cpu", tmp_path / "images" / "cpu.json")
    assert record == json.loads((tmp_path / "images" / "cpu.json").read_text())
    assert (record["status"], record["digest"], record["engine"]) == ("built", DIGEST, "docker")
    assert not any(call.startswith("build") for call in engine.calls())
    assert containers.describe(record) == f"image cpu: {record['tag']}, {DIGEST[:19]}, 1.50 GB, docker"


@pytest.mark.parametrize(
    "name, output, words",
    [
        ("docker", BUILDKIT, "[wheels 3/6] RUN pip wheel ./kernels: executor failed running"),
        ("docker", NO_BASE, "[internal] load metadata for docker.io/library/nowhere:1: failed to solve"),
        ("docker", FAILED_RUN, "[environment 2/2] RUN uv pip sync: error: no wheel of torch matches;"),
        ("docker", CLASSIC, "Step 3/20 : RUN apt-get update: E: Unable to locate package tini;"),
        ("podman", BUILDAH, "STEP 3/7: RUN apt-get update: fatal: no network;"),
        ("docker", FULL, "[environment 3/3] RUN uv pip sync: no space left on device"),
    ],
)
def test_a_failed_build_names_image_step_and_log(engine, tmp_path, name, output, words):
    (tmp_path / "output").write_text(output)
    engine(name, f'case "$1 $2" in "image inspect") exit 1;; "build "*) cat {tmp_path}/output; exit 1;; esac')
    log = tmp_path / "logs" / "cpu.log"
    record = containers.build("cpu", tmp_path / "cpu.json", build_args={"BASE_IMAGE": "nowhere:1"}, log=log)
    said = containers.describe(record)
    assert record["status"] == "failed" and record["digest"] is None and "\n" not in said
    assert said.startswith(f"image cpu: build failed at {words}") and said.endswith(f"; log: {log}")
    assert log.read_text() == output
    call = next(call for call in engine.calls(name) if call.startswith("build "))
    assert "--build-arg BASE_IMAGE=nowhere:1" in call and f"--tag {record['tag']}" in call


def test_a_full_disk_under_the_log_is_one_line(engine, tmp_path):
    (tmp_path / "output").write_text(BUILDKIT)
    engine("docker", f'case "$1 $2" in "image inspect") exit 1;; "build "*) cat {tmp_path}/output;; esac')
    command = [sys.executable, "-m", "ampgnn", "image", "build", "cpu", "--out", "cpu.json", "--log", "/dev/full"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    said = "error: image cpu: build stopped, /dev/full cannot be written: No space left on device"
    assert (done.returncode, done.stderr.strip()) == (2, said) and not (tmp_path / "cpu.json").exists()


def test_the_command_line_of_a_stage(engine, tmp_path, monkeypatch):
    engine("docker", info="echo '[name=seccomp,profile=default]'; exit 0")
    work, store, mirror, cache = (tmp_path / name for name in ("work", "store", "mirror", "cache"))
    for folder in (work, store, mirror, cache):
        folder.mkdir()
    (work / "results").symlink_to(store)
    monkeypatch.chdir(work)
    for name in list(os.environ):
        if name.startswith(containers.PASSED_ON):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AMPGNN_DATA_MIRROR", "../mirror")
    monkeypatch.setenv("AMPGNN_CACHE", str(cache))
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    monkeypatch.setenv("OTHER", "not for stages")
    record = {"device": "cpu", "status": "built", "engine": "docker", "digest": DIGEST, "tag": "ampgnn:cpu-1"}
    words = containers.run_command(record, "name", ["train", "--out", "results/runs/x", "--threads", "2"])
    assert words[-6:] == [DIGEST, "train", "--out", "results/runs/x", "--threads", "2"]
    mounted = [w.split("target=")[1] for w in words if w.startswith("type=bind")]
    assert mounted == [str(work), str(store), str(mirror), str(cache)]
    assert words[words.index("--user") + 1] == f"{os.getuid()}:{os.getgid()}"
    assert f"AMPGNN_DATA_MIRROR={mirror}" in words and f"AMPGNN_IMAGE=ampgnn:cpu-1@{DIGEST}" in words
    assert "MLFLOW_TRACKING_PASSWORD" in words and "secret" not in " ".join(words) and "OTHER" not in words
    assert "--gpus" not in words and "--network" not in words and {"--rm", "--shm-size"} <= set(words)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    words = containers.run_command({**record, "device": "cuda"}, "name", ["doctor"])
    assert words[words.index("--gpus") + 1] == "all" and words[words.index("--network") + 1] == "host"


def test_what_a_dataset_record_points_to_is_mounted(tmp_path, monkeypatch):
    cache, elsewhere, work = (tmp_path / name for name in ("cache", "elsewhere", "work"))
    for folder in (cache, elsewhere, work):
        folder.mkdir()
    (elsewhere / "digits.json").write_text(json.dumps({"file": "../cache/digits/data.safetensors"}))
    monkeypatch.chdir(work)
    for name in ("MLFLOW_TRACKING_URI", "AMPGNN_DATA_MIRROR", "AMPGNN_CACHE"):
        monkeypatch.delenv(name, raising=False)
    stage = ["train", "--config", "run.yaml", "--data", "../elsewhere/digits.json", f"--out={tmp_path}/none"]
    assert set(containers._mounts(stage)) == {work, elsewhere, tmp_path}
    assert containers._mounts(stage[:-1]) == [work, elsewhere, cache]


def test_rootless_engines_map_the_user(engine):
    engine("docker", info="echo '[name=seccomp name=rootless]'; exit 0")
    engine("podman", info="echo true; exit 0")
    assert containers._user("docker") == ["--user", "0:0"]
    assert containers._user("podman") == ["--userns", "keep-id", "--user", f"{os.getuid()}:{os.getgid()}"]


def test_images_that_cannot_run_are_one_line(engine, tmp_path):
    path = tmp_path / "cpu.json"
    with pytest.raises(UserError, match="not an image's record"):
        containers.run(path, ["doctor"])
    containers.build("cpu", path)
    with pytest.raises(UserError, match="images: not built, no container engine"):
        containers.run(path, ["doctor"])
    with pytest.raises(UserError, match="images: not built, no container engine"):
        containers.require_built([path])
    record = {"device": "cpu", "status": "built", "engine": "docker", "digest": DIGEST, "tag": "ampgnn:cpu-1"}
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match="docker does not run ampgnn:cpu-1: not installed"):
        containers.run(path, ["doctor"])
    engine("docker", 'case "$1 $2" in "image inspect") exit 1;; esac')
    with pytest.raises(UserError, match="docker no longer has ampgnn:cpu-1: `snakemake --forcerun image`"):
        containers.run(path, ["doctor"])


def test_the_command(tmp_path):
    def ampgnn(*arguments):
        command = [sys.executable, "-m", "ampgnn", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    done = ampgnn("image", "build", "cpu", "--engine", "none", "--out", "cpu.json", "--on-failure", "record")
    assert done.returncode == 0 and done.stdout.strip() == "images: not built, engine: none in the configuration"
    done = ampgnn("image", "build", "cpu", "--engine", "none", "--out", "cpu.json")
    assert done.returncode == 2 and done.stderr.strip() == "error: images: not built, engine: none in the configuration"
    done = ampgnn("image", "build", "tpu", "--out", "cpu.json")
    assert done.returncode == 2 and "DEVICE must be one of cpu, cuda, got tpu" in done.stderr
    done = ampgnn("image", "run", "cpu.json", "train", "--config", "c.yaml")
    assert done.returncode == 2 and "error: cpu.json: images: not built" in done.stderr
