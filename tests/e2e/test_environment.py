"""`requirements:` on a slice that is held: an environment is made once, used again, and made anew when they change."""

import certifi
import pytest

from tests.cli_fixture import Cli
from tests.wheels import wheel

JOB = """
tpu: {{zone: us-central1-a}}
requirements: requirements.txt
env: {{PIP_NO_INDEX: 1, PIP_FIND_LINKS: {wheels}}}
setup: pip --version
command: python -c "import alpha, sys; print('alpha', alpha.__version__, 'in', sys.prefix)"; echo trusts $REQUESTS_CA_BUNDLE
limits: {{max_duration: 6m}}
"""


@pytest.mark.ci
def test_requirements_are_installed_once_on_a_held_slice_and_again_when_they_change(cli: Cli) -> None:
    wheels = cli.directory / "the wheels"
    wheel(wheels, "alpha")
    text = JOB.format(wheels=f"file://{wheels}".replace(" ", "%20"))
    listed = cli.directory / "requirements.txt"
    listed.write_text("alpha\n")
    job = cli.job(text)
    cli.env["REQUESTS_CA_BUNDLE"] = certifi.where()
    assert cli("up", "--zone", "us-central1-a").returncode == 0
    first = cli("run", job)
    assert first.returncode == 0, first.text
    assert "requirements.txt: 1 package in " in first.stdout and "worker0 | alpha 0.0.1 in " in first.stdout
    assert f"trusts {certifi.where()}\n" in first.stdout, "as this machine does, from which the worker connects"
    again = cli("run", job)
    assert "requirements.txt: 1 package, is there already" in again.stdout and "alpha 0.0.1 in" in again.stdout
    wheel(wheels, "alpha", "2.0")
    listed.write_text("alpha==2.0\n")
    changed = cli("run", job)
    assert "requirements.txt: 1 package in " in changed.stdout and "alpha 2.0 in" in changed.stdout, changed.text
    listed.write_text("alpha\nnosuch\n")
    failed = cli("run", job)
    assert failed.returncode == 1, failed.text
    assert "setup    requirements.txt cannot be installed: " in failed.stdout and "nosuch" in failed.stdout
    assert "the setup failed on worker0 with code 1" in failed.text
