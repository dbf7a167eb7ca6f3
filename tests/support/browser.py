"""A headless browser that measures pages: whether anything overlaps or leaves the page, at any width, light or dark."""

import html
import json
import re
import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

MEASURE = """
const faults = [];
const seen = [];
const root = document.documentElement;
if (root.scrollWidth > root.clientWidth + 1) faults.push(`wider than the page: ${root.scrollWidth}`);
const short = (text) => text.trim().slice(0, 40);
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, holder = node.parentElement;
  if (!node.data.trim() || holder.closest('style,title,desc,script')) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  const clip = holder.closest('.scroll');
  const frame = clip ? clip.getBoundingClientRect() : null;
  for (const r of range.getClientRects()) {
    let [left, right] = [r.left + 0.5, r.right - 0.5];
    const [top, bottom] = [r.top + r.height * 0.2, r.bottom - r.height * 0.2];
    if (!frame && (right > root.clientWidth + 1 || left < -1)) faults.push(`outside: ${short(node.data)}`);
    if (frame) { left = Math.max(left, frame.left); right = Math.min(right, frame.right); }
    if (right > left && bottom > top) seen.push([left, top, right, bottom, node]);
  }
}
seen.sort((a, b) => a[1] - b[1]);
for (let i = 0; i < seen.length; i++)
  for (let k = i + 1; k < seen.length && seen[k][1] < seen[i][3]; k++) {
    const [a, b] = [seen[i], seen[k]];
    if (a[4] !== b[4] && a[0] < b[2] && b[0] < a[2])
      faults.push(`overlap: ${short(a[4].data)} / ${short(b[4].data)}`);
  }
for (const svg of document.querySelectorAll('svg.graph')) {
  const boxes = [...svg.querySelectorAll('rect')].map((r) => r.getBBox());
  const all = svg.viewBox.baseVal;
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
    if (a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height)
      faults.push('two boxes meet');
  }));
  for (const a of boxes) if (a.x < 0 || a.y < 0 || a.x + a.width > all.width || a.y + a.height > all.height)
    faults.push('a box leaves its drawing');
  for (const g of svg.querySelectorAll('g')) {
    const frame = g.querySelector('rect').getBBox();
    for (const t of g.querySelectorAll('text')) {
      const b = t.getBBox();
      if (b.x < frame.x || b.x + b.width > frame.x + frame.width || b.y < frame.y - 1 ||
          b.y + b.height > frame.y + frame.height + 1) faults.push(`text leaves its box: ${short(t.textContent)}`);
    }
  }
  for (const path of svg.querySelectorAll('.edge')) {
    const length = path.getTotalLength();
    for (let d = 2; d < length - 2; d += 3) {
      const p = path.getPointAtLength(d);
      if (boxes.some((b) => p.x > b.x + 1 && p.x < b.x + b.width - 1 && p.y > b.y + 1 && p.y < b.y + b.height - 1)) {
        faults.push('a line goes through a box');
        break;
      }
    }
  }
}
parent.postMessage({
  at: Number(window.name), faults: [...new Set(faults)].slice(0, 400), texts: seen.length, width: root.clientWidth,
  page: getComputedStyle(document.body).backgroundColor,
}, '*');
"""

OUTER = """<!DOCTYPE html><meta charset="utf-8"><body>%s<pre id="found"></pre><script>
const found = [];
addEventListener('message', (m) => {
  found.push(m.data);
  document.getElementById('found').textContent = JSON.stringify(found);
});
</script>%s"""


def browser():
    """The path of a browser, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def measured(pages, folder, *, dark=False):
    """What the browser finds, for each of ``pages``: pairs of HTML and width in pixels."""
    frames = []
    for i, (text, width) in enumerate(pages):
        policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
        assert policy.search(text), "a page without a policy would not need this"
        inner = policy.sub("", text).replace("</body>", f"<script>{MEASURE}</script></body>")
        frames.append(
            f'<iframe name="{i}" style="width:{width}px;height:900px;border:0" srcdoc="{html.escape(inner)}"></iframe>'
        )
    outer = folder / "outer.html"
    outer.write_text(OUTER % ("", "".join(frames)), encoding="utf-8")
    command = [
        *(browser(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"),
        *("--no-first-run", "--hide-scrollbars", "--disable-background-networking", "--virtual-time-budget=4000"),
        *(f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", outer.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)[1]))
    assert len(found) == len(pages)
    return sorted(found, key=lambda one: one["at"])
