#!/usr/bin/env bash
# Builds the images and runs the pipeline in them with a real Docker Engine and Podman: installs them if need be, starts
# a Docker daemon of its own unless one answers, makes a stand-in for the base image (no image registry need be in
# reach, and pip's certificates and torch wheel come along) and runs check_images.py. Needs root; leaves nothing but
# Debian's packages.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=$(command -v python)  # the project's environment: `make test-containers`
tools="docker.io docker-compose podman mmdebstrap"
if ! dpkg --status $tools >/dev/null 2>&1; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "tests/containers FAILED: $tools are not installed, and installing them needs root and apt-get." >&2
    echo "The images were NOT tested." >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $tools >/dev/null
fi
export PATH="/usr/bin:$PATH"  # the client of the same package as the daemon

work=$(mktemp -d /tmp/ampgnn-containers.XXXXXX)
chmod 755 "$work"
clean_up() {
  status=$?
  if [ -n "${daemon:-}" ]; then
    kill "$daemon" && wait "$daemon" || true
  else
    docker image rm --force "${AMPGNN_TEST_BASE:-}" >/dev/null 2>&1 || true
  fi
  awk -v under="$work/" 'index($2, under) == 1 { print $2 }' /proc/mounts | sort --reverse | xargs --no-run-if-empty umount
  if [ "$status" != 0 ] && [ -f "$work/dockerd.log" ]; then tail -20 "$work/dockerd.log" >&2; fi
  rm -rf "$work"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 143' TERM INT

if ! docker version >/dev/null 2>&1; then
  export DOCKER_HOST="unix://$work/docker.sock"
  dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/dockerd.pid" --host "$DOCKER_HOST" \
    >"$work/dockerd.log" 2>&1 &
  daemon=$!
fi

# Podman where limits cannot be raised and control groups are of both versions: virtual machines, other containers.
export CONTAINERS_CONF="$work/containers.conf"
cat >"$CONTAINERS_CONF" <<'END'
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=30000:30000"]
[engine]
runtime = "runc"
END

# torch's CPU wheel, where pip finds it; elsewhere the build asks PyTorch's index, as users' builds do.
mkdir "$work/wheels"
if "$python" -m pip download --quiet --no-deps --dest "$work/wheels" torch==2.13.0+cpu 2>/dev/null; then
  export AMPGNN_TEST_TORCH_BACKEND=
fi
mkdir -p /usr/local/share/ca-certificates
mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3,python3-venv,libpython3.11-dev \
  --dpkgopt=force-unsafe-io \
  --customize-hook='copy-in /usr/local/share/ca-certificates /usr/local/share' \
  --customize-hook='chroot "$1" update-ca-certificates >/dev/null 2>&1' \
  --customize-hook="copy-in $work/wheels /opt" \
  --customize-hook='echo "DPkg::Post-Invoke { \"rm -f /var/cache/apt/archives/*.deb\"; };" >"$1/etc/apt/apt.conf.d/clean"' \
  --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin' \
  bookworm "$work/base.tar"

until docker version >/dev/null 2>&1; do
  kill -0 "$daemon" 2>/dev/null || { echo "tests/containers FAILED: dockerd does not start" >&2; exit 1; }
  sleep 0.5
done
export AMPGNN_TEST_BASE="ampgnn-test-base:$$"
docker import --change 'ENV LANG=C.UTF-8 SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt UV_FIND_LINKS=/opt/wheels' \
  "$work/base.tar" "$AMPGNN_TEST_BASE" >/dev/null
rm "$work/base.tar"
"$python" -m pytest --basetemp="$work/tests" "$@" tests/containers/check_images.py
