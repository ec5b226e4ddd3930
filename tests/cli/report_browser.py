"""Opens the page of `duet report` in a headless Chromium: no errors, curves, zoom, smoothing, hover, dark, narrow, harmless.

usage: report_browser.py PROGRAM    exit status 77: there is no Chromium here
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import devtools
import file_bytes
import run_folders

# Places of the first chart, and what it shows.
CHART = "document.querySelector('.chart svg').getBoundingClientRect().toJSON()"
CURVE = "document.querySelector('.chart path.curve').getAttribute('d')"
TICKS = "[...document.querySelectorAll('.chart svg')[0].querySelectorAll('g:first-of-type text')].map((t) => t.textContent).join()"
OPENED = "performance.getEntriesByType('navigation')[0].loadEventEnd / 1000"
NAME = '<script>hacked = 1</script><img src=x onerror="hacked = 1">&amp;'


def execute(program, *words):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stdout, done.stderr)


def report(program, page, *runs):
    execute(program, "report", *runs, "--output", page)
    return page


def check_page(browser, page):
    seconds = browser.open(page)
    assert not browser.problems(), browser.problems()
    return seconds


def check_curves(browser):
    paths = browser.run("[...document.querySelectorAll('.chart path.curve')].map((path) => path.getAttribute('d').length)")
    assert len(paths) >= 10 and min(paths) > 20, paths
    assert "NaN" not in browser.run("document.getElementById('main').innerHTML.replaceAll('>NaN<', '')"), "a place is no number"


def check_zoom(browser):
    browser.run("document.querySelector('.chart').scrollIntoView({block: 'center'})")
    box, before = browser.run(CHART), browser.run(TICKS)
    middle = box["y"] + box["height"] / 2
    browser.drag((box["x"] + 0.4 * box["width"], middle), (box["x"] + 0.6 * box["width"], middle))
    assert browser.run(TICKS) != before, "dragging does not zoom"
    assert not browser.run("document.querySelector('.chart button').hidden")
    browser.run("document.querySelector('.chart button').click()")
    assert browser.run(TICKS) == before, "reset does not reset"


def check_hover(browser):
    box = browser.run(CHART)
    browser.mouse("mouseMoved", box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tip = browser.run("document.querySelector('.chart .tip').hidden ? '' : document.querySelector('.chart .tip').textContent")
    assert "at step" in tip, tip


def set_control(browser, selector, setting):
    browser.run(f"(() => {{ const it = document.querySelector('{selector}'); it.{setting}; "
                "it.dispatchEvent(new Event(it.type === 'range' ? 'input' : 'change')); })()")


def check_controls(browser):
    before = browser.run(CURVE)
    set_control(browser, "#smoothing", "value = 0.9")
    smooth = browser.run(CURVE)
    assert smooth != before and browser.run("document.querySelectorAll('path.raw').length") > 0, "the slider does not smooth"
    set_control(browser, "#log", "checked = true")
    assert browser.run(CURVE) != smooth, "the scale is not logarithmic"
    set_control(browser, "#axis", "value = 'time'")
    assert " s" in browser.run(TICKS) or "min" in browser.run(TICKS), browser.run(TICKS)
    assert not browser.problems(), browser.problems()


def check_looks(browser):
    back = "getComputedStyle(document.body).backgroundColor"
    colours = []
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        colours.append(browser.run(back))
    assert colours[0] != colours[1], colours
    browser.call("Emulation.setDeviceMetricsOverride", width=380, height=800, deviceScaleFactor=1, mobile=False)
    width = browser.run("new Promise((done) => setTimeout(() => done(document.documentElement.scrollWidth), 300))")
    assert width <= 380, f"the page is {width} wide in a window of 380"
    browser.call("Emulation.clearDeviceMetricsOverride")


def check_overlay(program, browser, folder):
    runs = [run_folders.write_run(folder / f"run{i}", run_folders.log_lines(60, seed=i), lr=0.001 * (i + 1)) for i in range(4)]
    check_page(browser, report(program, folder / "four.html", *runs))
    count = "document.querySelectorAll('.chart[data-name=accuracy] path.curve').length"
    assert browser.run(count) == 4, browser.run(count)
    browser.run("document.querySelector('.legend input').click()")
    assert browser.run(count) == 3, "the legend does not hide a run"
    differing = browser.run("[...document.querySelectorAll('#config tr.differs')].filter((row) => !row.hidden).length")
    assert differing >= 2, differing  # work_dir and the rate
    assert not browser.problems(), browser.problems()


def check_many_runs(program, browser, folder):
    """No two share a colour, and one that failed before it wrote its config does not make all keys differ."""
    runs = [run_folders.write_run(folder / f"many{i}", run_folders.log_lines(5, seed=i), lr=0.001 * (i + 1)) for i in range(20)]
    failed = folder / "a_failed"
    failed.mkdir()
    (failed / "run.lock").touch()
    (failed / "output.txt").write_text("error: wrong")
    check_page(browser, report(program, folder / "many.html", failed, *runs))
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        colours = browser.run("[...document.querySelectorAll('.legend .swatch')].map((it) => getComputedStyle(it).backgroundColor)")
        assert len(set(colours)) == len(colours) == 21, colours
    assert browser.run("document.querySelector('.state-failed').textContent") == "failed"
    shown, of = browser.run("document.querySelector('#config .note').textContent").split(" of ")
    assert int(shown) < int(of) / 2, (shown, of)
    assert browser.run("document.querySelectorAll('#config tr.differs td:nth-child(2).other').length") == 0


def check_pictures(program, browser, folder):
    lines = [*run_folders.log_lines(20), json.dumps({"kind": "train", "step": 20, "weights/conv1": {"min": -1, "max": 1, "counts": [1, 5, 2]}})]
    run = run_folders.write_run(folder / "pictures", lines)
    (run / "vis_data").mkdir()
    for step, level in ((10, 80), (20, 160)):
        (run / "vis_data" / f"val_3_{step}.png").write_bytes(file_bytes.picture(28, 28, bytes([level] * 28 * 28 * 3)))
    (run / "vis_data" / "val_4_20.png").write_bytes(b"no picture")
    # As wide as three panels, and of somebody's own: nobody says what is where, so the page does not either.
    (run / "vis_data" / "test_own_20.png").write_bytes(file_bytes.picture(84, 28, bytes(84 * 28 * 3)))
    check_page(browser, report(program, folder / "pictures.html", run))
    image = browser.run("(() => { const [image] = document.images; const box = image.getBoundingClientRect(); "
                        "return [document.images.length, image.complete && image.naturalWidth, box.width, box.height]; })()")
    assert image[:2] == [2, 84] and min(image[2:]) >= 256, image
    assert browser.run("document.querySelectorAll('.panels, .classes').length") == 0, "a guessed legend"
    notes = browser.run("document.querySelector('#pictures .note').textContent")
    assert "3 of 4 pictures" in notes and "1 is no whole PNG" in notes and f"{run}/vis_data" in notes, notes
    caption = "document.querySelectorAll('figcaption')[1].textContent"
    assert browser.run(caption) == "val, sample 3, step 20", browser.run(caption)
    set_control(browser, ".steps input", "value = 0")
    assert browser.run(caption) == "val, sample 3, step 10", browser.run(caption)
    assert browser.run("document.querySelectorAll('#histograms rect').length") == 3
    assert not browser.problems(), browser.problems()


def check_harmless(program, browser, folder):
    hostile = folder / NAME.replace("/", "%")
    lines = [*run_folders.log_lines(20), '{"kind":"text","step":20,"</script><script>hacked=1</script>":"<script>hacked = 1</script>"}',
             '{"kind":"train","step":21,"<b>loss</b>":1,"loss":"nan"}']
    run_folders.write_run(hostile, lines)
    check_page(browser, report(program, folder / "hostile.html", hostile))
    assert browser.run("typeof hacked") == "undefined", "a name ran as a script"
    assert browser.run("document.querySelector('h1').textContent") == hostile.name
    assert browser.run("document.scripts.length") == 2 and browser.run("document.querySelectorAll('#main b > b, #main script').length") == 0


def main():
    os.environ["OMP_NUM_THREADS"] = "1"
    program = os.path.abspath(sys.argv[1])
    chromium = devtools.find_browser()
    if chromium is None:
        print("there is no chromium: apt install chromium")
        sys.exit(77)
    browser = devtools.Browser(chromium)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            run = run_folders.write_run(folder / "long", run_folders.log_lines(100_000))
            page = report(program, folder / "long.html", run)
            seconds = check_page(browser, page)
            print(f"100 000 lines: {page.stat().st_size / 1e6:.2f} MB, loaded after {browser.run(OPENED):.2f} s, drawn after {seconds:.2f} s")
            assert seconds < 20, seconds  # some tenths of a second, unless others keep the machine busy
            check_curves(browser)
            check_zoom(browser)
            check_hover(browser)
            check_controls(browser)
            check_looks(browser)
            check_overlay(program, browser, folder)
            check_many_runs(program, browser, folder)
            check_pictures(program, browser, folder)
            check_harmless(program, browser, folder)
    finally:
        browser.close()
    print("report_browser: all checks passed")


if __name__ == "__main__":
    main()
