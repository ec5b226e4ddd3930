"""R10: graph mode gives the bits of eager, for toy models with all optimizers and AMP, and for the examples
(duet_trainers_tests, tests/cli/compare_examples.py)."""

from torture import HERE, script, test_program


def run(torture):
    torture.case = "toy models"
    lines = [test_program(torture, "duet_trainers_tests", "*Parity.*" if torture.long else "*/Parity.*")]
    if torture.long:
        torture.case = "tests/cli/compare_examples.py"
        compared = script(torture, "compare_examples.py", HERE.parents[1] / "examples", "--steps", 500, seconds=7200)
        lines.append(f"{sum(line.startswith('ok ') for line in compared)} comparisons of examples over 500 steps, bit for bit")
    return "; ".join(lines)
