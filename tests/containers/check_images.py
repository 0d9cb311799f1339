"""The images for real: built, run by hand and by the pipeline, killed. Started by run.sh, not by a plain pytest."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient

from ampgnn import containers

pytestmark = pytest.mark.timeout(1800)  # builds, on a machine that may be busy
ROOT = Path(__file__).resolve().parents[2]
BASE = os.environ["AMPGNN_TEST_BASE"]
ARGUMENTS = {"BASE_IMAGE": BASE}
if "AMPGNN_TEST_TORCH_BACKEND" in os.environ:
    ARGUMENTS["TORCH_BACKEND"] = os.environ["AMPGNN_TEST_TORCH_BACKEND"]
DIGITS = {"dataset": ["digits"], "model": ["gcn"], "epochs": 4, "seeds": [0, 1]}
CONFIG = {
    "threads": 1,
    "engine": "docker",
    "build_args": {"cpu": ARGUMENTS},
    "datasets": {"digits": None, "reddit-0.001": {"name": "reddit", "scale": 0.001}},
    "matrix": [
        {**DIGITS, "precision": ["fp32", "fp16"]},
        {**DIGITS, "precision": ["bf16"], "mode": ["pure"]},
        {**DIGITS, "precision": ["fp32"], "backend": ["dgl"]},
        {**DIGITS, "precision": ["fp32"], "device": ["cuda"], "seeds": [0]},
        {"dataset": ["reddit-0.001"], "model": ["gat"], "precision": ["bf16"], "hidden": 8, "epochs": 3},
    ],
}
SMALL = {**CONFIG, "matrix": [{**DIGITS, "precision": ["fp32"], "epochs": 2, "seeds": [0]}]}
SMALL_RUN = Path("results", "runs", "digits", "gcn-fp32-native-cpu")
LONG = {**CONFIG, "matrix": [{**DIGITS, "precision": ["fp32"], "epochs": 1_000_000, "seeds": [0]}]}

# In place of the official image: the same variables, folder of data and start (a first server, on a socket alone, sets
# up an empty volume), with Debian's PostgreSQL.
POSTGRES = """\
ARG BASE
FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends postgresql && mkdir /var/lib/postgresql/data \\
 && chown postgres /var/lib/postgresql/data && ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/
USER postgres
ENV PGDATA=/var/lib/postgresql/data
CMD test -s $PGDATA/PG_VERSION || { \\
      printf %s "$POSTGRES_PASSWORD" >/tmp/password \\
      && initdb --username "$POSTGRES_USER" --pwfile /tmp/password --auth-host scram-sha-256 \\
      && echo "host all all all scram-sha-256" >>$PGDATA/pg_hba.conf \\
      && pg_ctl start --wait --options "-c listen_addresses=''" && createdb --username "$POSTGRES_USER" "$POSTGRES_DB" \\
      && sleep 5 && pg_ctl stop; } && exec postgres -c "listen_addresses=*"
"""


def command(folder, *arguments, config=CONFIG):
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    words = [sys.executable, "-m", "snakemake", "-s", ROOT / "Snakefile", "--directory", folder, "--cores", "2"]
    return [str(word) for word in (*words, *arguments, "--configfile", folder / "config.yaml")]


def snakemake(folder, *arguments, config=CONFIG):
    done = subprocess.run(
        command(folder, *arguments, config=config), capture_output=True, text=True, cwd=folder, timeout=1700
    )
    return done.returncode, done.stdout + done.stderr


def docker(*arguments):
    return subprocess.run(["docker", *map(str, arguments)], capture_output=True, text=True, timeout=1700)


def inside(image, script, *options):
    """The output of a shell script in an image."""
    done = docker("run", "--rm", *options, "--entrypoint", "sh", image, "-c", script)
    return done.stdout + done.stderr


def running():
    return docker("ps", "--quiet", "--filter", "name=ampgnn-").stdout.split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("docker")


@pytest.fixture(scope="module")
def image(folder):
    """The record of the CPU image, built by `snakemake images`."""
    code, output = snakemake(folder, "images")
    log = folder / "results" / "logs" / "images" / "cpu.log"
    assert code == 0, output + (log.read_text()[-3000:] if log.exists() else "")
    record = containers.read_record(folder / "results" / "images" / "cpu.json")
    yield record
    docker("image", "rm", "--force", record["digest"])


@pytest.fixture(scope="module")
def finished(folder, image):
    code, output = snakemake(folder, "--config", "runner=docker")
    assert code == 0, output
    return output


def test_the_image_is_small_and_holds_no_tools(image):
    assert image["status"] == "built" and image["tag"].startswith("ampgnn:cpu-")
    print(
        f"\n{image['tag']}: {image['size_bytes'] / 1e9:.2f} GB on a base of {containers._inspect('docker', BASE)[1] / 1e9:.2f}"
    )
    assert image["size_bytes"] < 2e9
    found = inside(image["digest"], "for t in gcc g++ cc cmake ninja uv; do command -v $t; done", "--user", "0:0")
    assert found == ""
    folders = "/var/lib/apt/lists /var/cache/apt/archives /root/.cache /tmp /src"
    left = inside(image["digest"], f"find {folders} -type f ! -name lock 2>/dev/null", "--user", "0:0")
    assert left == ""


def test_the_image_says_what_it_is(image):
    about = json.loads(docker("image", "inspect", image["digest"]).stdout)[0]["Config"]
    labels = about["Labels"]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    assert labels["org.opencontainers.image.revision"] == commit == image["git_commit"]
    assert labels["org.opencontainers.image.version"] == "0.1.0" and labels["ampgnn.torch"] == "2.13.0"
    assert about["User"] == "1000:1000" and about["Entrypoint"][0] == "tini"
    assert f"AMPGNN_IMAGE={image['tag']}" in about["Env"] and f"AMPGNN_GIT_COMMIT={commit}" in about["Env"]


def test_the_code_is_read_only(image):
    where = "$(python -c 'import ampgnn; print(ampgnn.__path__[0])')"
    assert inside(image["digest"], "id -u").strip() == "1000"
    assert "Permission denied" in inside(image["digest"], f"touch {where}/x")


def test_what_is_built_is_not_built_again(folder, image):
    code, output = snakemake(folder, "results/images/cpu.json")
    assert code == 0 and "Nothing to be done" in output
    before = docker("images", "--quiet", "--no-trunc", "ampgnn").stdout
    start = time.monotonic()
    record = containers.build("cpu", folder / "again.json", "docker", ARGUMENTS)
    assert record["digest"] == image["digest"] and not (folder / "again.log").exists()
    assert docker("images", "--quiet", "--no-trunc", "ampgnn").stdout == before
    print(f"{time.monotonic() - start:.1f} s")


def test_single_stages_by_hand_as_any_user(image, tmp_path):
    """The README's commands, as a user who is not in the image."""
    os.chown(tmp_path, 1234, 1234)
    tmp_path.chmod(0o755)
    (tmp_path / "run.yaml").write_text("dataset: digits\nmodel: gcn\nprecision: bf16\nepochs: 3\n")
    options = ["--rm", "--user", "1234:1234", "--volume", f"{tmp_path}:{tmp_path}", "--workdir", tmp_path]
    for stage in (
        ["doctor"],
        ["data", "digits", "--out", "results/data/digits.json", "--cache", "results/cache"],
        ["train", "--config", "run.yaml", "--data", "results/data/digits.json", "--out", "results/runs/x"],
        ["report"],
    ):
        done = docker("run", *options, image["tag"], *stage)
        assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "results" / "runs" / "x" / "result.json").read_text())
    assert result["runs"][0]["status"] == "finished" and result["environment"]["image"] == image["tag"]
    assert result["environment"]["git_commit"] == image["git_commit"]
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in (tmp_path / "results").rglob("*")}
    assert owners == {(1234, 1234)}
    assert (tmp_path / "results" / "report" / "index.html").is_file()


def test_a_folder_of_someone_else_is_one_clear_line(image, tmp_path):
    tmp_path.chmod(0o755)
    options = ["--rm", "--user", "1234:1234", "--volume", f"{tmp_path}:{tmp_path}", "--workdir", tmp_path]
    done = docker("run", *options, image["tag"], "data", "digits", "--out", "results/digits.json", "--cache", "cache")
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2 and len(lines) == 1 and lines[0].startswith("error: ") and "1234" in lines[0]


def test_the_wrapper_gives_files_to_the_caller(folder, image, finished, tmp_path, monkeypatch):
    os.chown(tmp_path, 1234, 1234)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    monkeypatch.setattr(os, "getgid", lambda: 1234)
    words = containers.run_command(image, "ampgnn-test", ["data", "digits", "--out", "d.json", "--cache", "cache"])
    subprocess.run(words, check=True)
    assert (tmp_path / "d.json").stat().st_uid == (tmp_path / "cache").stat().st_uid == 1234


def values(run: Path):
    """The lines of a seed's metrics without what is measured of the machine."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("epoch_seconds", "peak_rss_bytes")} for row in rows]


def test_image_and_host_give_the_same_bits(folder, finished, tmp_path):
    code, output = snakemake(tmp_path, "runs", "--config", "runner=host", "engine=none")
    assert code == 0, output
    seeds = sorted(path.relative_to(tmp_path) for path in tmp_path.glob("results/runs/*/*/seed*"))
    assert len(seeds) == 9
    for seed in seeds:
        assert values(tmp_path / seed) == values(folder / seed), seed
        assert (tmp_path / seed / "model.safetensors").read_bytes() == (
            folder / seed / "model.safetensors"
        ).read_bytes()


def test_the_pipeline_ran_in_the_image_and_says_so(folder, image, finished):
    assert "9 runs finished, 0 failed, 1 not run" in finished and f"image cpu: {image['tag']}" in finished
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'results' / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("ampgnn").experiment_id])
    assert len(runs) == 10
    assert {run.data.tags["ampgnn.image"] for run in runs} == {f"{image['tag']}@{image['digest']}"}
    assert {run.data.tags["mlflow.source.git.commit"] for run in runs} == {image["git_commit"]}
    for run in runs:
        assert Path(run.info.artifact_uri).is_dir()  # the same path inside and outside
    report = (folder / "results" / "report" / "report.md").read_text()
    assert f"ran in: {image['tag']}@{image['digest']}" in report and f"image cpu: {image['tag']}" in report
    uids = {path.stat().st_uid for path in (folder / "results").rglob("*")}
    assert uids == {os.getuid()}
    assert running() == []


def test_a_second_run_in_the_image_does_nothing(folder, finished):
    code, output = snakemake(folder, "--config", "runner=docker")
    assert code == 0 and "Nothing to be done" in output


def wait_for(condition, seconds=400):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)


@pytest.fixture
def store(folder, finished, monkeypatch):
    """The store that is there already, outside the working directory."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'results' / 'mlflow.db'}")


@pytest.fixture
def start():
    """Starts a process that, whatever comes of the test, does not outlive it, nor do containers."""
    started = []

    def popen(words, **options):
        started.append(subprocess.Popen(words, start_new_session=True, **options))
        return started[-1]

    yield popen
    for process in started:
        process.kill()
        process.wait()
    for container in running():
        docker("rm", "--force", container)


def test_the_container_ends_with_its_process(folder, store, start, tmp_path):
    record, data = folder / "results" / "images" / "cpu.json", folder / "results" / "data" / "digits.json"
    (tmp_path / "long.yaml").write_text("dataset: digits\nmodel: gcn\nprecision: fp32\nepochs: 1000000\n")
    processes = {}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        stage = ["train", "--config", "long.yaml", "--data", data, "--out", number.name, "--threads", "1"]
        words = [sys.executable, "-m", "ampgnn", "image", "run", record, *stage]
        processes[number] = start([str(word) for word in words], cwd=tmp_path, stdout=subprocess.DEVNULL)
    wait_for(lambda: all((tmp_path / number.name / "train.log").exists() for number in processes))
    assert len(running()) == 3
    for number, process in processes.items():
        process.send_signal(number)
        assert process.wait(120) in (128 + number, -number)
    wait_for(lambda: docker("ps", "--all", "--quiet", "--filter", "name=ampgnn-").stdout == "")


def test_killed_jobs_stop_their_containers(folder, store, start, tmp_path):
    processes, logs = {}, {}
    for how in ("interrupted", "shell-killed", "snakemake-killed"):
        work = tmp_path / how
        shutil.copytree(folder / "results" / "images", work / "results" / "images")
        logs[how] = work / SMALL_RUN / "train.log"
        words = command(work, "--config", "runner=docker", "--nolock", config=LONG)
        with (work / "output").open("w") as output:
            processes[how] = start(
                words, cwd=work, stdout=output, stderr=subprocess.STDOUT,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )  # fmt: skip

    def ended():
        return [how for how, process in processes.items() if process.poll() is not None]

    wait_for(lambda: all(log.exists() for log in logs.values()) or ended())
    assert not ended(), [(tmp_path / how / "output").read_text() for how in ended()]
    assert len(running()) == 3
    os.killpg(processes["interrupted"].pid, signal.SIGINT)
    shells = ["pgrep", "--parent", str(processes["shell-killed"].pid), "bash"]
    for pid in subprocess.run(shells, capture_output=True, text=True).stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    processes["snakemake-killed"].kill()
    wait_for(lambda: running() == [])
    processes["shell-killed"].terminate()
    for process in processes.values():
        process.wait(120)
    assert docker("ps", "--all", "--quiet", "--filter", "name=ampgnn-").stdout == ""


def test_a_failed_build_costs_no_result(tmp_path):
    """No base image: recorded, the host's environment goes on; with runner=docker or `snakemake images` an error."""
    nowhere = f"nowhere.invalid/{uuid.uuid4().hex}:1"
    config = {**SMALL, "build_args": {"cpu": {**ARGUMENTS, "BASE_IMAGE": nowhere}}}
    code, output = snakemake(tmp_path, config=config)
    assert code == 0, output
    words = "image cpu: build failed at [internal] load metadata for " + nowhere
    line = next(line for line in output.splitlines() if line.strip().startswith("image cpu: build failed"))
    assert words in line and "; log: results/logs/images/cpu.log" in line
    assert nowhere in (tmp_path / "results" / "logs" / "images" / "cpu.log").read_text()
    assert words in (tmp_path / "results" / "report" / "report.md").read_text()
    code, output = snakemake(tmp_path, "images", config=config)
    assert code != 0 and f"error: {words}" in output
    (tmp_path / "results" / "images" / "cpu.json").unlink()
    code, output = snakemake(tmp_path, "--config", "runner=docker", config=config)
    assert code != 0 and f"error: {words}" in output and "Traceback" not in output
    assert (tmp_path / SMALL_RUN / "result.json").exists()


@pytest.mark.parametrize(
    "argument, words",
    [
        ({"LOCK": "none.lock"}, ("COPY envs/none.lock", "not found")),
        ({"TORCH_BACKEND": "none"}, ("RUN uv venv", ": error: invalid value 'none' for '--torch-backend")),
    ],
)
def test_a_failing_step_is_named(image, tmp_path, argument, words):
    record = containers.build("cpu", tmp_path / "cpu.json", "docker", ARGUMENTS | argument)
    assert record["status"] == "failed" and all(word in record["reason"] for word in words), record["reason"]


def as_user(words, groups="--clear-groups"):
    """Runs a program as user 1234; who may read everything, as this Python may lie in a home closed to others."""
    rights = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    words = ["setpriv", "--reuid=1234", "--regid=1234", groups, *rights, *words]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_a_caller_without_roots_rights(image, tmp_path, monkeypatch):
    """Refused by the engine's socket: said, and all goes on on the host. In the socket's group: the results are his."""
    os.chown(tmp_path, 1234, 1234)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "someone")  # the id has no name on this machine, and Snakemake asks for it
    on_host, in_image = command(tmp_path, config=SMALL), command(tmp_path, "--config", "runner=docker", config=SMALL)
    code, output = as_user(on_host)
    said = "images: not built, no container engine (docker: permission denied for user 1234)"
    assert code == 0 and said in output, output
    assert said in (tmp_path / "results" / "report" / "report.md").read_text()
    code, output = as_user(in_image)
    assert code != 0 and f"error: {said}" in output and "Traceback" not in output
    before = values(tmp_path / SMALL_RUN / "seed0")
    group = os.stat(os.environ.get("DOCKER_HOST", "/var/run/docker.sock").removeprefix("unix://")).st_gid
    code, output = as_user(in_image, f"--groups={group}")
    assert code == 0, output
    result = json.loads((tmp_path / SMALL_RUN / "result.json").read_text())
    assert result["environment"]["image"] == f"{image['tag']}@{image['digest']}"
    assert values(tmp_path / SMALL_RUN / "seed0") == before
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in (tmp_path / "results").rglob("*")}
    assert owners == {(1234, 1234)}


@pytest.fixture
def podman(tmp_path, monkeypatch):
    """Podman with a storage of its own under tmp_path, which may be a small disk; has an image of Docker's."""

    def use(name, megabytes=None):
        store = tmp_path / "podman"
        store.mkdir()
        if megabytes is not None:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", store], check=True)
        text = f'[storage]\ndriver = "overlay"\ngraphroot = "{store}/graph"\nrunroot = "{store}/run"\n'
        (tmp_path / "storage.conf").write_text(text)
        monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))
        save = subprocess.Popen(["docker", "save", name], stdout=subprocess.PIPE)
        subprocess.run(["podman", "load", "--quiet"], stdin=save.stdout, check=True)
        assert save.wait() == 0

    yield use
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in sorted((m for m in mounts if Path(m).is_relative_to(tmp_path)), reverse=True):
        subprocess.run(["umount", place], check=True)


def test_podman(podman, folder, image, finished, start, tmp_path):
    """The image that Docker built is found, run by the pipeline to the same bits, ended with its process."""
    podman(image["tag"])
    config = {**SMALL, "engine": "podman", "matrix": [{**DIGITS, "precision": ["fp16"]}]}
    code, output = snakemake(tmp_path, "--config", "runner=docker", config=config)
    assert code == 0, output
    record = containers.read_record(tmp_path / "results" / "images" / "cpu.json")
    assert record["engine"] == "podman" and record["digest"] == image["digest"]
    runs = sorted(path.relative_to(tmp_path) for path in tmp_path.glob("results/runs/*/*/seed*"))
    assert len(runs) == 2 and all(values(tmp_path / run) == values(folder / run) for run in runs)
    result = json.loads((tmp_path / runs[0].parent / "result.json").read_text())
    assert result["environment"]["image"] == f"{record['tag']}@{record['digest']}"

    (tmp_path / "long.yaml").write_text("dataset: digits\nmodel: gcn\nprecision: fp32\nepochs: 1000000\n")
    stage = ["train", "--config", "long.yaml", "--data", "results/data/digits.json", "--out", "out", "--threads", "1"]
    words = [sys.executable, "-m", "ampgnn", "image", "run", "results/images/cpu.json", *stage]
    process = start(words, cwd=tmp_path, stdout=subprocess.DEVNULL)
    wait_for(lambda: (tmp_path / "out" / "train.log").exists())
    process.kill()
    there = ["podman", "ps", "--all", "--quiet"]
    wait_for(lambda: subprocess.run(there, capture_output=True, text=True, check=True).stdout == "")


def test_a_full_disk_costs_no_result(podman, tmp_path):
    """The engine's: the step and the log are named, all goes on on the host."""
    podman(BASE, megabytes=600)
    code, output = snakemake(tmp_path, config={**SMALL, "engine": "podman"})
    assert code == 0, output
    line = next(line for line in output.splitlines() if line.strip().startswith("image cpu: build failed at STEP"))
    assert line.endswith(": no space left on device; log: results/logs/images/cpu.log"), line
    assert line.strip() in (tmp_path / "results" / "report" / "report.md").read_text()
    assert json.loads((tmp_path / SMALL_RUN / "result.json").read_text())["runs"][0]["status"] == "finished"


APPTAINER = """\
#!/bin/bash
test "$1" = --version && exec echo apptainer version 1.3.6
echo "$@" >>{calls}
exec docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:$PWD" --workdir "$PWD" --entrypoint "" {image} "${{@: -3}}"
"""


def test_sdm_apptainer(image, tmp_path, monkeypatch):
    """Snakemake's own `container:`, with Docker in place of apptainer; without one an error that says so."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "docker", "id"):
        (programs / name).symlink_to(shutil.which(name))
    (tmp_path / "ampgnn.sif").touch()
    words = command(tmp_path, "--sdm", "apptainer", config=SMALL)
    monkeypatch.setenv("PATH", str(programs))
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode != 0 and "The apptainer or singularity command has to be available" in done.stderr
    monkeypatch.undo()
    (programs / "apptainer").write_text(APPTAINER.format(calls=tmp_path / "calls", image=image["tag"]))
    (programs / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    calls = [line for line in (tmp_path / "calls").read_text().splitlines() if line.startswith("exec ")]
    assert all(call.startswith(f"exec --home {tmp_path}") and " ampgnn.sif bash -c " in call for call in calls)
    stages = {word for call in calls for word in ("data", "track-init", "train", "report") if f"ampgnn {word} " in call}
    assert len(stages) == 4 and len(calls) == 5, calls
    result = json.loads((tmp_path / SMALL_RUN / "result.json").read_text())
    assert result["environment"]["image"] == image["tag"] and result["runs"][0]["status"] == "finished"


def test_the_cuda_image_on_the_stand_in(image, tmp_path):
    """All its stages, with the CPU's packages in place of CUDA's: what it needs of a GPU's machine is not here."""
    arguments = {**ARGUMENTS, "LOCK": "cpu.lock"}
    record = containers.build("cuda", tmp_path / "cuda.json", "docker", arguments)
    assert record["status"] == "built", Path(record["log"]).read_text()[-3000:]
    done = docker("run", "--rm", record["tag"], "doctor")
    assert done.returncode == 0 and "no CUDA device" in done.stdout
    assert inside(record["tag"], "echo $NVIDIA_VISIBLE_DEVICES; ls -ld /opt/triton").startswith("all\ndrwxrwxrwt")
    done = subprocess.run(containers.run_command(record, "ampgnn-gpu", ["doctor"]), capture_output=True, text=True)
    assert done.returncode != 0 and "device driver" in done.stderr  # --gpus without a GPU
    docker("image", "rm", "--force", record["digest"])


def fetch(url, **headers):
    """Status and text of an answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.read().decode()


@pytest.fixture
def compose(image, tmp_path, monkeypatch):
    """Runs docker-compose with docker/compose.yaml, on a stand-in for PostgreSQL's image; the port of MLflow."""
    project = f"ampgnntest{os.getpid()}"
    (tmp_path / "Dockerfile").write_text(POSTGRES)
    done = docker("build", "--quiet", "--build-arg", f"BASE={BASE}", "--tag", project, tmp_path)
    assert done.returncode == 0, done.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"POSTGRES_PASSWORD": "p@ss:w/rd $1%", "POSTGRES_IMAGE": project}
    settings |= {"AMPGNN_IMAGE": image["tag"], "MLFLOW_PORT": str(port)}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    def run(*arguments):
        words = ["docker-compose", "--project-name", project, "--file", ROOT / "docker" / "compose.yaml", *arguments]
        return subprocess.run([str(word) for word in words], capture_output=True, text=True)

    yield run, port
    print(run("logs", "--tail", "30").stdout)
    done = run("down", "--volumes")
    docker("image", "rm", "--force", project)
    assert done.returncode == 0, done.stderr
    assert docker("volume", "ls", "--quiet", "--filter", f"name={project}").stdout == ""


def test_mlflow_on_postgresql_keeps_its_runs(compose, folder, finished, tmp_path, monkeypatch):
    """docker/compose.yaml: up, a run of a stage in the image, down and up again."""
    run, port = compose
    server = f"http://127.0.0.1:{port}"

    def up():
        done = run("up", "--detach")
        assert done.returncode == 0, done.stdout + done.stderr
        names = {name: run("ps", "--quiet", name).stdout.strip() for name in ("mlflow", "database")}
        health = "{{.State.Health.Status}}"
        wait_for(lambda: docker("inspect", "--format", health, names["mlflow"]).stdout.strip() == "healthy")
        for name in names.values():
            assert docker("inspect", "--format", "{{.RestartCount}}", name).stdout.strip() == "0"
        return names

    names = up()
    assert docker("port", names["mlflow"]).stdout.strip() == f"5000/tcp -> 127.0.0.1:{port}"
    assert docker("port", names["database"]).stdout == ""
    with pytest.raises(ConnectionRefusedError):  # another address of this machine, which 0.0.0.0 would take in
        socket.create_connection(("127.0.0.2", port), timeout=10)
    code, page = fetch(server)
    assert code == 200 and "<title>MLflow</title>" in page
    assert fetch(server, Host="elsewhere.example")[0] == 403

    (tmp_path / "run.yaml").write_text("dataset: digits\nmodel: gcn\nprecision: fp32\nepochs: 2\n")
    record, data = folder / "results" / "images" / "cpu.json", folder / "results" / "data" / "digits.json"
    stage = ["train", "--config", "run.yaml", "--data", data, "--out", "out"]
    words = [sys.executable, "-m", "ampgnn", "image", "run", record, *stage]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "120")  # the machine may be busy
    done = subprocess.run([str(word) for word in words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["tracking"]["reachable"], result["tracking"]
    assert run("down").returncode == 0
    names = up()

    client, identity = MlflowClient(tracking_uri=server), result["runs"][0]["mlflow_run_id"]
    rows = [json.loads(line) for line in (tmp_path / "out" / "seed0" / "metrics.jsonl").read_text().splitlines()]
    logged = {metric.step: metric.value for metric in client.get_metric_history(identity, "train/loss")}
    assert logged == {row["step"]: row["train/loss"] for row in rows} and len(logged) == 2
    about = client.get_run(identity)
    assert about.info.status == "FINISHED" and about.data.params["precision"] == "fp32"
    assert about.data.tags["ampgnn.image"] == result["environment"]["image"]
    kept = Path(client.download_artifacts(identity, "metrics.jsonl", str(tmp_path)))
    assert kept.read_bytes() == (tmp_path / "out" / "seed0" / "metrics.jsonl").read_bytes()
