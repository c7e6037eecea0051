# Needs only Python (3.11 or newer, with venv) and make; nothing has to be activated.
PYTHON ?= python3
PYTEST_ARGS ?=
# Tests start hundreds of processes. Without bytecode each would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE
# an import contract says that what is tested there knows no Dask
DASKLESS := kernels comm algorithms
# One process of pytest runs the tests that need a cluster, the others the rest.
PROCESSES ?= 3
PARALLEL = -n $(PROCESSES) --dist loadscope --no-loadscope-reorder --rerun-show-tracebacks
NO_GPU := not gpu and not multigpu
QUICK = $(PARALLEL) --hypothesis-profile quick -m "not slow and $(NO_GPU)"
THOROUGH = $(PARALLEL) --hypothesis-profile thorough -m "(slow or hypothesis) and $(NO_GPU)"

PIP := -m pip --disable-pip-version-check install --quiet

.PHONY: help .venv .venv-latest demo test quick test-all test-latest test-dashboard lint style types \
    compat notebooks docs dist bench clean

help:  ## say what can be made
	@grep -E '^[a-z.-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 16

.venv: .venv/.made  ## the environment, dask and distributed as in ci/constraints.txt

.venv/.made: pyproject.toml ci/constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python $(PIP) -c ci/constraints.txt torch
	.venv/bin/python $(PIP) -c ci/constraints.txt -e '.[dev]'
	@touch $@

.venv-latest: .venv-latest/.made  ## the same with the newest dask, distributed and dask-array

# Its own dask, distributed and dask-array come first on the path; all else is that of .venv.
.venv-latest/.made: .venv/.made
	$(beside)
	.venv-latest/bin/python $(PIP) --upgrade dask distributed 'dask-array<0.8'
	@touch $@

# Bokeh, for Dask's dashboard. With it each worker of a test would start a second later.
.venv-dashboard/.made: .venv/.made
	$(beside)
	.venv-dashboard/bin/python $(PIP) -c ci/constraints.txt bokeh
	@touch $@

define beside
$(PYTHON) -m venv --clear $(@D)
$(@D)/bin/python -c 'import site, sysconfig; \
    print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib").replace("$(@D)", ".venv"), \
    file=open(sysconfig.get_path("purelib") + "/venv.pth", "w"))'
endef

demo: .venv  ## eigen-patches of photographs, with plain Dask and with dask_dgpu
	.venv/bin/python examples/eigen_patches.py

# mypy uses one core, so it runs beside the tests
test: style  ## lint, types, import contracts, quick tests: about 5 minutes on 2 cores
	@$(MAKE) --no-print-directory --jobs=2 types quick

quick: .venv  ## the quick tests alone
	.venv/bin/python -m pytest $(QUICK) $(PYTEST_ARGS)

test-all: .venv  ## what test leaves out: slow tests, and 5 times as many random examples
	.venv/bin/python -m pytest $(THOROUGH) $(PYTEST_ARGS)

test-latest: .venv-latest  ## the quick tests that use Dask, with the newest dask, distributed and dask-array
	.venv-latest/bin/python -m pytest $(QUICK) $(PYTEST_ARGS) $(addprefix --ignore=tests/, $(DASKLESS))

test-dashboard: .venv-dashboard/.made  ## the test of Dask's dashboard in Chromium, with Bokeh
	.venv-dashboard/bin/python -m pytest -m dashboard $(PYTEST_ARGS) tests/observe/test_dashboard.py \
	    || [ $$? -eq 5 ]  # without Chromium it is deselected

lint: style types  ## every check of .pre-commit-config.yaml

style: .venv
	SKIP=mypy .venv/bin/pre-commit run --all-files

types: .venv
	.venv/bin/pre-commit run mypy --all-files

compat: .venv  ## Dask's own array tests with the plugin enabled, and those of dask_array
	.venv/bin/python -m tests.support.compat
	.venv/bin/python -m tests.support.compat --package dask_array

notebooks: .venv  ## run the notebooks and store their outputs
	.venv/bin/python -m tests.support.notebooks

docs: .venv  ## the documentation as a site, in build/docs: at most 3 minutes on 2 cores
	.venv/bin/python -m sphinx -W --keep-going -q docs build/docs

dist: .venv  ## wheel and sdist in build/dist, checked and tried in an empty environment
	rm -rf build/dist
	.venv/bin/python -m build --outdir build/dist
	.venv/bin/twine check --strict build/dist/*
	.venv/bin/python ci/check_dist.py

bench: .venv  ## the benchmarks; those for GPUs where there are any
	set -e; for file in $(filter-out %harness.py %_gpu.py,$(wildcard benchmarks/*.py)) \
	    $$(nvidia-smi -L >/dev/null 2>&1 && echo $(wildcard benchmarks/*_gpu.py)); do \
	    PYTHONPATH=. .venv/bin/python $$file; done

clean:  ## remove what was made
	rm -rf .venv .venv-latest .venv-dashboard build
