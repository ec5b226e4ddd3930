#!/usr/bin/env python3
"""prove.py on stubs of all programs: what fails, hangs or proves nothing is named and ends the proof with 1."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
import plan  # noqa: E402

NVIDIA_SMI = """#!/bin/sh
case "$1" in
  *driver_version) echo 470.1 ;;
  *) printf 'stub, 1.0, 1 MiB\\nstub, 1.0, 1 MiB\\n' ;;
esac
"""
# Without PyTorch, whatever this machine has.
PYTHON = f"""#!/bin/sh
[ "$1" = -c ] && exit 1
exec {sys.executable} "$@"
"""
PROGRAMS = ["duet", "duet_device_tests", "duet_device_times", "duet_cuda_tests", "01_embed", "02_own_hook", "03_distributed",
            "04_ppo", "05_gan", "06_finetune", *(f"duet_{name}_tests" for name in plan.TESTS)]


class Proof(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.root = pathlib.Path(self.temporary.name)
        self.build = self.root / "build"
        for folder in ("build", "docs", "bin", "examples", ".venv/bin"):
            (self.root / folder).mkdir(parents=True)
        shutil.copy(ROOT / "docs/gpu.md", self.root / "docs")
        for config in (ROOT / "examples").glob("*.yaml"):
            shutil.copy(config, self.root / "examples")
        stub = f"#!{sys.executable}\n" + (HERE / "stub.py").read_text(encoding="utf-8")
        for name in PROGRAMS:
            self.write(self.build / name, stub)
        self.write(self.root / "bin/nvidia-smi", NVIDIA_SMI)
        self.write(self.root / ".venv/bin/python", PYTHON)

    @staticmethod
    def write(path, text):
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def prove(self, *words, sabotage=""):
        """Exit code, output, and the outcome and reason of each part by its name."""
        environment = {**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}", "DUET_SABOTAGE": sabotage,
                       "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(HERE / "prove.py"), "--root", str(self.root), "--build", str(self.build), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        report = self.build / "gpu.json"
        found = json.loads(report.read_text(encoding="utf-8"))["parts"] if report.exists() else []
        return done.returncode, done.stdout + done.stderr, {part["name"]: (part["outcome"], part["reason"]) for part in found}

    def test_what_is_well_passes_and_is_written_into_the_page(self):
        code, output, found = self.prove()
        self.assertEqual(code, 0, output)
        self.assertEqual({outcome for outcome, _ in found.values()}, {"PASS", "SKIPPED"})
        page = (self.root / "docs/gpu.md").read_text(encoding="utf-8")
        self.assertIn("stub, 1.0, 1 MiB (x 2)", page)
        self.assertIn("| MLP 64-64-10, batch 8 | 30 | 10 |  |  | 3.00 |", page)
        self.assertRegex(" ".join(page.split()), "parts passed: [^.]*killed in the middle of captured steps")
        self.assertIn("## What is built", page)

    def test_each_part_fails_where_its_program_fails_hangs_or_is_missing(self):
        for words, sabotage, expected in (((), "fails", "fails|ended with"),
                                          (("--limit", "1", "--quick"), "hangs", "took longer than 1 s")):
            code, output, found = self.prove(*words, sabotage=sabotage)
            self.assertEqual(code, 1)
            self.assertGreater(len(found), 25)
            for name, (outcome, reason) in found.items():
                if outcome != "SKIPPED":
                    self.assertEqual(outcome, "FAIL", name)
                    self.assertRegex(reason, expected, name)
                    self.assertIn(f"gpu: FAILED {name}: ", output)
        (self.build / "duet_device_tests").unlink()
        code, _, found = self.prove("--only", "out of memory")
        self.assertEqual(code, 1)
        self.assertRegex(found["out of memory"][1], "cannot run .*duet_device_tests")

    def test_what_proves_nothing_fails(self):
        for sabotage, reason, *wanted in (
                ("no_tests", "^no test ran$", "both modes bit by bit", "waits for nothing", "tests of optim"),
                ("differs", "the modes end with other weights", "example char_gpt", "example 05_gan", "all GPUs"),
                ("no_checkpoint", "no checkpoint", "example char_gpt", "all GPUs"),
                ("falls_back", "no step was replayed|steps ran eager", "example char_gpt", "all GPUs", "killed"),
                ("lost_by_a_kill", "the killed run ended with", "killed"),
                ("waits", "waits for the device 1 times", "times of MLP")):
            for part in wanted:
                code, output, found = self.prove("--only", part, sabotage=sabotage)
                self.assertEqual(code, 1, output)
                self.assertTrue(found, part)
                for name, (outcome, why) in found.items():
                    self.assertEqual(outcome, "FAIL", name)
                    self.assertRegex(why, reason)
        # Where eager differs from itself bits are not compared.
        code, _, found = self.prove("--only", "example char_gpt", sabotage="atomics")
        self.assertEqual(code, 0)
        self.assertIn("eager differs from eager", found["example char_gpt"][1])

    def test_all_settings_of_the_parity_test_are_parts(self):
        source = (ROOT / "tests/parity/device_test.cpp").read_text(encoding="utf-8")
        table = source[source.index("settings() {"):source.index("return all;")]
        self.assertEqual(set(plan.SETTINGS), set(re.findall(r'^ *\{(?:\.name = )?"(\w+)"', table, re.MULTILINE)))

    def test_without_a_gpu_nothing_is_proved(self):
        code, output, found = self.prove(sabotage="no_gpu")
        self.assertEqual((code, found), (1, {}))
        self.assertRegex(output, r"^gpu: LibTorch .*sees no GPU \(driver 470\.1, CUDA_VISIBLE_DEVICES=.*expected one")
        _, _, found = self.prove("--only", "all GPUs", sabotage="one_gpu")
        self.assertEqual(found["NCCL: all GPUs"], ("SKIPPED", "this machine has one GPU"))


if __name__ == "__main__":
    unittest.main()
