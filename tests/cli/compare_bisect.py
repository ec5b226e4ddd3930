#!/usr/bin/env python3
"""duet compare --bisect, --record and --against: names the first step and tensor that differ.

usage: compare_bisect.py PROGRAM EXAMPLES-FOLDER
"""

import json
import pathlib
import subprocess
import sys
import tempfile

SMALL = ["model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.context=16", "data.train.context=16",
         "data.train.stride=270", "trainer.max_steps=1000", "param_scheduler=[]"]


def main():
    program, examples = sys.argv[1], pathlib.Path(sys.argv[2])
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        hashes = pathlib.Path(folder) / "hashes.json"
        report = pathlib.Path(folder) / "report.json"

        def compare(*arguments, steps=12):
            command = [program, "compare", str(examples / "char_gpt.yaml"), f"work_dir={folder}/run", *SMALL,
                       *arguments, "--steps", str(steps), "--json", str(report)]
            return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)

        def expect(name, done, code, text):
            if done.returncode != code or text not in done.stdout:
                failures.append(f"{name}: exit {done.returncode}, expected {code} and '{text}'\n{done.stdout}")

        expect("modes", compare("--bisect"), 0, "every tensor of 12 steps has the same bits")
        expect("record", compare("--record", str(hashes)), 0, "hashes of 12 steps")
        expect("same build", compare("--against", str(hashes)), 0, "every tensor of 12 steps has the same bits")
        expect("other mode", compare("--against", str(hashes), "--mode", "graph"), 0, "has the same bits")
        expect("another number", compare("--against", str(hashes), "optim_wrapper.optimizer.lr=0.123"), 1,
               "first difference: step 1, weight '")
        expect("other weights", compare("--against", str(hashes), "seed=77"), 1, "first difference: step 1, loss")
        found = json.loads(report.read_text(encoding="utf-8"))["first_difference"]
        if found["step"] != 1 or found["tensor"] != "loss":
            failures.append(f"report: {found}")
        expect("as many steps", compare("--against", str(hashes), steps=5), 0, "every tensor of 12 steps")
        expect("mode without a file", compare("--mode", "graph"), 2, "both modes run")
        expect("no such file", compare("--against", f"{folder}/none.json"), 3, "cannot open")
        hashes.write_text('{"steps": [{"step": "one"}]}', encoding="utf-8")
        expect("another file", compare("--against", str(hashes)), 3, "holds no hashes")
    for failure in failures:
        print("FAILED", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
