"""What `tpujob ssh` passes on to OpenSSH."""

import pytest

from orchestrator.client.slices.shell import check_forwards
from orchestrator.errors import UserError


@pytest.mark.parametrize(("option", "value"), [
    ("-L", "6006:localhost:6006"), ("-L", "127.0.0.1:6006:localhost:6006"), ("-L", "*:6006:localhost:6006"),
    ("-L", "[::1]:6006:[::1]:6006"), ("-L", "/tmp/here:/tmp/there"), ("-L", "6006:/tmp/there"), ("-R", "8080"),
    ("-R", "0.0.0.0:8080"), ("-D", "1080"), ("-D", "127.0.0.1:1080"),
])  # fmt: skip
def test_what_ssh_takes_for_a_forward_is_left_to_it(option: str, value: str) -> None:
    check_forwards(option, [value])


@pytest.mark.parametrize(("option", "value", "form"), [
    *(("-L", value, "PORT:HOST:PORT") for value in ("foo", "6006", "localhost:6006", "99999:a:1")),
    ("-R", "foo", "PORT:HOST:PORT"),
    *(("-D", value, "[ADDRESS:]PORT, ") for value in ("foo", "99999", "1080:localhost:80", "/tmp/here")),
])  # fmt: skip
def test_what_is_no_forward_is_said_with_the_form_of_one(option: str, value: str, form: str) -> None:
    with pytest.raises(UserError, match=f"{option} {value}: ") as error:
        check_forwards(option, [value])
    assert form in str(error.value.hint)
