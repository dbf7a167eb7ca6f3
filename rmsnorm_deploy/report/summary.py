"""A report in Markdown, short enough for a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmsnorm_deploy.report import words
from rmsnorm_deploy.report.chart import duration
from rmsnorm_deploy.report.content import Content
from rmsnorm_deploy.report.text import code, counted, number, sentence

_MOST_NORMS = 40
_MOST_LINES = 20


def summary(content: Content) -> str:
    """The summary. Equal contents give equal texts; a platform's limit on the length of a comment is far away."""
    fusion = content.fusion
    lines = [f"## RMSNorm report: {code(content.name)}", "", sentence(words.headline_of(content))]
    lines += ["", sentence(content.date)] if content.date else []
    lines += _table(("", ""), ([k, code(v)] for k, v in words.counts(content)))
    if fusion.warnings:
        lines += ["", *(f"- warning: {sentence(w)}" for w in fusion.warnings[:_MOST_LINES])]
    for part in (_layer_norms, _verification, _speed, _norms, _misses, _made_by):
        lines += part(content)
    return "\n".join(lines) + "\n"


def _layer_norms(content: Content) -> list[str]:
    found = words.layer_norms(content)
    rows = (
        [code(norms, 400), "converted" if done else "left", sentence(why, 400)]
        for norms, done, why in found[:_MOST_LINES]
    )
    lines = _table(("LayerNorms", "", "what was done, or what stands in the way"), rows) if found else []
    return lines + _rest(len(found) - _MOST_LINES, "line")


def _verification(content: Content) -> list[str]:
    verdict, result = words.verdict(content), content.verification
    if verdict is None or result is None:
        return []
    lines = ["", "### Verification", "", f"**{'PASSED' if verdict[0] else 'FAILED'}**: {sentence(verdict[1])}"]
    lines += ["", sentence(words.conditions(result), 600)]
    failed = [c for c in result.checks if not c.passed]
    rows = ([code(c.output or "(all)"), code(c.run), number(c.error), sentence(c.reason)] for c in failed[:_MOST_LINES])
    lines += _table(("output", "run", "error, ULP", "why"), rows)
    faults = [s for s in result.sites if not s.passed]
    lines += ["", *(f"- {code(str(s), 400)}" for s in faults[:_MOST_LINES])] if faults else []
    return lines + _rest(len(faults) - _MOST_LINES, "norm") + _rest(len(failed) - _MOST_LINES, "comparison")


def _speed(content: Content) -> list[str]:
    if content.bench is None:
        return []
    rows = (
        [
            sentence(c.what),
            duration(c.before.median),
            duration(c.after.median),
            f"{c.ratio:.2f} ({c.ratio_p10:.2f} to {c.ratio_p90:.2f})" + ("" if c.differs else f": {words.speed(c)}"),
            sentence(c.detail, 120),
        ]
        for c in content.bench.comparisons
    )
    return [
        *("", "### Speed"),
        *_table(("what", "before", "after", "times as fast (p10 to p90)", "inputs"), rows),
        *("", sentence(content.bench.machine)),
        *(f"- {sentence(n)}" for n in [*words.shares(content.bench), *content.bench.notes[:_MOST_LINES]]),
    ]


def _norms(content: Content) -> list[str]:
    if not content.rows:
        return []
    verified, timed = content.verification is not None, any(r.timed for r in content.rows)
    heads = ["norm", "operator", "attributes", "spelling"]
    heads += ["error before, ULP", "after, ULP"] if verified else []
    heads += ["time"] if timed else []
    shown = sorted(content.rows, key=lambda r: r.check is None or r.check.passed)[:_MOST_NORMS]
    rows = []
    for row in sorted(shown, key=lambda r: r.number):
        cells = [code(words.place(row.norm)), code(row.norm.op), code(words.attributes(row.norm.attributes), 300)]
        cells.append(f"S{row.spelling}")
        cells += words.error(row) if verified else ()
        cells += [words.time(row)] if timed else []
        rows.append(cells)
    total = len(content.fusion.fused)
    return [
        *("", f"<details><summary>{counted(total, 'norm')}, {counted(content.spelling_count, 'spelling')}</summary>"),
        *_table(heads, rows),
        *_rest(total - len(rows), "norm"),
        "",
        *(f"- S{s.number}, {counted(s.count, 'norm')}: {code(s.norm.spelling, 400)}" for s in content.spellings),
        *(f"- {code(name)}: {code(text, 400)}" for name, text in words.meanings(content.fusion.fused)),
        *("", "</details>"),
    ]


def _misses(content: Content) -> list[str]:
    near = content.fusion.near_misses
    if not near:
        return []
    shown = near[:_MOST_LINES]
    return [
        *("", f"### {counted(len(near), 'near-miss', 'near-misses')}", ""),
        *(
            f"- {code(str(m.site))}: {sentence(m.reason)}{f'; hint: {sentence(m.hint)}' if m.hint else ''}"
            for m in shown
        ),
        *_rest(len(near) - len(shown), "near-miss", "near-misses"),
    ]


def _made_by(content: Content) -> list[str]:
    said = ", ".join(f"{name} {code(version)}" for name, version in content.versions.items())
    return ["", f"Made by {said}.", *(line for c in content.commands for line in ("", code(c, 2000)))]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table; nothing without rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *lines] if lines else []


def _rest(count: int, one: str, many: str = "") -> list[str]:
    return ["", f"And {counted(count, one, many)} more."] if count > 0 else []
