"""R8: processes of a group under torchrun are killed, crashed, stopped or asked to end (tests/cli/ddp_faults.py); and hooks that
throw, frozen ranks and lost connections inside the process (duet_faults_tests)."""

from torture import script, test_program


def run(torture):
    rounds = torture.count(2, 400)
    lines = script(torture, "ddp_faults.py", "--rounds", rounds, "--seed", torture.seed, seconds=60 * rounds + 300)
    ended = [line for line in lines if "the same weights" in line]
    if not ended:
        return "left out: no torchrun here"
    torture.require(len(ended) == rounds, f"expected {rounds} rounds", "\n".join(lines))
    line = f"{rounds}/{rounds} faults, and every run ended with the weights of the unbroken one"
    return f"{line}; {test_program(torture, 'duet_faults_tests', '*')}" if torture.long else line
