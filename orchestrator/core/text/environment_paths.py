"""The files that variables of the environment name, for a process that runs in another directory. Pure."""

from collections.abc import Mapping

# Credentials, and settings of how to reach a cloud.
ONE = ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "TPUJOB_TOKEN_FILE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
SEVERAL = ("KUBECONFIG",)  # separated by `:`


def with_absolute_paths(environ: Mapping[str, str], directory: str) -> dict[str, str]:
    """Return the variables; what they name relative to `directory`, they name in full. A leading `~` stays."""
    found = dict(environ)
    for name in (*ONE, *SEVERAL):
        if environ.get(name):
            paths = environ[name].split(":") if name in SEVERAL else [environ[name]]
            found[name] = ":".join(_absolute(path, directory) for path in paths)
    return found


def _absolute(path: str, directory: str) -> str:
    return path if not path or path.startswith(("/", "~")) else f"{directory.rstrip('/')}/{path}"
