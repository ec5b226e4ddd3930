"""R7: a resume after any step gives the bits of the unbroken run: in both modes, with ranks, whatever the moment
(duet_trainers_tests, duet_distributed_tests, tests/cli/kill_resume.py)."""

from torture import script, test_program


def run(torture):
    torture.case = "resumes from every step"
    lines = [test_program(torture, "duet_trainers_tests", "*TrainerResume*")]
    if torture.long:
        torture.case = "resumes of several ranks"
        lines.append(test_program(torture, "duet_distributed_tests", "*Resume*"))
        torture.case = "tests/cli/kill_resume.py"
        lines.append(script(torture, "kill_resume.py", "--seed", torture.seed, "--kills", 50, seconds=3600)[-1])
    return "; ".join(lines)
