"""R6: configs that a grammar makes: of a good one, keys are renamed, dropped, moved and doubled, and values become others.

Each is tried out by a dry run of a step. Whatever is wrong must end it with 2, or 3 for data, and a message that names file
or key, never with a stack trace, an assertion or a signal. What is in order by chance may run, and diverge (5): at a rate of 1e300.
"""

import json
import re
import resource

import small_data
from torture import FORBIDDEN

GOOD = {
    "model": {"type": "SmallCnn", "channels": [4], "dropout": 0.1},
    "data": {"train": {"type": "FashionMnist", "images": "data/images", "labels": "data/labels", "batch_size": 16,
                       "num_workers": 1},
             "val": {"type": "FashionMnist", "images": "data/images", "labels": "data/labels.gz", "batch_size": 32}},
    "trainer": {"max_steps": 4, "accumulate": 2, "val_interval": 2},
    "optim_wrapper": {"optimizer": {"type": "AdamW", "lr": 0.001, "betas": [0.9, 0.95]}, "clip_grad": {"max_norm": 1.0},
                      "amp": "bf16", "non_finite": "skip"},
    "param_scheduler": [{"type": "Linear", "end": 2}, {"type": "Cosine", "begin": 2}],
    "default_hooks": {"checkpoint": {"interval": 2, "max_keep": 2}, "logger": {"interval": 1}},
    "custom_hooks": [{"type": "EMAHook", "momentum": 0.01}],
    "evaluator": [{"type": "Accuracy"}],
}
VALUES = [None, True, False, 0, -1, 1, 2.5, -0.0, 1e300, -1e-300, float("nan"), float("inf"), 2**31, 2**63, 2**64, -2**63, 10**40,
          "", " ", "x", "null", "~", "1e", "0x10", "\0", "\x1b[2J", "ü" * 50, "a" * 5000, "${env:NOWHERE}", "../..", "/dev/null",
          [], [[]], [None], [1, "a", {}], {}, {"type": None}, {"type": "Adam"}, {"": 1}, {"a": {"b": {"c": {}}}}]
KEYS = ["", "type", "_base_", "_delete_", "lr", "x y", "a.b", "0", "ключ", "é" * 40, "__proto__", "max_stepz"]
TEXTS = [("{", "["), (":", ""), (",", ",,"), ('"', "'"), ("]", ""), ("e", "\t"), ("\n", "\r"), ("[", "&a ["), ("0", "*a"),
         ("t", "!!python/object:os.system t"), ("a", "\ufeffa"), ("}", "}}"), ("1", "<<: 1")]


def places(node, path=()):
    """Every place in the tree that holds something."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def change(tree, random):
    path = random.choice(list(places(tree)))
    parent, key = at(tree, path[:-1]), path[-1]
    what = random.randrange(6)
    if what < 3:
        parent[key] = random.choice(VALUES)
    elif what == 3:
        del parent[key]
    elif isinstance(parent, dict):
        name = key[:1] + key[2:] if what == 4 else random.choice(KEYS)
        parent[name] = parent.pop(key) if random.random() < 0.5 else parent[key]
    else:
        parent.append(at(tree, random.choice(list(places(tree)))))


def is_tree(value, depth=0):
    """Whether it can be written down: no part lies within itself."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < 60 and all(is_tree(part, depth + 1) for part in parts)


def make(random):
    tree = json.loads(json.dumps(GOOD))
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        before = json.dumps(tree)
        if list(places(tree)):
            change(tree, random)
        if not is_tree(tree):
            tree = json.loads(before)
    text = json.dumps(tree, indent=1, ensure_ascii=False)
    text = re.sub(r"\bNaN\b", ".nan", re.sub(r"(-?)Infinity", r"\1.inf", text))  # as YAML has them
    if random.random() < 0.25:
        old, new = random.choice(TEXTS)
        spots = [match.start() for match in re.finditer(re.escape(old), text)]
        if spots:
            spot = random.choice(spots)
            text = text[:spot] + new + text[spot + len(old):]
    return text.encode()


def one_case(torture, text):
    (torture.folder / "c.yaml").write_bytes(text)
    done = torture.run("train", "c.yaml", "work_dir=run", "--dry-run", "--mode", torture.random.choice(("eager", "graph")))
    torture.require(not FORBIDDEN.search(done.text), f"shows what no user should see, of\n{text.decode()}", done)
    torture.require(done.code in (0, 2, 3, 5), f"exit code {done.code}, of\n{text.decode()}", done)
    helps = re.search(rf"error: .*(c\.yaml|'[^']+'|\b({'|'.join(GOOD)})\b)", done.text, re.DOTALL)
    torture.require(done.code in (0, 5) or helps, f"names neither file nor key, of\n{text.decode()}", done)
    return done.code


def run(torture):
    small_data.write_data(torture.folder / "data")
    # Nobody waits for swap.
    resource.prlimit(torture.server().process.pid, resource.RLIMIT_AS, (12 << 30, resource.RLIM_INFINITY))
    codes = {}
    count = torture.count(60, 10_000)
    for number in range(count):
        torture.case = f"config {number}"
        code = one_case(torture, make(torture.random))
        codes[code] = codes.get(code, 0) + 1
    torture.require(codes.get(2, 0) > count // 2, f"only {codes} were wrong: this shows little")
    return f"{count}/{count} configs: {codes.get(2, 0)} ended with 2, {codes.get(3, 0)} with 3, {codes.get(5, 0)} diverged, {codes.get(0, 0)} were in order by chance; every message named file or key"
