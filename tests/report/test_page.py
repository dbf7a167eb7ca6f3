"""The page, by its text alone: well-formed, without network, everything of the model escaped, and of a bounded size."""

import dataclasses
import html.parser
import itertools
import re

import onnx
import pytest

import rmsnorm_deploy
from rmsnorm_deploy.check.result import SiteCheck, VerificationResult
from rmsnorm_deploy.fusing.report import FusionReport
from rmsnorm_deploy.model.load import to_ir
from rmsnorm_deploy.recognise.match import Miss, Site, Stage
from rmsnorm_deploy.report.content import MOST_MISSES, MOST_NORMS, content
from rmsnorm_deploy.report.page import page
from rmsnorm_deploy.report.style import STYLE
from rmsnorm_deploy.report.summary import summary
from tests.report.conftest import EVIL, GEMMA, evil_model
from tests.support.seeded import Norm

EMPTY = {"meta", "br", "link", "img", "input", "hr"}


class Reader(html.parser.HTMLParser):
    """Every element with its attributes and the elements around it; ends have to fit their beginnings."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.open = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert len(dict(attributes)) == len(attributes)
        self.elements.append((tag, dict(attributes), tuple(self.open)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), tuple(self.open)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)


@pytest.fixture(params=["full.html", "evil.html"])
def read(request, reports):
    return Reader(reports.texts[request.param])


def test_it_is_well_formed_and_asks_for_nothing(read):
    ids = [a["id"] for _, a, _ in read.elements if "id" in a]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[A-Za-z][\w-]*", i) for i in ids)
    for tag, attributes, _ in read.elements:
        assert tag not in ("script", "img", "link", "iframe", "object", "embed", "form", "base", "image", "use")
        assert not any(name.startswith("on") for name in attributes)
        assert {"src", "srcset", "style", "action", "xlink:href"}.isdisjoint(attributes)
        for name, value in attributes.items():
            if name in ("href", "marker-end"):
                assert re.sub(r"^url\((.*)\)$", r"\1", value)[1:] in ids, "links go to the page itself"
            if name in ("aria-labelledby", "aria-describedby"):
                assert set(value.split()) <= set(ids)
    assert "url(" not in STYLE
    assert "@import" not in STYLE


def test_it_is_accessible(read):
    heads = [int(tag[1]) for tag, _, _ in read.elements if re.fullmatch("h[1-6]", tag)]
    assert heads[0] == 1
    assert heads.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(heads))
    tags = [tag for tag, _, _ in read.elements]
    assert tags.count("table") == tags.count("caption") > 0
    for tag, attributes, _ in read.elements:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-labelledby"]
        if tag == "th":
            assert attributes["scope"] in ("col", "row")
        if "tabindex" in attributes:
            assert attributes["role"] == "region"
            assert attributes["aria-label"]
    assert ("html", {"lang": "en"}) in [e[:2] for e in read.elements]


def luminance(colour):
    full = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    parts = [int(full[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_stand_out(scheme):
    colours = dict(re.findall(r"--(\w+):(#\w+)", re.findall(r":root\{(.*?)\}", STYLE, re.DOTALL)[scheme]))
    for text, ground in (
        *((t, g) for t in ("ink", "soft", "link", "bad", "good") for g in ("page", "fill")),
        *(("ink", g) for g in ("new", "stop")),
    ):
        light, dark = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def test_nothing_of_a_hostile_model_is_more_than_text(reports):
    text, read = reports.texts["evil.html"], Reader(reports.texts["evil.html"])
    said = "".join(read.texts)
    for shown in ("<script>alert(1)</script>", "\\u202ereversed\\u2066", "\\u0000\\u0007\\u001b[31m"):
        assert shown in said
    assert "https://evil.example" in said, "it is text, and no link"
    assert "L" * 200 not in text.partition("<h3>Commands</h3>")[0]
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f\x7f]", text)
    assert "\u0301" * 3 not in text
    assert len(text) < 200_000


def test_it_has_every_norm_and_near_miss(reports):
    said = "".join(Reader(reports.texts["full.html"]).texts)
    for norm in reports.fusion.fused:
        for shown in (
            norm.node,
            norm.output,
            norm.x,
            norm.scale,
            norm.spelling,
            "epsilon 1e-06",
            "output_type float16",
        ):
            assert shown in said
    for site in reports.full["verification"].sites:
        assert f"{site.error:.3g}" in said
        assert f"{site.original_error:.3g}" in said
    for shown in ("PASSED", "120 \u00b5s", "60.5 \u00b5s", "1.98 times as fast", "a note", "'a <b>.onnx'", "float16"):
        assert shown in said
    assert "rmsnorm_deploy::AddRMSNorm" in said
    said = "".join(Reader(reports.texts["evil.html"]).texts)
    assert "3 places left as they were" in said
    assert said.count("goes into Relu") == 3
    assert "here it began" in said
    assert "here it stopped" in said


def drawings(text, name):
    """What stands in the boxes of a drawing."""
    svg = re.search(rf'<svg class="graph"[^>]*aria-labelledby="{name}-t .*?</svg>', text, re.DOTALL)[0]
    return [re.findall(r"<text[^>]*>(.*?)</text>", g) for g in re.findall(r'<g class="box.*?</g>', svg, re.DOTALL)]


def test_a_spelling_is_drawn_before_and_after(reports):
    text, norm = reports.texts["full.html"], reports.fusion.fused[0]
    number = re.search(rf">S(\d+): 1 norm, {norm.op}<", text)[1]
    model = onnx.load(GEMMA)
    types = {n.name: n.op_type for n in model.graph.node}
    before = {lines[1]: lines[0] for lines in drawings(text, f"s{number}-before") if len(lines) > 1}
    assert {name: types[name] for name in norm.removed} == {n: t for n, t in before.items() if n in norm.removed}
    after = drawings(text, f"s{number}-after")
    heads = [lines[0] for lines in after]
    assert f"rmsnorm_deploy::{norm.op}" in heads
    assert {norm.x, norm.scale, norm.output} <= set(heads)
    assert not {"Pow", "ReduceMean", "Sqrt"} & set(heads)


@pytest.mark.parametrize("form", ["onnx", "ort", "standard"])
def test_the_other_forms_are_drawn_as_well(form):
    fused, fusion = rmsnorm_deploy.fuse(GEMMA, form=form)
    said = page(content("m", to_ir(onnx.load(GEMMA)), to_ir(fused), fusion))
    heads = [lines[0] for lines in drawings(said, "s1-after")]
    wanted = {"onnx": "RMSNormalization", "ort": "SimplifiedLayerNormalization", "standard": "ReduceMean"}[form]
    assert any(wanted in head for head in heads), heads


def test_a_seeded_fault_is_seen():
    norm = Norm(rmsnorm_deploy.fuse(GEMMA)[0])
    norm.set("epsilon", norm.attributes["epsilon"] * 10)
    result = rmsnorm_deploy.verify(GEMMA, norm.model)
    assert not result.passed
    fusion = rmsnorm_deploy.explain(GEMMA)
    made = content("m", to_ir(onnx.load(GEMMA)), to_ir(norm.model), fusion, verification=result)
    said = "".join(Reader(page(made)).texts)
    assert "FAILED" in said
    assert f"differs: {result.first_fault.reason}"[:60] in said
    assert result.first_fault.fault[:60] in said
    assert "**FAILED**" in summary(made)
    assert result.first_fault.fault[:40] in summary(made)


def many(count, fusion):
    """A report of very many norms and near-misses, every one of another spelling, one of them with a fault."""
    norms = tuple(
        dataclasses.replace(
            fusion.fused[0], node=f"{EVIL[i % len(EVIL)]}{i}", output=f"{EVIL[i % len(EVIL)]}{i}", spelling=f"S > {i}"
        )
        for i in range(count)
    )
    misses = tuple(
        Miss(Site(f"{EVIL[i % len(EVIL)]}{i}", "ReduceMean", ""), Stage.OUTPUT, EVIL[i % len(EVIL)])
        for i in range(count)
    )
    return FusionReport(norms, misses, {f"Op{i}": 1 for i in range(count)}, {}, warnings=("w" * 5000,) * 500)


def test_very_many_norms_give_a_bounded_page_that_says_so(reports):
    fusion = many(10_000, reports.fusion)
    sites = tuple(
        SiteCheck(n.output, n.output, i != 9000, 1.0, 0.5, 2.0, "received", reason="" if i != 9000 else "it differs")
        for i, n in enumerate(fusion.fused)
    )
    result = VerificationResult((), 10_000, None, "", "float64", {}, 0, "1.32.0", sites=sites)
    original = to_ir(evil_model())
    made = content("m", original, original, fusion, verification=result)
    text = page(made)
    Reader(text)
    assert len(text) < 2_000_000
    assert f"{MOST_NORMS} of 10,000 norms" in text
    assert f"the other {10_000 - MOST_NORMS:,}" in text
    assert f"And {10_000 - MOST_MISSES:,} near-misses more" in text
    assert "spellings more" in text
    assert "it differs" in text, "a norm that differs is shown whatever its place"
    short = summary(made)
    assert len(short) < 60_000, "a comment on a pull request has room for 65,536 characters"
    assert "it differs" in short


def test_a_model_without_norms_has_a_page_too(reports):
    model = onnx.load(GEMMA)
    nothing = FusionReport((), (), {"Relu": 1}, {"Relu": 1})
    text = page(content("m", to_ir(model), to_ir(model), nothing))
    Reader(text)
    assert "no RMSNorm found" in text
