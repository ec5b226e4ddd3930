"""R7: a resume after any step gives the bits of the unbroken run: in both modes, with ranks (duet_trainers_tests,
duet_distributed_tests)."""

from torture import test_program


def run(torture):
    torture.case = "resumes from every step"
    lines = [test_program(torture, "duet_trainers_tests", "*TrainerResume*")]
    if torture.long:
        torture.case = "resumes of several ranks"
        lines.append(test_program(torture, "duet_distributed_tests", "*Resume*"))
    return "; ".join(lines)
