"""A report as one page of HTML: no script, nothing from the network, every text of the model escaped."""

from __future__ import annotations

from collections.abc import Iterable

from rmsnorm_deploy.report import words
from rmsnorm_deploy.report.chart import chart, duration
from rmsnorm_deploy.report.content import MOST_NORMS, Content, NearMiss, Row, Spelling
from rmsnorm_deploy.report.markup import figure, rest, right, scroll, section, table, verdict
from rmsnorm_deploy.report.style import STYLE
from rmsnorm_deploy.report.text import counted, escaped, isolated, number

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Even if something of the model got through, nothing would run and nothing be loaded."""
_MOST_LINES = 200
"""Lines of the tables that the caller's models make long, other than that of norms."""


def page(content: Content) -> str:
    """The page. Equal contents give equal texts."""
    title = f"RMSNorm report: {escaped(content.name)}"
    sections = [
        _counts(content),
        _layer_norms(content),
        _verification(content),
        _speed(content),
        _norms(content),
        _spellings(content),
        _misses(content),
        _operators(content),
        _made_by(content),
    ]
    found = words.verdict(content)
    checked = f"; {verdict(found[0], '', yes='verified', no='verification failed')}" if found is not None else ""
    date = f'<p class="soft">{escaped(content.date)}</p>' if content.date else ""
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escaped(_POLICY)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<header>",
            f"<h1>RMSNorm report: {isolated(content.name)}</h1>",
            f"<p>{escaped(words.headline_of(content), 400)}{checked}</p>{date}\n</header>\n<main>",
            *(s for s in sections if s),
            "</main>\n</body>\n</html>\n",
        ]
    )


def _counts(content: Content) -> str:
    tiles = "".join(f"<div><dt>{escaped(k)}</dt><dd>{escaped(v)}</dd></div>" for k, v in words.counts(content))
    warnings = "".join(f"<li>{escaped(w, 400)}</li>" for w in content.fusion.warnings[:_MOST_LINES])
    changed = words.changed(content.fusion)
    return section(
        "counts",
        "Counts",
        f'<dl class="tiles">{tiles}</dl>',
        f"<h3>Warnings</h3><ul>{warnings}</ul>" if warnings else "",
        table(
            "Operators of which there are more or fewer than before",
            ("operator", "before", "after"),
            ([isolated(n), right(f"{b:,}"), right(f"{a:,}")] for n, b, a in changed[:_MOST_LINES]),
        )
        + rest(len(changed) - _MOST_LINES, "operator"),
    )


def _layer_norms(content: Content) -> str:
    found = words.layer_norms(content)
    if not found:
        return ""
    rows = (
        [isolated(norms), verdict(done, "", yes="converted", no="left"), escaped(why, 600)]
        for norms, done, why in found[:_MOST_LINES]
    )
    heads = ("norms", "", "what was done, or what stands in the way")
    lines = table("LayerNorms that became RMSNorms, stream by stream, and those that did not", heads, rows)
    return section("layer-norms", "LayerNorms", lines, rest(len(found) - _MOST_LINES, "line"))


def _verification(content: Content) -> str:
    result, found = content.verification, words.verdict(content)
    if result is None or found is None:
        return ""
    passed, summary = found
    lines = [
        [
            isolated(c.output or "(all)"),
            escaped(f"{c.run}; {c.inputs} inputs"),
            right(number(c.original_error)),
            right(number(c.error)),
            right(number(c.allowed)),
            verdict(c.passed, c.reason),
        ]
        for c in sorted(result.checks, key=lambda c: c.passed)[:_MOST_LINES]
    ]
    alone = [
        [
            isolated(s.name),
            right(number(s.original_error)),
            right(number(s.error)),
            verdict(s.passed, words.fault(s)),
        ]
        for s in sorted(content.alone, key=lambda s: s.passed)[:_MOST_LINES]
    ]
    notes = "".join(f"<li>{escaped(n, 400)}</li>" for n in result.notes[:_MOST_LINES])
    return section(
        "verification",
        "Verification",
        f"<p>{verdict(passed, '', yes='PASSED', no='FAILED')}: {escaped(summary, 400)}</p>",
        f'<p class="soft">{escaped(words.conditions(result), 1200)}</p>',
        f'<p class="soft">Errors are in ULP, the spacing of the type\'s numbers at the largest value of the row, '
        f"against {escaped(result.truth or 'the original')}.</p>",
        table("Every output of the model", ("output", "run", "original", "fused", "allowed", "verdict"), lines)
        + rest(len(result.checks) - _MOST_LINES, "comparison"),
        table(
            "Norms of the fused model that are not in the list below", ("norm", "original", "fused", "verdict"), alone
        )
        + rest(len(content.alone) - _MOST_LINES, "norm"),
        f"<ul>{notes}</ul>" if notes else "",
    )


def _speed(content: Content) -> str:
    if content.bench is None:
        return ""
    figures, lines = [], []
    for i, c in enumerate(content.bench.comparisons):
        figures.append(
            f"<figure><h3>{escaped(c.what.capitalize())}: {words.speed(c)}</h3>{chart(c, f'chart{i + 1}')}"
            f"<figcaption>{escaped(c.detail, 600)}; against {escaped(c.baseline)}. Of ten turns, eight gave "
            f"{c.ratio_p10:.2f} to {c.ratio_p90:.2f} times. A line over a bar goes over eight of ten runs; without "
            "an end, it goes on."
            "</figcaption></figure>"
        )
        lines += [
            [
                escaped(c.what),
                escaped(t.variant),
                *(right(duration(v)) for v in (t.median, t.p10, t.p90)),
                right(f"{t.runs:,}"),
            ]
            for t in (c.before, c.after, *c.others)
        ]
    threads = content.bench.threads or "chosen by onnxruntime"
    notes = "".join(
        f"<li>{escaped(n, 400)}</li>" for n in [*words.shares(content.bench), *content.bench.notes[:_MOST_LINES]]
    )
    return section(
        "speed",
        "Speed",
        *figures,
        table("What was measured, in turns in one process", ("what", "variant", "median", "p10", "p90", "runs"), lines),
        f'<p class="soft">{escaped(content.bench.machine)}; threads within an operator: {escaped(str(threads))}</p>',
        f"<ul>{notes}</ul>" if notes else "",
    )


def _norms(content: Content) -> str:
    fusion = content.fusion
    if not content.rows:
        return section("norms", "Norms", f"<p>{escaped(words.headline(fusion), 400)}</p>")
    verified, timed = content.verification is not None, any(r.timed for r in content.rows)
    heads = ["no.", "place", "operator", "attributes", "spelling"]
    heads += ["error of the original", "error fused"] if verified else []
    heads += ["time"] if timed else []
    hidden = len(fusion.fused) - len(content.rows)
    said = f"{counted(len(fusion.fused), 'norm')}, in the order of the graph"
    if hidden > 0:
        said = f"{MOST_NORMS:,} of {said}; the other {hidden:,} are counted above, and `--json` has them"
    return section(
        "norms",
        "Norms",
        table(said, heads, ([*_norm(row, verified, timed, len(content.spellings))] for row in content.rows)),
    )


def _norm(row: Row, verified: bool, timed: bool, drawn_spellings: int) -> Iterable[str]:
    norm = row.norm
    place = (
        f'<td class="place">{isolated(words.place(norm))}<br><span class="soft">makes</span> {isolated(norm.output)}'
    )
    place += f'<br><span class="soft">of</span> {isolated(norm.x)}'
    if norm.residual:
        place += f' <span class="soft">plus</span> {isolated(norm.residual)}'
    if norm.scale:
        place += f'<br><span class="soft">scale</span> {isolated(norm.scale)}'
    link = f'<a href="#spelling-{row.spelling}">S{row.spelling}</a>'
    words_ = [f"<br>{escaped(note, 300)}" for note in norm.notes[:4]]
    if norm.kept:
        words_.append(f"<br>{counted(len(norm.kept), 'node')} stay, which others use")
    if norm.rounding != "same":
        words_.append(f"<br>rounding: {escaped(norm.rounding)}")
    yield right(f"{row.number:,}")
    yield place + "</td>"
    yield f'{escaped(norm.op)}<br><span class="soft">{escaped(norm.type.lower())}</span>'
    yield f'<td class="words">{escaped(words.attributes(norm.attributes), 400)}{"".join(words_)}</td>'
    yield link if row.spelling <= drawn_spellings else f"S{row.spelling}"
    if verified:
        before, after = words.error(row)
        yield right(before)
        check = row.check
        if check is not None and not check.passed:
            yield f'<td class="words">{after}<br>{verdict(False, words.fault(check))}</td>'
        else:
            yield right(after)
    if timed:
        yield right(words.time(row))


def _spellings(content: Content) -> str:
    if not content.spellings:
        return ""
    return section(
        "spellings",
        "Spellings, before and after",
        *(_spelling(s) for s in content.spellings),
        rest(content.spelling_count - len(content.spellings), "spelling"),
    )


def _spelling(spelling: Spelling) -> str:
    n, norm = spelling.number, spelling.norm
    figures = [
        figure(picture, f"s{n}-{side}", f"Spelling S{n}, {side}", f"{side.capitalize()}: {caption}")
        for side, picture, caption in (
            ("before", spelling.before, "as it was exported"),
            ("after", spelling.after, "as it is written"),
        )
    ]
    return (
        f'<section aria-labelledby="spelling-{n}"><h3 id="spelling-{n}">S{n}: {counted(spelling.count, "norm")}, '
        f"{escaped(norm.op)}</h3><p>{isolated(norm.spelling, 600)}; drawn is {isolated(words.place(norm))}.</p>"
        f'<div class="pair">{"".join(figures)}</div></section>'
    )


def _misses(content: Content) -> str:
    near = content.fusion.near_misses
    if not near:
        return section("left", "Near-misses", "<p>There is none: nothing was left that looks like an RMSNorm.</p>")
    return section(
        "left",
        f"Near-misses: {counted(len(near), 'place')} left as they were",
        *(_miss(i + 1, m) for i, m in enumerate(content.misses)),
        rest(len(near) - len(content.misses), "near-miss", "near-misses"),
    )


def _miss(n: int, found: NearMiss) -> str:
    miss = found.miss
    said = [
        ("why", escaped(miss.reason, 400)),
        ("got as far as", escaped(miss.stage.label)),
        ("stopped at", isolated(miss.node) if miss.node else ""),
        ("expected", escaped(miss.expected, 300)),
        ("found", escaped(miss.found, 300)),
        ("hint", escaped(miss.hint, 400)),
    ]
    rows = "".join(f'<tr><th scope="row">{k}</th><td>{v}</td></tr>' for k, v in said if v)
    return (
        f'<section aria-labelledby="miss-{n}"><h3 id="miss-{n}">{isolated(str(miss.site))} '
        f"({escaped(miss.site.op_type)})</h3>"
        f"{scroll(f'<table><caption>Why it stays</caption><tbody>{rows}</tbody></table>', f'Near-miss {n}')}"
        + figure(found.picture, f"m{n}", f"Near-miss {n} and what stands around it", "What stands around it")
        + "</section>"
    )


def _operators(content: Content) -> str:
    found = words.meanings(content.fusion.fused)
    if not found:
        return ""
    said = "".join(f"<dt><code>{escaped(name)}</code></dt><dd>{escaped(text, 600)}</dd>" for name, text in found)
    return section("operators", "The operators", f"<dl>{said}</dl>")


def _made_by(content: Content) -> str:
    rows = ([escaped(name), isolated(version)] for name, version in content.versions.items())
    commands = "\n".join(escaped(c, 2000) for c in content.commands)
    return section(
        "made-by",
        "Versions and commands",
        table("What took part", ("package", "release"), rows),
        f"<h3>Commands</h3><pre>{commands}</pre>" if commands else "",
    )
