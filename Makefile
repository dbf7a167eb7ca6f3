# Two commands do all the set-up on a fresh machine: `make demo` and `make test`. Both make their own .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# Oldest supported and a middle onnxruntime; the newest is the one in .venv. The kernels and fused files are run on all three.
OLD_ONNXRUNTIMES := 1.20.1 1.24.4
# What runs the PyTorch sample. A build for the CPU is enough, and a tenth of the size: name one where pip finds it, as in
# make test TORCH='torch==2.13.0+cpu'
TORCH ?= torch==2.13.0

# Sources that clang-format keeps.
NATIVE = $$(git ls-files 'ops/*.cpp' 'ops/*.h' 'ops/*.cu' 'ops/*.cuh' 'rmsnorm_deploy/*.cpp' 'samples/*.cpp' 'benchmarks/*.cpp' 'tests/*.cpp' 'tests/*.h')

.PHONY: demo test environments lint format unit venv docs runtimes pipelines pipelines-torch clean fuzz faults matrix \
	gpu-check wheels release-check

demo: $(VENV)/ready-demo
	$(BIN)/rmsnorm-deploy demo

$(VENV)/ready-demo: pyproject.toml ops/CMakeLists.txt $(shell find ops -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.map')
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[ort]' \
		--config-settings=cmake.define.RMSNORM_DEPLOY_CUDA=OFF
	touch $@

$(VENV)/ready-dev: pyproject.toml ops/CMakeLists.txt $(shell find ops -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.map')
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev,ort]' \
		--config-settings=cmake.define.RMSNORM_DEPLOY_WERROR=ON \
		--config-settings=cmake.define.RMSNORM_DEPLOY_CUDA_REPORT=ON
	touch $@

# One small environment for each older onnxruntime.
.venvs/ort-%/ready:
	$(PYTHON) -m venv .venvs/ort-$*
	.venvs/ort-$*/bin/python -m pip install -q --disable-pip-version-check 'onnxruntime==$*' 'numpy<2.3' onnx ml_dtypes pytest
	touch $@

# Without PyTorch its sample is not tested, and the test says so.
.venvs/torch/ready:
	$(PYTHON) -m venv .venvs/torch
	if .venvs/torch/bin/python -m pip install -q --disable-pip-version-check '$(TORCH)' onnxscript onnxruntime onnx-ir; \
	then touch $@; else echo "no PyTorch: its sample is not tested"; fi

venv: $(VENV)/ready-dev

environments: venv $(OLD_ONNXRUNTIMES:%=.venvs/ort-%/ready) .venvs/torch/ready .venvs/docs/ready

test:
	$(MAKE) -j4 environments
	$(MAKE) lint unit

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(NATIVE)

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

# Whole files go to two workers, in the order of tests/conftest.py.
unit: venv
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=40

# Executions of each kind; the suite runs a few hundred with a fixed seed. What is found goes to build/fuzz.
FUZZ_SEED    ?= 1
FUZZ_MODELS  ?= 5000
FUZZ_BYTES   ?= 100000
FUZZ_NORMS   ?= 100000
FUZZ_STREAMS ?= 3000
FUZZ_CALLS   ?= 10000
FUZZ_FOLDERS ?= 300

fuzz: venv
	$(BIN)/python -m pip install -q --disable-pip-version-check atheris || echo "no atheris: bytes are chosen at random"
	for kind in "models $(FUZZ_MODELS)" "octets $(FUZZ_BYTES)" "texts $(FUZZ_BYTES)" "guided $(FUZZ_BYTES)" \
	    "recognition $(FUZZ_NORMS)" "convert $(FUZZ_STREAMS)" "calls $(FUZZ_CALLS)" \
	    "folders $(FUZZ_FOLDERS)" "logs $(FUZZ_FOLDERS)"; do \
	    set -- $$kind; $(BIN)/python -m tests.fuzz $$1 --seed $(FUZZ_SEED) --count $$2 || failed=1; \
	done; test -z "$$failed"

# Killed runs, full disks, inputs that change, threads and sessions, in full; the suite runs small counts.
faults: venv
	$(BIN)/python -m tests.faults $(FAULTS)

# What each runtime makes of each form of output; it makes an environment of its own with them.
runtimes: venv
	$(BIN)/python -m benchmarks.runtimes

# Fusing before and after other tools; those that are no dependency are put beside the environment.
pipelines: venv .venvs/pipelines/ready
	PYTHONPATH=.venvs/pipelines $(BIN)/python -m benchmarks.pipelines
	PYTHONPATH=.venvs/pipelines $(BIN)/python -m benchmarks.genai

# The same with the tools that need PyTorch, as in: make pipelines-torch TORCH='torch==2.13.0+cpu'
pipelines-torch: venv .venvs/pipelines-torch/ready
	PYTHONPATH=.venvs/pipelines-torch $(BIN)/python -m benchmarks.pipelines --needs optimum,olive
	PYTHONPATH=.venvs/pipelines-torch $(BIN)/python samples/olive_pass.py
	PYTHONPATH=.venvs/pipelines-torch $(BIN)/python samples/optimum_session.py

.venvs/pipelines-torch/ready: | venv
	$(BIN)/python -m pip install -q --disable-pip-version-check --target .venvs/pipelines-torch \
		'$(TORCH)' 'optimum-onnx[onnxruntime]==0.1.0' olive-ai==0.13.0 requests
	touch $@

.venvs/pipelines/ready: | venv
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --target .venvs/pipelines \
		onnxconverter-common==1.16.0 onnxslim==0.1.98 onnxsim==0.8.1 colorama \
		onnxruntime-genai==0.18.0
	touch $@

# Versions of Python and of what this project uses, each in an environment of its own; about ten minutes.
matrix: venv
	$(BIN)/python -m benchmarks.matrix

# Needs a GPU, and no environment of this project: it uses what PYTHON has, as in: make gpu-check PYTHON=python3.12
gpu-check:
	$(PYTHON) -m benchmarks.gpu_check $(GPU_CHECK)

# The pages as a site in build/site; what is made from the code is made first.
docs: venv .venvs/docs/ready
	$(BIN)/python -m tests.docs.reference
	NO_MKDOCS_2_WARNING=1 .venvs/docs/bin/mkdocs build --strict --quiet

# Without mkdocs the site is not built, and the test of it says so.
.venvs/docs/ready:
	$(PYTHON) -m venv .venvs/docs
	if .venvs/docs/bin/python -m pip install -q --disable-pip-version-check 'mkdocs-material>=9.5'; \
	then touch $@; else echo "no mkdocs: the site is not built"; fi

# A wheel for every machine that runs onnxruntime, and the source distribution, all in dist/. zig compiles for all of
# them; no other compiler is needed.
wheels: .venvs/wheels/ready
	PATH="$(CURDIR)/.venvs/wheels/bin:$$PATH" .venvs/wheels/bin/python ops/wheels/make.py $(WHEELS)

.venvs/wheels/ready:
	$(PYTHON) -m venv .venvs/wheels
	.venvs/wheels/bin/python -m pip install -q --disable-pip-version-check \
		build 'scikit-build-core>=1.0' 'cmake>=3.18' ninja ziglang==0.17.1
	touch $@

# Whether what lies in dist/ may be released: versions, changelog, files, documentation, and that old files still run.
release-check: venv wheels
	$(BIN)/python ops/wheels/release_check.py

clean:
	rm -rf $(VENV) .venvs build dist
