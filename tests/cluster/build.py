"""Build the control plane that `tests/cluster` starts: `make cluster`.

Each part is a Go module with main packages. A wrapper module of ours requires it at one version, so that the Go tool checks
all sums, and `go build` makes static binaries in the cache (`versions.cache`). `k8s.io/kubernetes` is not meant to be
required: its staging modules have the version v0.0.0 there, so the wrapper replaces each by the release that belongs to it.
The manifests (CRDs, roles, webhooks) come out of the same module, rendered by `kubectl kustomize`. What is there already is not
made again.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.cluster.versions import MODULES, Module, cache, missing

ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOWORK": "off"}


def main() -> int:
    """Make what is missing, one line for each step with its time and size. Return the exit code."""
    place = cache()
    place.mkdir(parents=True, exist_ok=True)
    if tools := [tool for tool in ("go", "kubectl") if missing() and shutil.which(tool) is None]:
        print(f"cannot build: {' and '.join(tools)} not found", file=sys.stderr)
        return 1
    for label, module in MODULES.items():
        _make(label, module, place)
    size = sum(path.stat().st_size for path in place.iterdir())
    print(f"complete: {size / 1e6:.0f} MB in {place}")
    return 0


def _make(label: str, module: Module, place: Path) -> None:
    with tempfile.TemporaryDirectory(dir=place) as work:
        wrapper = Path(work)
        for binary, package in module.packages.items():
            if binary in missing():
                _require(label, module, wrapper)
                _step(binary, place, lambda path, package=package: _build(wrapper, module, package, path))
        if f"{label}.yaml" in missing():
            _require(label, module, wrapper)
            _step(f"{label}.yaml", place, lambda path: _render(wrapper, module, path))


def _step(name: str, place: Path, make: Any) -> None:
    began, draft = time.monotonic(), place / f".{name}"
    print(f"{name} …", flush=True)
    make(draft)
    draft.replace(place / name)  # a file that has its name is complete
    print(f"{name}: {(place / name).stat().st_size / 1e6:.1f} MB in {time.monotonic() - began:.0f} s", flush=True)


def _require(label: str, module: Module, wrapper: Path) -> None:
    """Write the wrapper module and let Go resolve it, once."""
    if (wrapper / "go.mod").exists():
        return
    imports = "".join(f'\t_ "{package}"\n' for package in module.packages.values())
    (wrapper / "tools.go").write_text(f"//go:build tools\n\npackage tools\n\nimport (\n{imports})\n")
    (wrapper / "go.mod").write_text(f"module cluster/{label}\n\nrequire {module.name} {module.version}\n")
    own = json.loads(_go(wrapper, "mod", "edit", "-json", _directory(wrapper, module) / "go.mod"))
    staging = [each["Old"]["Path"] for each in own.get("Replace") or () if each["New"]["Path"].startswith("./staging/")]
    release = module.version.replace("v1.", "v0.", 1)
    replaced = [f"-replace={each}={each}@{release}" for each in staging]
    _go(wrapper, "mod", "edit", f"-go={own['Go']}", *replaced)
    _go(wrapper, "mod", "tidy", "-e")


def _directory(wrapper: Path, module: Module) -> Path:
    """Return where the module's source lies; download it if need be."""
    elsewhere = wrapper / "no-module"  # in the wrapper, Go would want all that the module needs
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "go.mod").write_text("module none\n")
    return Path(json.loads(_go(elsewhere, "mod", "download", "-json", f"{module.name}@{module.version}"))["Dir"])


def _build(wrapper: Path, module: Module, package: str, path: Path) -> None:
    flags = "-s -w"
    if module.name == "k8s.io/kubernetes":  # its own build says the version, and Kueue asks the API server for it
        major, minor, _ = module.version.removeprefix("v").split(".")
        said = {"gitVersion": module.version, "gitMajor": major, "gitMinor": minor}
        flags += "".join(f" -X k8s.io/component-base/version.{name}={value}" for name, value in said.items())
    _go(wrapper, "build", "-trimpath", "-ldflags", flags, "-o", path, package)


def _render(wrapper: Path, module: Module, path: Path) -> None:
    sources = wrapper / "manifests"  # the name of the module's own directory has an @, which kustomize takes for a host
    shutil.copytree(_directory(wrapper, module) / module.manifests, sources)
    sources.chmod(0o755)
    path.write_bytes(
        subprocess.run(["kubectl", "kustomize", sources / "default"], check=True, stdout=subprocess.PIPE).stdout
    )
    for folder, _, _ in os.walk(sources):
        Path(folder).chmod(0o755)  # read-only in the module cache; a temporary directory has to be removed


def _go(wrapper: Path, *words: str | Path) -> bytes:
    environment = {**os.environ, **ENVIRONMENT}
    return subprocess.run(["go", *words], cwd=wrapper, env=environment, check=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    sys.exit(main())
