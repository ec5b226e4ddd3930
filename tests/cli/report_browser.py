"""Opens the page of `duet report` in a headless Chromium: no errors, curves, zoom, smoothing, hover, dark, narrow, harmless.

usage: report_browser.py PROGRAM    exit status 77: there is no Chromium here
"""

import html
import json
import re
import shutil
import subprocess
import sys
import time

import file_bytes
import run_folders
from program import Program, run_checks

CHROMIUM = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
NAME = '<script>hacked = 1</script><img src=x onerror="hacked = 1">&amp;'

# Before all else in the page: what goes wrong in it is kept.
WATCH = """<script>
window.wentWrong = [];
for (const kind of ["error", "unhandledrejection", "securitypolicyviolation"])
  addEventListener(kind, (event) => wentWrong.push(String(event.message || event.reason || event.blockedURI || event.target)), true);
for (const name of ["alert", "confirm", "prompt", "open"]) window[name] = () => wentWrong.push(name);
console.error = (...words) => wentWrong.push(words.join(" "));
window.requestAnimationFrame = (act) => setTimeout(act, 16);  // time is virtual, and nothing is shown
Element.prototype.setPointerCapture = () => {};  // there is no real pointer
</script>"""
# After it: what is asked of it once it is drawn. A pointer meets what is on top at its place.
ASK = """<script>{
const all = (selector) => [...document.querySelectorAll(selector)], one = (selector) => document.querySelector(selector);
const drawn = () => new Promise((done) => setTimeout(done, 200));
const point = (kind, x, y) =>
  document.elementFromPoint(x, y).dispatchEvent(new PointerEvent(kind, { clientX: x, clientY: y, bubbles: true }));
const set = (selector, change) => {
  const it = Object.assign(one(selector), change);
  it.dispatchEvent(new Event(it.type === "range" ? "input" : "change"));
  return drawn();
};
addEventListener("load", async () => {
  await drawn();
  const said = await (async () => { %s })();
  const requests = performance.getEntriesByType("resource").map((entry) => entry.name).filter((name) => !name.startsWith("data:"));
  parent.postMessage(JSON.stringify({ said, problems: [...wentWrong, ...requests] }), "*");
});
}</script>"""
FRAME = """<!doctype html><iframe src="test.html" width="%d" height="800"></iframe><pre id="said"></pre>
<script>addEventListener("message", (event) => { document.getElementById("said").textContent = event.data; });</script>"""


class ReportProgram(Program):
    def report(self, *runs):
        self.run("report", *runs, "--output", "page.html")

    def ask(self, script, *flags, width=1250):
        """What the body of a function in JavaScript returns on the page of the last report, in a frame of that width."""
        page = (self.folder / "page.html").read_text(encoding="utf-8")
        self.write("test.html", page.replace("<head>", "<head>" + WATCH, 1) + ASK % script)
        self.write("frame.html", FRAME % width)
        line = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                "--window-size=1300,900", f"--user-data-dir={self.folder}/profile", "--virtual-time-budget=20000", *flags,
                "--dump-dom", f"file://{self.folder}/frame.html"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)
        answer = re.search(r'<pre id="said">(.+?)</pre>', done.stdout, re.DOTALL)
        assert answer, f"the page does not answer:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        answer = json.loads(html.unescape(answer[1]))
        assert not answer["problems"], answer["problems"]
        return answer["said"]

    def run_folder(self, name, steps, **config):
        return run_folders.write_run(self.folder / name, run_folders.log_lines(steps, seed=config.pop("seed", 0)), **config)


def check_long_log(program):
    program.report(program.run_folder("long", 100_000))
    begun = time.monotonic()
    said = program.ask("""
const curve = () => one(".chart path.curve").getAttribute("d");
const ticks = () => [...one(".chart svg").querySelectorAll("g:first-of-type text")].map((text) => text.textContent).join();
const lengths = all(".chart path.curve").map((path) => path.getAttribute("d").length);
const hasNaN = one("#main").innerHTML.replaceAll(">NaN<", "").includes("NaN");
one(".chart").scrollIntoView({ block: "center" });
const box = one(".chart svg").getBoundingClientRect(), middle = box.y + box.height / 2, whole = ticks();
point("pointerdown", box.x + 0.4 * box.width, middle);
for (const kind of ["pointermove", "pointerup"]) point(kind, box.x + 0.6 * box.width, middle);
await drawn();
const zoomed = ticks(), canReset = !one(".chart button").hidden;
one(".chart button").click();
await drawn();
const reset = ticks();
point("pointermove", box.x + box.width / 2, middle);
const tip = one(".chart .tip").hidden ? "" : one(".chart .tip").textContent, plain = curve();
await set("#smoothing", { value: 0.9 });
const smooth = curve(), raw = all("path.raw").length;
await set("#log", { checked: true });
const log = curve();
await set("#axis", { value: "time" });
return { lengths, hasNaN, whole, zoomed, canReset, reset, tip, plain, smooth, raw, log, time: ticks() };""")
    print(f"100 000 lines: drawn and tried after {time.monotonic() - begun:.1f} s")
    assert time.monotonic() - begun < 40  # some seconds, unless others keep the machine busy
    assert len(said["lengths"]) >= 10 and min(said["lengths"]) > 20 and not said["hasNaN"], said["lengths"]
    assert said["zoomed"] != said["whole"] and said["canReset"] and said["reset"] == said["whole"], said
    assert "at step" in said["tip"], said["tip"]
    assert said["smooth"] != said["plain"] and said["raw"] > 0 and said["log"] != said["smooth"], "a control does nothing"
    assert " s" in said["time"] or "min" in said["time"], said["time"]


def check_looks(program):
    back = "return getComputedStyle(document.body).backgroundColor;"
    assert program.ask(back) != program.ask(back, "--blink-settings=preferredColorScheme=0"), "dark is as light"
    width = program.ask("return document.documentElement.scrollWidth;", width=380)
    assert width <= 380, f"the page is {width} wide in a window of 380"


def check_overlay(program):
    program.report(*(program.run_folder(f"run{i}", 60, seed=i, lr=0.001 * (i + 1)) for i in range(4)))
    before, after, differing = program.ask("""
const count = () => all(".chart[data-name=accuracy] path.curve").length, before = count();
one(".legend input").click();
await drawn();
return [before, count(), all("#config tr.differs").filter((row) => !row.hidden).length];""")
    assert (before, after) == (4, 3), "the legend does not hide a run"
    assert differing >= 2, differing  # work_dir and the rate


def check_many_runs(program):
    """No two share a colour, and one that failed before it wrote its config does not make all keys differ."""
    runs = [program.run_folder(f"many{i}", 5, seed=i, lr=0.001 * (i + 1)) for i in range(20)]
    program.write("a_failed/run.lock", "")
    program.write("a_failed/output.txt", "error: wrong")
    program.report("a_failed", *runs)
    for flags in ((), ("--blink-settings=preferredColorScheme=0",)):
        said = program.ask("""return {
  colours: all(".legend .swatch").map((it) => getComputedStyle(it).backgroundColor), state: one(".state-failed").textContent,
  note: one("#config .note").textContent, others: all("#config tr.differs td:nth-child(2).other").length };""", *flags)
        assert len(set(said["colours"])) == len(said["colours"]) == 21, said
        shown, of = said["note"].split(" of ")
        assert said["state"] == "failed" and int(shown) < int(of) / 2 and said["others"] == 0, said


def check_pictures(program):
    histogram = {"kind": "train", "step": 20, "weights/conv1": {"edges": [-1, -0.5, 0.5, 1], "counts": [1, 5, 2]}}
    lines = [*run_folders.log_lines(20), json.dumps(histogram)]
    run = run_folders.write_run(program.folder / "pictures", lines)
    for step, level in ((10, 80), (20, 160)):
        program.write(f"pictures/vis_data/val_3_{step}.png", file_bytes.picture(28, 28, bytes([level] * 28 * 28 * 3)))
    program.write("pictures/vis_data/val_4_20.png", b"no picture")
    # As wide as three panels, and of somebody's own: nobody says what is where, so the page does not either.
    program.write("pictures/vis_data/test_own_20.png", file_bytes.picture(84, 28, bytes(84 * 28 * 3)))
    program.report(run)
    said = program.ask("""
const image = document.images[0], box = image.getBoundingClientRect(), caption = () => all("figcaption")[1].textContent, newest = caption();
await set(".steps input", { value: 0 });
return { images: document.images.length, complete: image.complete, width: image.naturalWidth, shown: Math.min(box.width, box.height),
  legends: all(".panels, .classes").length, notes: one("#pictures .note").textContent, captions: [newest, caption()],
  bars: all("#histograms rect").length };""")
    assert (said["images"], said["complete"], said["width"]) == (2, True, 84) and said["shown"] >= 256, said
    assert said["legends"] == 0, "a guessed legend"
    assert all(part in said["notes"] for part in ("3 of 4 pictures", "1 is no whole PNG", f"{run}/vis_data")), said["notes"]
    assert said["captions"] == ["val, sample 3, step 20", "val, sample 3, step 10"] and said["bars"] == 3, said


def check_harmless(program):
    hostile = program.folder / NAME.replace("/", "%")
    lines = [*run_folders.log_lines(20), '{"kind":"text","step":20,"</script><script>hacked=1</script>":"<script>hacked = 1</script>"}',
             '{"kind":"train","step":21,"<b>loss</b>":1,"loss":"nan"}']
    run_folders.write_run(hostile, lines)
    program.report(hostile)
    said = program.ask("""return { hacked: typeof hacked, title: one("h1").textContent, scripts: document.scripts.length,
  markup: all("#main b > b, #main script").length };""")
    assert said == {"hacked": "undefined", "title": hostile.name, "scripts": 4, "markup": 0}, said  # two are the test's


if __name__ == "__main__":
    if CHROMIUM is None:
        print("there is no chromium: apt install chromium")
        sys.exit(77)
    run_checks(ReportProgram, check_long_log, check_looks, check_overlay, check_many_runs, check_pictures, check_harmless)
