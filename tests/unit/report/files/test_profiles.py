"""How to open the traces of profilers that are among the files of a run."""

from orchestrator.report.files.profiles import how_to_open

PROFILE = "worker0/artifacts/profile"
HOST = f"{PROFILE}/plugins/profile/2026_11_23/vm"


def test_xprof_opens_each_directory_once_however_many_hosts_and_times_are_in_it() -> None:
    later = HOST.replace("_23", "_24")
    paths = [f"{path}.xplane.pb" for path in (HOST, f"{HOST}2", later, HOST.replace("profile/", "own/", 1))]
    assert how_to_open("/my runs/a", [*paths, f"{HOST}.trace.json.gz"]) == [
        f"xprof --logdir '/my runs/a/{PROFILE}'",
        "xprof --logdir '/my runs/a/worker0/artifacts/own'",
    ]


def test_where_xprof_has_nothing_to_open_perfetto_opens_the_trace_events() -> None:
    paths = [f"{PROFILE}/vm.trace.json.gz", "worker0/artifacts/vm.xplane.pb", "report.html", "trace.json"]
    assert how_to_open("/runs/a", paths) == [f"{PROFILE}/vm.trace.json.gz opens in ui.perfetto.dev"]


def test_a_run_without_a_trace_has_nothing_to_open() -> None:
    assert how_to_open("/runs/a", ["worker0/artifacts/metrics.json"]) == []
