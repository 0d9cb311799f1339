"""Container engines and the images of the pipeline's stages: found, built, described, run.

An image is named by its contents: the tag is a digest of the Dockerfile, the files that may enter the build
(``.dockerignore``) and the build arguments, so an image that is there is never built again. Its record, a JSON file,
says what came of it; stages run by it. Imports nothing heavy: it runs before each stage.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from .errors import UserError
from .files import write_json
from .git import commit_and_dirty

ROOT = Path(__file__).resolve().parent.parent
DEVICES = ("cpu", "cuda")
ENGINES = ("docker", "podman")
_PROBE = {"docker": ("version", "--format", "{{.Server.Version}}"), "podman": ("info",)}  # fail if it cannot be used
SHARED_MEMORY = "2g"  # the engines' own 64 MB are too little for a DataLoader's workers
# What a stage in an image sees of the caller's environment, beside what `run` sets.
PASSED_ON = ("AMPGNN_", "MLFLOW_", "OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "CUDA_VISIBLE_DEVICES", "TORCH_", "TQDM_")
PASSED_ON += ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


def find_engine(wanted: str = "auto") -> tuple[str | None, str | None]:
    """The engine to use and None, or None and the reason why there is none.

    Args:
        wanted: "docker", "podman", "auto" for the first that answers, or "none".
    """
    if wanted == "none":
        return None, "engine: none in the configuration"
    problems = []
    for name in ENGINES if wanted == "auto" else (wanted,):
        problem = engine_problem(name)
        if problem is None:
            return name, None
        problems.append(f"{name}: {problem}")
    return None, f"no container engine ({'; '.join(problems)})"


def engine_problem(name: str) -> str | None:
    """None if the engine answers, else why not."""
    if shutil.which(name) is None:
        return "not installed"
    try:
        answer = subprocess.run([name, *_PROBE[name]], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not answer ({type(error).__name__})"
    if answer.returncode == 0:
        return None
    if "permission denied" in answer.stderr.lower():
        return f"permission denied for user {os.getuid()}"
    return _last_line(answer.stderr) or f"exit status {answer.returncode}"


def has_gpu() -> bool:
    """Whether an NVIDIA driver runs on this machine."""
    return Path("/dev/nvidiactl").exists()


def image_tag(device: str, build_args: dict[str, str] | None = None) -> str:
    """``ampgnn:cpu-0123456789ab``, by the contents of everything that goes into the image.

    Raises:
        UserError: ampgnn is not installed from a checkout of the repository.
    """
    digest = hashlib.sha256(_dockerfile(device).read_bytes())
    for file in _context():
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    digest.update(json.dumps(build_args or {}, sort_keys=True).encode())
    return f"ampgnn:{device}-{digest.hexdigest()[:12]}"


def environment_digest(device: str) -> str:
    """Digest of the image's Dockerfile and pinned packages: what its results depend on beside the sources."""
    files = [_dockerfile(device), *sorted((ROOT / "envs").glob("*.lock"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _dockerfile(device: str) -> Path:
    file = ROOT / "docker" / f"{device}.Dockerfile"
    if not file.is_file():
        raise UserError(f"images are built from a checkout of the repository: no {file}")
    return file


def _context() -> list[Path]:
    """The files that `.dockerignore` lets into the build."""
    lines = (ROOT / ".dockerignore").read_text().split("\n")
    kept = [line[1:] for line in lines if line.startswith("!")]
    dropped = [line.removeprefix("**/") for line in lines if (line and line[0] not in "!#*") or line.startswith("**/")]
    found = []
    for top in (path for pattern in kept for path in ROOT.glob(pattern)):
        files = (path for path in top.rglob("*") if path.is_file()) if top.is_dir() else (top,)
        for file in files:
            inside = file.relative_to(ROOT)
            if not any(part.match(pattern) for part in (inside, *inside.parents) for pattern in dropped):
                found.append(file)
    return sorted(found)


def build(
    device: str, out: Path, engine: str = "auto", build_args: dict[str, str] | None = None, log: Path | None = None
) -> dict:
    """Builds the image, unless it is there already, and writes its record to ``out``, which is returned.

    The record: "device"; "status", one of "built", "not built" (no engine) and "failed"; "reason"; "engine"; "tag";
    "digest", the image's id; "size_bytes"; "git_commit"; "log".

    Raises:
        UserError: ampgnn is not installed from a checkout of the repository, or the log cannot be written.
    """
    tag = image_tag(device, build_args)
    log = Path(log or Path(out).with_suffix(".log"))
    commit, dirty = commit_and_dirty()
    record = {"device": device, "status": "not built", "reason": None, "engine": None, "tag": tag}
    record |= {"digest": None, "size_bytes": None, "git_commit": commit, "log": str(log)}
    record["engine"], record["reason"] = find_engine(engine)
    if record["engine"] is not None:
        about = {"GIT_COMMIT": commit or "", "GIT_DIRTY": "" if dirty is None else str(dirty), "IMAGE_TAG": tag}
        found = _inspect(record["engine"], tag)
        if found is None:
            record["reason"] = _build(record["engine"], device, tag, (build_args or {}) | about, log)
            found = None if record["reason"] else _inspect(record["engine"], tag)
        if found is None:
            record["status"] = "failed"
        else:
            subprocess.run([record["engine"], "tag", tag, f"ampgnn:{device}"], check=True)
            record |= {"status": "built", "digest": found[0], "size_bytes": found[1]}
    write_json(Path(out), record)
    return record


def _inspect(engine: str, image: str) -> tuple[str, int] | None:
    """Id and size of an image, if the engine has it."""
    command = [engine, "image", "inspect", "--format", "{{.Id}} {{.Size}}", image]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode != 0:
        return None
    digest, size = answer.stdout.split()
    return f"sha256:{digest.removeprefix('sha256:')}", int(size)


def _build(engine: str, device: str, tag: str, arguments: dict[str, str], log: Path) -> str | None:
    """Builds with all output to ``log``, the steps' names to the terminal; what went wrong, if it did."""
    command = [engine, "build", "--file", str(_dockerfile(device)), "--tag", tag]
    command += [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    environment = dict(os.environ)
    if engine == "docker":
        buildkit = _has_buildkit()
        environment["DOCKER_BUILDKIT"] = str(int(buildkit))
        command += ["--progress", "plain"] if buildkit else []
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"image {device}: {engine} builds {tag}; log: {log}", flush=True)
    lines, steps = [], set()
    process = subprocess.Popen(
        [*command, str(ROOT)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    try:
        with process, log.open("w", buffering=1) as file:
            for line in process.stdout:
                file.write(line)
                lines.append(line.rstrip())
                step = _STEP.match(line)
                if step and step["step"] not in steps:
                    steps.add(step["step"])
                    print(f"image {device}: {step['step'][:110]}", flush=True)
    except OSError as error:
        raise UserError(f"image {device}: build stopped, {log} cannot be written: {error.strerror}") from None
    if process.returncode == 0:
        return None
    return f"build failed at {_failed_step(lines)}: {_cause(lines)}; log: {log}"


def _has_buildkit() -> bool:
    """Docker's client up to 22 has BuildKit inside, later ones in the buildx plugin; without it the classic builder."""
    version = subprocess.run(["docker", "version", "--format", "{{.Client.Version}}"], capture_output=True, text=True)
    major = version.stdout.split(".")[0]
    if major.isdigit() and int(major) < 23:
        return True
    return subprocess.run(["docker", "buildx", "version"], capture_output=True).returncode == 0


# A step's heading as BuildKit ("#7 [wheels 3/8] RUN"), the classic builder ("Step 3/8 : RUN") and buildah write it.
_STEP = re.compile(r"(#\d+ |\[\d+/\d+\] )?(?P<step>\[.+? +\d+/\d+\] .+|Step \d+/\d+ : .+|STEP \d+/\d+: .+)")


def _failed_step(lines: list[str]) -> str:
    """BuildKit quotes the step that failed, after the output of others; elsewhere it is the last one."""
    quoted = [line.strip(" >:") for line in lines if line.startswith(" > ")]
    named = [step["step"] for step in map(_STEP.match, lines) if step]
    return (quoted or named or ["the start"])[-1][:110]


def _cause(lines: list[str]) -> str:
    """What the failed step called an error, else the engine's last word."""
    text = "\n".join(lines)
    if "no space left on device" in text.lower():
        return "no space left on device"
    failed = re.search(r"^(#\d+) ERROR: ", text, re.MULTILINE)  # BuildKit's, whose steps run side by side
    if failed:
        output = re.findall(rf"^{failed[1]} \d+\.\d+ (.*)", text, re.MULTILINE)
    else:
        output = lines[max((i for i, line in enumerate(lines) if _STEP.match(line)), default=-1) + 1 : -1]
    errors = [line for line in output if re.search(r"\b(error|fatal)\b|^E: ", line, re.IGNORECASE)]
    return _last_line(errors[0] if errors else text) or "no message"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:240] if lines else ""


def read_record(path: Path) -> dict:
    """The record in a file.

    Raises:
        UserError: no such file, or no record.
    """
    try:
        record = json.loads(Path(path).read_text())
        return record if {"device", "status", "digest"} <= set(record) else record["status"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not an image's record: {error}") from None


def describe(record: dict) -> str:
    """One line about a record."""
    if record["status"] == "built":
        size = record["size_bytes"] / 1e9
        return f"image {record['device']}: {record['tag']}, {record['digest'][:19]}, {size:.2f} GB, {record['engine']}"
    if record["status"] == "failed":
        return f"image {record['device']}: {record['reason']}"
    return f"images: not built, {record['reason']}"


def run(path: Path, arguments: list[str], until: list[int] = ()) -> int:
    """Runs a stage, ``ampgnn ARGUMENTS``, in the image of a record; its exit status.

    The working directory and every path outside it that the arguments or the environment name are mounted at their
    own places; files belong to the calling user. The container ends with this process, however that ends.

    Args:
        until: processes with whose end, too, the container ends.

    Raises:
        UserError: the image was not built or is gone, or its engine does not answer.
    """
    record = read_record(path)
    if record["status"] != "built":
        raise UserError(f"{path}: {describe(record)}")
    engine = record["engine"]
    problem = engine_problem(engine)
    if problem is not None:
        raise UserError(f"{engine} does not run {record['tag']}: {problem}")
    if _inspect(engine, record["digest"]) is None:
        raise UserError(f"{path}: {engine} no longer has {record['tag']}: `snakemake --forcerun image` builds it anew")
    name = f"ampgnn-{uuid.uuid4().hex[:12]}"
    return _attend(engine, name, run_command(record, name, arguments), until)


def run_command(record: dict, name: str, arguments: list[str]) -> list[str]:
    """The engine's command line for a stage in the image of a record, as a container of that name."""
    engine = record["engine"]
    command = [engine, "run", "--rm", "--name", name, "--workdir", os.getcwd(), "--shm-size", SHARED_MEMORY]
    command += ["--security-opt", "no-new-privileges", "--security-opt", "label=disable", *_user(engine)]
    for folder in _mounts(arguments):
        command += ["--mount", f"type=bind,source={folder},target={folder}"]
    commit, dirty = commit_and_dirty()
    settings = {"AMPGNN_IMAGE": f"{record['tag']}@{record['digest']}", "AMPGNN_GIT_COMMIT": commit or ""}
    settings["AMPGNN_GIT_DIRTY"] = "" if dirty is None else str(dirty)
    if "AMPGNN_DATA_MIRROR" in os.environ and "://" not in os.environ["AMPGNN_DATA_MIRROR"]:
        settings["AMPGNN_DATA_MIRROR"] = str(Path(os.environ["AMPGNN_DATA_MIRROR"]).resolve())
    # By name alone, so that no value, such as a server's password, shows in the list of processes.
    passed = [key for key in os.environ if key.startswith(PASSED_ON) and key not in settings]
    command += [word for key in passed for word in ("--env", key)]
    command += [word for key, value in settings.items() for word in ("--env", f"{key}={value}")]
    if urlsplit(os.environ.get("MLFLOW_TRACKING_URI", "")).hostname in ("127.0.0.1", "localhost", "::1"):
        command += ["--network", "host"]
    if record["device"] == "cuda":
        command += ["--gpus", "all"] if engine == "docker" else ["--device", "nvidia.com/gpu=all"]
    return [*command, record["digest"], *arguments]


def _user(engine: str) -> list[str]:
    """The calling user inside as outside. Rootless engines map users: Docker's root is the caller, Podman can keep it."""
    field = "{{.SecurityOptions}}" if engine == "docker" else "{{.Host.Security.Rootless}}"
    answer = subprocess.run([engine, "info", "--format", field], capture_output=True, text=True).stdout
    if engine == "docker" and "rootless" in answer:
        return ["--user", "0:0"]
    keep = ["--userns", "keep-id"] if engine == "podman" and "true" in answer else []
    return [*keep, "--user", f"{os.getuid()}:{os.getgid()}"]


def _mounts(arguments: list[str]) -> list[Path]:
    """The working directory, and the folders outside it of every path that is named, symbolic links resolved."""
    named = [part for word in arguments for part in (word, word.partition("=")[2])]  # --out PATH, --out=PATH
    named += [_dataset_file(path) for path in named]
    named += ["results", os.environ.get("AMPGNN_DATA_MIRROR", ""), os.environ.get("AMPGNN_CACHE", "")]
    named.append(os.environ.get("MLFLOW_TRACKING_URI", "").removeprefix("sqlite:///"))
    folders = [Path.cwd()]
    for text in named:
        if not text or "://" in text:
            continue
        path = Path(text).resolve()
        while not path.is_dir() and path != path.parent:
            path = path.parent
        if path != path.parent and not any(path.is_relative_to(folder) for folder in folders):
            folders.append(path)
    return folders


def _dataset_file(path: str) -> str:
    """The file in the cache that a dataset's record points to; empty if the path is not of one."""
    try:
        return str(Path(path).resolve().parent / json.loads(Path(path).read_text())["file"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _attend(engine: str, name: str, command: list[str], until: list[int]) -> int:
    """Runs the command; removes the container when this process is told to end or killed, or one of ``until`` ends."""
    remove = f"cat >/dev/null; exec {engine} rm --force {name} >/dev/null 2>&1"
    # A reader of a pipe that ends with this process, in a session of its own: it survives a SIGKILL of this one.
    keeper = subprocess.Popen(["sh", "-c", remove], stdin=subprocess.PIPE, start_new_session=True)
    received = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: received.append(number))
    ends = select.poll()
    for pid in until:
        ends.register(os.pidfd_open(pid), select.POLLIN)
    # A session of its own: a Ctrl-C reaches this process, which removes the container, and not the client as well.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None:
        if ends.poll(100):
            received.append(signal.SIGTERM)
        if received:
            subprocess.run([engine, "kill", name], capture_output=True)  # not there yet? again in a moment
            time.sleep(0.1)
    if received:
        keeper.communicate()
        return 128 + received[0]
    keeper.kill()
    keeper.wait()
    return process.returncode


def require_built(paths: list[Path]) -> None:
    """Prints a line about each record.

    Raises:
        UserError: one of them is not of an image that was built.
    """
    records = [read_record(path) for path in paths]
    for record in records:
        print(describe(record))
    missing = [record for record in records if record["status"] != "built"]
    if missing:
        print("`snakemake images --forcerun image` tries again", file=sys.stderr)
        raise UserError(describe(missing[0]))
