"""R8: processes of a group under torchrun are killed, crashed, stopped or asked to end; ranks throw, exit, are slow, and are cut
off from the store (tests/cli/ddp_faults.py); and hooks that throw, frozen ranks and lost connections inside the process
(duet_faults_tests)."""

from torture import script, test_program


def faults(torture, rounds, *settings):
    """The line of as many rounds; nothing where there is no torchrun."""
    torture.case = f"{rounds} rounds of tests/cli/ddp_faults.py"
    lines = script(torture, "ddp_faults.py", "--faulty", torture.built("duet_faulty"), "--rounds", rounds, "--seed", torture.seed,
                   "--epochs", 20, *settings, seconds=90 * rounds + 300)
    ended = [line for line in lines if "the same weights" in line]
    if not ended:
        return ""
    torture.require(len(ended) == rounds, f"expected {rounds} rounds", "\n".join(lines))
    nameless = sum("without a name" in line for line in ended)
    named = f"; {nameless} times no survivor named the lost rank" if nameless else ""
    return f"{rounds}/{rounds} faults, and every run ended with the weights of the unbroken one{named}"


def run(torture):
    line = faults(torture, torture.count(2, 400))
    if not line:
        torture.left_out.append("groups (needs torchrun)")
    if line and not torture.long:
        return line
    inside = test_program(torture, "duet_faults_tests", "*")
    return "; ".join(part for part in (line, inside) if part)
