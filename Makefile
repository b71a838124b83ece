# The commands of this project; `make help` lists them. Each first makes the environments that it needs, once.

PYTHON ?= python3
BIN := .venv/bin
DEV := .venv/.ready
CLOUD := .local/cloud-venv/.ready
LLMOCK := .local/llmock-venv/.ready

# What a function's package holds. Add a file or folder here when your agent needs more than Python files beside it.
PACKAGE ?= durable stores handlers $(wildcard *.py)
# What `sam build` builds for. The runtime and the architecture are parameters of the template, too.
LAMBDA_RUNTIME ?= python3.13
LAMBDA_ARCHITECTURE ?= x86_64
BUILD_PYTHON ?= $(firstword $(wildcard $(BIN)/python) $(PYTHON))
BUILD_CACHE ?= .local/build
export LAMBDA_RUNTIME LAMBDA_ARCHITECTURE

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1	/' | expand -t 20

.PHONY: run
run: $(DEV) $(CLOUD) ## Deploy to a cloud on this machine, watch a run survive a crash and an approval, and clean up
	@$(BIN)/python -m infra.local.tour

.PHONY: serve
serve: $(DEV) $(CLOUD) ## Deploy to a cloud on this machine and leave it up until Ctrl-C
	@$(BIN)/python -m infra.local.serve

# The tests that need a cloud share it, one after the other, and wait for it most of the time: there are two. The others
# have nothing in common.
CLOUDS = e2e or local_cloud or dynamodb_local
PARALLEL = --numprocesses auto --dist worksteal
TWO_CLOUDS = --numprocesses 2 --dist loadfile

.PHONY: test
test: $(DEV) $(CLOUD) $(LLMOCK) ## Run all tests (under 10 minutes)
	@$(BIN)/python -m infra.local.dynamodb_local install
ifeq ($(ARGS),)
	@$(BIN)/python -m pytest $(PARALLEL) -m "not ($(CLOUDS))"
	@$(BIN)/python -m pytest $(TWO_CLOUDS) -m "($(CLOUDS)) and not soak"
else
	@$(BIN)/python -m pytest $(ARGS)
endif

.PHONY: soak
soak: $(DEV) $(CLOUD) ## Run what takes ten minutes: forty steps in many slices, twenty kills, a minute of outages, fifty sessions
	@$(BIN)/python -m pytest -s -m soak tests/e2e $(ARGS)

.PHONY: test-unit
test-unit: $(DEV) ## Run the tests that need no local cloud, the long searches in short; ARGS="-k name" chooses
	@DURABLE_TESTS=quick $(BIN)/python -m pytest $(PARALLEL) -m "not ($(CLOUDS))" $(ARGS)

.PHONY: lint
lint: $(DEV) ## Check style, types, the template and the state machine
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/cfn-lint template.yaml
	SAM_CLI_TELEMETRY=0 AWS_DEFAULT_REGION=us-east-1 $(BIN)/sam validate --lint
	$(BIN)/statelint infra/run.asl.json

.PHONY: format
format: $(DEV) ## Format the code and sort its imports
	@$(BIN)/ruff check --select I --fix --quiet
	@$(BIN)/ruff format

.PHONY: bench
bench: $(DEV) $(CLOUD) ## Print what a run costs: time and memory per turn, requests, bytes, imports
	@$(BIN)/python -m infra.bench $(ARGS)

.PHONY: bench-peers
bench-peers: $(DEV) ## The same beside other frameworks (installs them into .local/peers, once)
	@$(BIN)/python -m infra.bench --peers $(or $(ARGS),overhead counts)

.PHONY: contract-peer
contract-peer: $(DEV) ## Run the stores' contract on another project's DynamoDB saver: it must find the faults that are known
	@$(BIN)/python -m infra.contract_peer

.PHONY: deploy
deploy: $(DEV) ## Build and deploy to AWS, with the credentials of this shell (asks before it changes anything)
	@$(BIN)/sam build --parameter-overrides $(PARAMETERS)
	@$(BIN)/sam deploy --parameter-overrides $(PARAMETERS)

PARAMETERS = PythonRuntime=$(LAMBDA_RUNTIME) Architecture=$(LAMBDA_ARCHITECTURE) $(DEPLOY_PARAMETERS)

.PHONY: clean
clean: ## Remove everything that the other commands made, the environments included
	rm -rf .venv .local .aws-sam dist .hypothesis .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- The environments -------------------------------------------------------------------------------------------------

.PHONY: cloud
cloud: $(CLOUD)

$(DEV): requirements/dev.txt
	@$(PYTHON) infra/local/make_venv.py .venv requirements/dev.txt "the development environment"
	@touch $@

$(CLOUD): requirements/cloud.txt
	@$(PYTHON) infra/local/make_venv.py .local/cloud-venv requirements/cloud.txt "the local cloud"
	@touch $@

$(LLMOCK): requirements/llmock.txt
	@$(PYTHON) infra/local/make_venv.py .local/llmock-venv requirements/llmock.txt "the mock of model providers"
	@touch $@

# --- Lambda packages: called by `sam build` (`BuildMethod: makefile`) ---------------------------------------------------

build-DependenciesLayer:
	@$(BUILD_PYTHON) infra/package.py layer $(ARTIFACTS_DIR) requirements/runtime.txt requirements/agent.txt \
		--runtime $(LAMBDA_RUNTIME) --architecture $(LAMBDA_ARCHITECTURE) --cache $(BUILD_CACHE)

build-%:
	@$(BUILD_PYTHON) infra/package.py code $(ARTIFACTS_DIR) $(PACKAGE) \
		--runtime $(LAMBDA_RUNTIME) --architecture $(LAMBDA_ARCHITECTURE) --cache $(BUILD_CACHE)

# --- requirements/*.txt: pinned for every supported Python, one resolution for what is tested and what is shipped ------

PIN = $(BIN)/python -m uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	--no-config --no-header --no-annotate --no-emit-index-url --no-emit-find-links

.PHONY: lock
lock: $(DEV) ## Move the pinned requirements to the newest versions
	@$(BIN)/python -m pip install --quiet uv
	@$(PIN) requirements/dev.in -o requirements/dev.txt
	@$(PIN) requirements/runtime.in -c requirements/dev.txt -o requirements/runtime.txt
	@$(PIN) requirements/cloud.in -o requirements/cloud.txt
	@$(PIN) requirements/llmock.in -o requirements/llmock.txt
	@for peer in requirements/peers/*.in; do $(PIN) $$peer -o $${peer%.in}.txt || exit; done
