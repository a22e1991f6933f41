"""The program between gcloud and OpenSSH: adds the port of the emulated worker that gcloud names, or the relay (see `control`).

`gcloud compute tpus tpu-vm ssh --tunnel-through-iap` makes itself the ProxyCommand, and has no option for another relay there.
"""

import os
import re
import shutil
import sys
from pathlib import Path

from cloud_tpu_emulator.daemon import control

ALIAS = re.compile(r"HostKeyAlias=tpu\.(\d+)-(\d+)(?:-|$)")
TUNNEL = re.compile(r"ProxyCommand .* start-iap-tunnel ")


def main() -> None:
    """Execute the real program. Arguments of this process: `STATE_DIR PROGRAM ARGUMENTS…`."""
    state_dir, program, *arguments = sys.argv[1:]
    directory = Path(state_dir) / "bin"
    path = os.pathsep.join(
        each for each in os.environ.get("PATH", os.defpath).split(os.pathsep) if Path(each) != directory
    )
    real = shutil.which(program, path=path)
    if real is None:
        print(f"{program} is not installed (looked for it in {path}).", file=sys.stderr)
        sys.exit(127)
    os.environ["PATH"] = path  # scp starts ssh, with the port in its arguments
    tunneled = [through_relay(Path(state_dir), each) if TUNNEL.match(each) else each for each in arguments]
    port = port_for(Path(state_dir), program, arguments) if tunneled == arguments else None
    os.execv(real, [program, *(["-o", f"Port={port}"] if port else []), *tunneled])  # noqa: S606  no shell in between


def through_relay(state_dir: Path, proxy_command: str) -> str:
    """Return gcloud's ProxyCommand with the relay of the emulator; as it is, if none runs."""
    endpoint = control.running(state_dir)
    if endpoint is None:
        return proxy_command
    url, authorities = control.open_relay(endpoint)
    os.environ["CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE"] = authorities
    return f"{proxy_command} --iap-tunnel-url-override={url}"


def port_for(state_dir: Path, program: str, arguments: list[str]) -> int | None:
    """Return the port of the worker that the arguments name; None: they name none of this emulator, or give a port."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    named = next((match for option in options if (match := ALIAS.match(option))), None)
    if named is None or any(option.startswith((control.PROGRAMS[program], "Port=", "-oPort=")) for option in options):
        return None
    endpoint = control.running(state_dir)
    nodes = control.request(endpoint, "GET", "/_emulator/status")["nodes"] if endpoint else []
    ports: list[int] = next((node["ssh_ports"] for node in nodes if node["uid"] == named[1]), [])
    worker = int(named[2])
    return ports[worker] if worker < len(ports) else None
