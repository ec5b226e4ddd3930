"""R10: graph mode gives the bits of eager, for toy models with all optimizers and AMP (duet_trainers_tests), and for the examples:
the configs (duet compare, tests/cli/compare_examples.py) and, in the long form, the programs with a loop of their own (examples/)."""

import re
import subprocess

from torture import HERE, script, test_program

EXAMPLES = HERE.parents[1] / "examples"


def configs_for_a_few_steps(torture):
    configs = sorted(EXAMPLES.glob("*.yaml"))
    for config in configs:
        torture.case = config.name
        done = torture.good("compare", config, f"work_dir={torture.folder / config.stem}", "--steps", 4, "data.val=null", seconds=300)
        torture.require("bit-identical after 4 steps" in done.text, "other bits in graph mode", done)
    return f"{len(configs)} configs of examples over 4 steps, bit for bit"


def programs(torture):
    torture.case = "programs of examples/"
    line = ["ctest", "--test-dir", str(torture.build), "-R", r"^example\..*\.same$"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=3600, check=False)
    passed = re.search(r"100% tests passed.* out of (\d+)", done.stdout)
    torture.require(done.returncode == 0 and passed, "programs of examples/ differ between modes", done.stdout + done.stderr)
    return f"{passed.group(1)} tests of programs of examples/"


def run(torture):
    torture.case = "toy models"
    lines = [test_program(torture, "duet_trainers_tests", "*Parity.*" if torture.long else "*/Parity.*")]
    if not torture.long:
        return "; ".join([*lines, configs_for_a_few_steps(torture)])
    torture.case = "tests/cli/compare_examples.py"
    compared = script(torture, "compare_examples.py", EXAMPLES, "--steps", 500, seconds=4 * 3600)
    lines.append(f"{sum(line.startswith('ok ') for line in compared)} comparisons of examples over 500 steps, bit for bit")
    return "; ".join([*lines, programs(torture)])
