"""Variables that name files mean the same files in a process that runs elsewhere."""

from orchestrator.core.text.environment_paths import with_absolute_paths


def test_relative_paths_are_those_of_the_directory_and_all_else_stays() -> None:
    given = {
        "KUBECONFIG": "team.yaml:/etc/kube:~/kube::", "GOOGLE_APPLICATION_CREDENTIALS": "keys/robot.json",
        "SSL_CERT_FILE": "/etc/a:b.pem", "TPUJOB_TOKEN_FILE": "", "PATH": "bin",
    }  # fmt: skip
    assert with_absolute_paths(given, "/home/me") == {
        **given,
        "KUBECONFIG": "/home/me/team.yaml:/etc/kube:~/kube::",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/keys/robot.json",
    }
