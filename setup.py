"""The packages of the wheel: `jobs/` is installed as `orchestrator.examples`. Everything else is in pyproject.toml."""

import tempfile

from setuptools import find_packages, setup

with tempfile.TemporaryDirectory() as build:  # a build/ that stays would put deleted modules into the next wheel
    setup(
        packages=[
            *find_packages(include=["orchestrator*", "cloud_tpu_emulator*", "payload*", "tpujob*"]),
            "orchestrator.examples",
        ],
        package_dir={"orchestrator.examples": "jobs"},
        package_data={
            "orchestrator": ["py.typed"],
            "orchestrator.catalog": ["*.csv", "*.json.gz"],
            "orchestrator.promise.ledger": ["*.sql"],
            "orchestrator.report.page": ["assets/*"],
            "orchestrator.examples": ["**/*.yaml", "**/*.py"],
            "payload.data": ["mnist_sample/*"],
            "tpujob": ["py.typed", "*.pyi"],
            "cloud_tpu_emulator": ["py.typed"],
        },
        options={"build": {"build_base": build}},
    )
