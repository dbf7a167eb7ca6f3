"""The pages about loading the library from other languages: one call each, and Triton's format as documented."""

import re
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "how-to"
TEXT, NUMBER, MESSAGE = (
    getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind}") for kind in ("STRING", "INT32", "MESSAGE")
)


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)


def model_config():
    """The part of Triton's ModelConfig that the page uses, by the names of its documentation."""
    file = descriptor_pb2.FileDescriptorProto(name="config.proto", package="part", syntax="proto3")
    operations = file.message_type.add(name="ModelOperations")
    operations.field.add(name="op_library_filename", number=1, type=TEXT, label=3)
    config = file.message_type.add(name="ModelConfig")
    config.field.add(name="name", number=1, type=TEXT, label=1)
    config.field.add(name="max_batch_size", number=4, type=NUMBER, label=1)
    config.field.add(name="backend", number=17, type=TEXT, label=1)
    config.field.add(name="model_operations", number=18, type=MESSAGE, type_name=".part.ModelOperations", label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("part.ModelConfig"))()


def test_the_configuration_for_triton_is_one():
    (text,) = blocks("triton.md", "protobuf")
    config = text_format.Parse(text, model_config())
    assert config.backend == "onnxruntime"
    (path,) = config.model_operations.op_library_filename
    assert Path(path).name == "librmsnorm_deploy.so"
    assert Path(path).is_absolute()
    with pytest.raises(text_format.ParseError):
        text_format.Parse(text.replace("op_library_filename", "library"), model_config())


@pytest.mark.parametrize(
    ("page", "language", "call"),
    [
        ("c-and-cpp.md", "c", "RegisterCustomOpsLibrary_V2"),
        ("c-and-cpp.md", "cpp", "RegisterCustomOpsLibrary"),
        ("csharp.md", "csharp", "RegisterCustomOpLibrary"),
        ("rust.md", "rust", "with_operator_library"),
    ],
)
def test_a_page_shows_one_call(page, language, call):
    (text,) = blocks(page, language)
    assert len(re.findall(rf"\b{call}\(", text)) == 1
    assert re.search(r"rmsnorm_deploy\.(so|dll)", text)


def test_the_call_in_c_is_the_one_that_the_sample_makes():
    sample = (ROOT / "samples" / "cpp" / "run_model.cpp").read_text()
    assert "RegisterCustomOpsLibrary_V2" in sample


@pytest.mark.parametrize("page", sorted(p.name for p in PAGES.glob("*.md")))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!http|#)([^)#]+)", (PAGES / page).read_text()):
        assert (PAGES / target).exists(), target
