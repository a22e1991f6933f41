"""Tells a worker without a route out from a setup that fails: does it reach the servers that its setup downloads from?

The supervisor asks after a setup has failed, and only if its output speaks of a connection. The servers are those that this
output names, else the package indexes that pip and uv are configured to use, with pip's own default. Proxies are respected.
"""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Tuple
from urllib.parse import SplitResult, unquote, urlsplit

Place = Tuple[str, str, int]  # scheme, host, port

TRY_S = 5.0
PIP_S = 20.0  # for what pip is configured to use: a busy worker takes seconds to start it
TAIL_BYTES = 64 << 10
MOST_PLACES = 8
PORTS = {"https": 443, "http": 80}
TROUBLE = re.compile(
    r"connection broken|connect timeout|timed out|time-?out|unreachable|no route to host|connection (refused|reset)|"
    r"(failed|unable|not) (to )?(establish|connect|resolve)|could not (connect|resolve)|temporary failure|dns error|"
    r"name or service not known|nodename nor servname|error sending request|cannot connect|proxyerror|"
    r"tunnel (connection|error)|\(from versions: none\)",  # the latter: pip, of an index that gave it nothing
    re.IGNORECASE,
)
URL = re.compile(r"\b(https?)://(?:[^/\s'\"`]*@)?([A-Za-z0-9.-]+)(?::(\d{1,5}))?")
NAMED = re.compile(
    r"host='(?P<a>[\w.-]+)', port=(?P<ap>\d+)|connect to (?P<b>[\w.-]+) port (?P<bp>\d+)|"
    # Without `host` or a quote, it may be a package or a file that is not resolved.
    r"(?:resolve (?:host(?:name| address)?:? )?'|resolve host(?:name)?:? |Connection to '?)(?P<c>[\w-]+\.[\w.-]*\w)",
    re.IGNORECASE,
)
UV_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
UV_LINE = re.compile(r"^\s*(?:(?:default-|extra-)?index(?:-url)?|url)\s*=.*", re.MULTILINE)
# What `pip install` would use, by its files, its variables and its own default.
ASK_PIP = """
import json
from pip._internal.commands import create_command
options, _ = create_command("install").parser.parse_args([])
indexes = [] if options.no_index else [options.index_url, *options.extra_index_urls]
print(json.dumps([*indexes, *options.find_links]))
"""


def unreachable(log: Path, environment: Mapping[str, str], directory: Path) -> list[str]:
    """Return the servers that this worker cannot reach now, each with why; [] if the setup failed for another reason.

    `environment`, `directory`: of the setup. It takes TRY_S and PIP_S at most, and raises nothing but for a bug.
    """
    lines = [line for line in _tail(log).splitlines() if TROUBLE.search(line)]
    if not lines:
        return []
    proxies = {place[1:] for place in _places(_proxies(environment).values())}
    named = [place for place in _named(lines) if place[1:] not in proxies]
    places = [place for place in named if not _is_local(place[1])] if named else _configured(environment, directory)
    return _try_all(places[:MOST_PLACES], environment)


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        return file.read().decode("utf-8", "replace")


def _named(lines: Iterable[str]) -> list[Place]:
    found: list[Place] = []
    for line in lines:
        found += _places(match.group() for match in URL.finditer(line))
        for match in NAMED.finditer(line):
            host, port = match["a"] or match["b"] or match["c"], int(match["ap"] or match["bp"] or 443)
            found.append(("http" if port == 80 else "https", host, port))
    return list(dict.fromkeys(found))


def _configured(environment: Mapping[str, str], directory: Path) -> list[Place]:
    """Return the servers of the package indexes."""
    texts = [environment.get(name, "") for name in UV_VARIABLES]
    own = Path(environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/")) / ".config")
    for path in (own / "uv" / "uv.toml", Path("/etc/uv/uv.toml")):
        try:
            texts += UV_LINE.findall(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
    return list(dict.fromkeys(_places([*_of_pip(environment, directory), *texts])))


def _of_pip(environment: Mapping[str, str], directory: Path) -> list[str]:
    """Return the URLs that pip would use; [] where there is no pip."""
    try:
        done = subprocess.run(
            ["python3", "-c", ASK_PIP],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(environment),
            cwd=directory,
            timeout=PIP_S,
            check=True,
        )
        return [str(url) for url in json.loads(done.stdout)]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def _places(texts: Iterable[str]) -> Iterator[Place]:
    for text in texts:
        for match in URL.finditer(text):
            yield match[1], match[2].lower(), int(match[3] or PORTS[match[1]])


def _is_local(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


def _try_all(places: list[Place], environment: Mapping[str, str]) -> list[str]:
    problems: dict[Place, str] = dict.fromkeys(places, f"no answer in {TRY_S:.0f} s")

    def try_one(place: Place) -> None:
        why = _problem(place, environment)
        if why is None:
            del problems[place]
        else:
            problems[place] = why

    threads = [threading.Thread(target=try_one, args=(place,), daemon=True) for place in places]
    deadline = time.monotonic() + TRY_S
    for thread in threads:
        thread.start()
    for thread in threads:  # one that waits for a name server may never end
        thread.join(max(deadline - time.monotonic(), 0.0))
    return [f"{host}:{port} ({why})" for (_, host, port), why in dict(problems).items()]


def _problem(place: Place, environment: Mapping[str, str]) -> str | None:
    """Return why there is no connection; None if there is one."""
    scheme, host, port = place
    proxy = _proxy(scheme, host, environment)
    try:
        if proxy is None:
            socket.create_connection((host, port), TRY_S).close()
            return None
        return _through(proxy, place)
    except socket.gaierror:
        return "its name is not found" if proxy is None else f"the name of the proxy {proxy.hostname} is not found"
    except (OSError, ValueError, OverflowError) as error:
        why = "no answer" if isinstance(error, socket.timeout) else getattr(error, "strerror", None) or str(error)
        return why.lower() if proxy is None else f"the proxy {proxy.hostname}:{proxy.port}: {why.lower()}"


def _through(proxy: SplitResult, place: Place) -> str | None:
    scheme, host, port = place
    request = f"CONNECT {host}:{port} HTTP/1.1" if scheme == "https" else f"HEAD http://{host}:{port}/ HTTP/1.1"
    login = ""
    if proxy.username is not None:
        pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        login = f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}\r\n"
    with socket.create_connection((str(proxy.hostname), proxy.port or 80), TRY_S) as sock:
        sock.sendall(f"{request}\r\nHost: {host}:{port}\r\n{login}Connection: close\r\n\r\n".encode())
        status = sock.makefile("rb").readline(200).split()
    code = int(status[1]) if len(status) > 1 and status[1].isdigit() else 0
    fine = code == 200 if scheme == "https" else 0 < code < 500 and code != 407
    return None if fine else f"the proxy {proxy.hostname}:{proxy.port} answers {code or 'nothing'}"


def _proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the proxies by scheme; `no` has the hosts without one."""
    found = {}
    for scheme in ("https", "http", "all", "no"):
        value = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme}_proxy".upper())
        if value:
            found[scheme] = value
    return found


def _proxy(scheme: str, host: str, environment: Mapping[str, str]) -> SplitResult | None:
    from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # http.client: 10 ms

    named = _proxies(environment)
    url = named.get(scheme) or named.get("all")
    if not url or proxy_bypass_environment(host, named):
        return None
    return urlsplit(url if "://" in url else f"http://{url}")
