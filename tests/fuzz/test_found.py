"""What a fuzzer found once, made small and mended: each model goes through the whole path again and shows nothing."""

import base64
import zlib
from pathlib import Path

import pytest

from tests.fuzz.models import findings_of
from tests.fuzz.process import Worker

FOUND = sorted(Path(__file__).with_name("found").glob("*.onnx"))


@pytest.fixture(scope="module")
def worker():
    with Worker("tests.fuzz.models") as made:
        yield made


@pytest.mark.parametrize("file", FOUND, ids=lambda file: file.stem)
def test_it_is_mended(worker, file):
    data = file.read_bytes()
    for seed in range(4):  # what the path leaves to chance
        request = {"data": base64.b64encode(data).decode(), "seed": f"{zlib.crc32(data)} {seed}"}
        found, counts = findings_of(worker, request)
        assert not found
        assert counts
