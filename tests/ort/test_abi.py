"""ops/ort/abi.h against an official header, where one is installed; the Python wheels of onnxruntime have none."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.native import compiler

ROOT = Path(__file__).resolve().parents[2]
HEADER = "onnxruntime_c_api.h"
# Members of OrtCustomOp in our words and in the official ones.
MEMBERS = {
    "version": "version",
    "create_kernel": "CreateKernel",
    "get_name": "GetName",
    "get_provider": "GetExecutionProviderType",
    "get_input_type": "GetInputType",
    "get_input_count": "GetInputTypeCount",
    "get_output_type": "GetOutputType",
    "get_output_count": "GetOutputTypeCount",
    "compute": "KernelCompute",
    "destroy_kernel": "KernelDestroy",
    "get_input_characteristic": "GetInputCharacteristic",
    "get_output_characteristic": "GetOutputCharacteristic",
    "get_input_memory": "GetInputMemoryType",
    "variadic_input_min": "GetVariadicInputMinArity",
    "variadic_input_same": "GetVariadicInputHomogeneity",
    "variadic_output_min": "GetVariadicOutputMinArity",
    "variadic_output_same": "GetVariadicOutputHomogeneity",
    "create_kernel_status": "CreateKernelV2",
    "compute_status": "KernelComputeV2",
    "infer_shape": "InferOutputShapeFn",
    "start_version": "GetStartVersion",
    "end_version": "GetEndVersion",
    "may_inplace": "GetMayInplace",
    "release_inplace": "ReleaseMayInplace",
    "alias": "GetAliasMap",
    "release_alias": "ReleaseAliasMap",
}
VALUES = {
    "ort::kFail": "ORT_FAIL",
    "ort::kInvalidArgument": "ORT_INVALID_ARGUMENT",
    "ort::kNotImplemented": "ORT_NOT_IMPLEMENTED",
    "ort::kInvalidGraph": "ORT_INVALID_GRAPH",
    "ort::kRequired": "INPUT_OUTPUT_REQUIRED",
    "ort::kOptional": "INPUT_OUTPUT_OPTIONAL",
    "RMS_NORM_FLOAT32": "ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT",
    "RMS_NORM_FLOAT16": "ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16",
    "RMS_NORM_FLOAT64": "ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE",
    "RMS_NORM_BFLOAT16": "ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16",
}


def header_folder():
    """The folder of an official header: from the environment, or one of the usual places."""
    places = [Path("/usr/include"), Path("/usr/local/include"), Path("/opt/onnxruntime/include")]
    if os.environ.get("ONNXRUNTIME_INCLUDE_DIR"):
        places.insert(0, Path(os.environ["ONNXRUNTIME_INCLUDE_DIR"]))
    for place in places:
        for folder in (place, place / "onnxruntime", place / "onnxruntime" / "core" / "session"):
            if (folder / HEADER).is_file():
                return folder
    return None


def slots():
    text = (ROOT / "ops" / "ort" / "abi.h").read_text()
    return re.findall(r"^  F\((\w+), (\d+),", text, re.MULTILINE)


def test_positions_are_in_order_and_unique():
    numbers = [int(number) for _, number in slots()]
    assert numbers == sorted(set(numbers))
    assert len(numbers) > 30


def test_the_declarations_agree_with_the_official_header(tmp_path):
    folder = header_folder()
    if folder is None:
        pytest.skip(f"no {HEADER} found; install libonnxruntime-dev or set ONNXRUNTIME_INCLUDE_DIR")
    ours = "rmsnorm_deploy::ort::CustomOp"
    claims = [
        "sizeof(rmsnorm_deploy::ort::ApiBase) == sizeof(OrtApiBase)",
        "offsetof(rmsnorm_deploy::ort::ApiBase, get_api) == offsetof(OrtApiBase, GetApi)",
        "offsetof(rmsnorm_deploy::ort::ApiBase, version_string) == offsetof(OrtApiBase, GetVersionString)",
        "rmsnorm_deploy::ort::kApiVersion <= ORT_API_VERSION",
    ]
    claims += [f"rmsnorm_deploy::ort::{name} * sizeof(void*) == offsetof(OrtApi, {name})" for name, _ in slots()]
    claims += [f"offsetof({ours}, {mine}) == offsetof(OrtCustomOp, {theirs})" for mine, theirs in MEMBERS.items()]
    claims += [f"static_cast<int>({mine}) == static_cast<int>({theirs})" for mine, theirs in VALUES.items()]
    source = tmp_path / "abi.cpp"
    lines = [f"#include <{HEADER}>", "#include <cstddef>", '#include "ort/abi.h"', '#include "include/rms_norm.h"']
    lines.append("namespace ort = rmsnorm_deploy::ort;")
    lines += [f'static_assert({claim}, "differs from the official header");' for claim in claims]
    source.write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [*compiler(), "-std=c++17", f"-I{folder}", f"-I{ROOT / 'ops'}", "-fsyntax-only", source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    fields = re.search(r"struct CustomOp \{(.*?)\n\};", (ROOT / "ops" / "ort" / "abi.h").read_text(), re.DOTALL)[1]
    declared = re.findall(r"\(\*(\w+)\)\(", fields)
    assert ["version", *declared] == list(MEMBERS)
