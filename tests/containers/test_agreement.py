"""Lock files, conda environments, Dockerfiles and pyproject.toml name the same versions."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ("cpu", "cuda")


def pins(text: str) -> dict[str, str]:
    """{name: version} of the lines `name==version`, local versions left out."""
    found = re.findall(r"^\s*(?:- )?([A-Za-z0-9._-]+)==([^\s+]+)", text, re.MULTILINE)
    names = [canonicalize_name(name) for name, _ in found]
    assert len(names) == len(set(names))
    return {name: version for name, (_, version) in zip(names, found, strict=True)}


def env(name: str) -> str:
    return (ROOT / "envs" / name).read_text()


def project(path: str) -> dict:
    return tomllib.loads((ROOT / path).read_text())


@pytest.mark.parametrize("name", ["build", "cpu", "cuda"])
def test_every_locked_package_has_a_hash_and_the_hosts_version(name):
    entries = re.split(r"\n(?=\S)", env(f"{name}.lock").strip())
    assert len(entries) == len(pins(env(f"{name}.lock"))) > 7
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    host = pins(env("cpu.txt"))
    differing = {k: (v, host[k]) for k, v in pins(env(f"{name}.lock")).items() if host.get(k, v) != v}
    assert differing == {}


@pytest.mark.parametrize("name", ["build", "image", "cuda"])
def test_locks_hold_what_is_asked_for(name):
    lock = pins(env({"image": "cpu.lock"}.get(name, f"{name}.lock")))
    lines = [line.partition("#")[0].strip() for line in env(f"{name}.in").splitlines()]
    for requirement in (Requirement(line) for line in lines if line and not line.startswith("-r ")):
        assert requirement.specifier.contains(lock[canonicalize_name(requirement.name)]), requirement


def test_the_images_differ_in_nothing_but_cuda():
    cpu, cuda = pins(env("cpu.lock")), pins(env("cuda.lock"))
    assert cpu.items() <= cuda.items()
    assert all(re.match("nvidia-|cuda-|triton", name) for name in cuda.keys() - cpu.keys())
    assert "torch==2.13.0+cpu" in env("cpu.lock") and "torch==2.13.0 " in env("cuda.lock")


@pytest.mark.parametrize("name", IMAGES)
def test_conda_environments_have_the_locks_pins(name):
    conda = yaml.safe_load(env(f"{name}.yaml"))
    python, *_, packages = conda["dependencies"]
    assert python == "python=3.11" and pins("\n".join(packages["pip"])) == pins(env(f"{name}.lock"))
    assert (ROOT / "envs" / f"{name}.post-deploy.sh").is_file()


@pytest.mark.parametrize("name", IMAGES)
def test_dockerfiles(name):
    text = (ROOT / "docker" / f"{name}.Dockerfile").read_text()
    lock = pins(env(f"{name}.lock"))
    assert f"ARG LOCK={name}.lock" in text and "--python 3.11" in text and "python3.11/site-packages" in text
    assert f'ampgnn.torch="{lock["torch"]}"' in text and f'ampgnn.dgl="{lock["dgl"]}"' in text
    assert f'image.version="{project("pyproject.toml")["project"]["version"]}"' in text
    installs = re.findall(r"(?:pip install|pip sync)[^&]*", text)
    assert installs and all("--require-hashes" in i or "/wheels/*.whl" in i or "$DGL_WHEEL" in i for i in installs)
    assert re.search(r"^USER 1000:1000$", text, re.MULTILINE) and 'ENTRYPOINT ["tini"' in text


def test_both_dockerfiles_share_their_first_stages():
    """The same layers serve both, where the base is the same."""
    stages = []
    for name in IMAGES:
        text = (ROOT / "docker" / f"{name}.Dockerfile").read_text()
        stages.append(text[text.index("AS python") : text.index("FROM python AS environment")])
    assert stages[0] == stages[1]


def test_pyproject_is_satisfied_by_the_locks():
    lock, build = pins(env("cpu.lock")), pins(env("build.lock"))
    main, kernels = project("pyproject.toml"), project("kernels/pyproject.toml")
    for text in main["project"]["dependencies"] + kernels["project"]["dependencies"]:
        requirement = Requirement(text)
        if requirement.name == "ampgnn-kernels":
            assert requirement.specifier.contains(kernels["project"]["version"])
        else:
            assert requirement.specifier.contains(lock[canonicalize_name(requirement.name)]), text
    for text in main["build-system"]["requires"] + kernels["build-system"]["requires"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(build[canonicalize_name(requirement.name)]), text
    assert Version("3.11") in Requirement(f"python{main['project']['requires-python']}").specifier
